"""Array types, and scipy, which is imported at its first use, because machines that only serve
models do not need it.

from common.numerics import scipy
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from common.errors import WireError

__all__ = ["BoolArray", "FloatArray", "IntArray", "NotInstalled", "part_of_scipy", "scipy"]

BoolArray: TypeAlias = NDArray[np.bool_]
FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]


class NotInstalled(WireError):
    status = 501
    code = "not_installed"

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"{package} is not installed on this server; run `pip install 'hearth[{extra}]'` there "
            f"(in a clone: `pip install --editable '.[{extra}]'`) and start it again"
        )


def part_of_scipy(name: str) -> Any:
    """Returns the module `scipy.<name>`. Raises NotInstalled if scipy is missing."""
    try:
        return import_module(f"scipy.{name}")
    except ModuleNotFoundError as error:
        raise NotInstalled("scipy", "optimizer") from error


if TYPE_CHECKING:
    import scipy
else:

    class _Scipy:
        def __getattr__(self, name: str) -> Any:
            return part_of_scipy(name)

    scipy = _Scipy()
