"""The functions of the C API in which llama.cpp and its fork ik_llama.cpp differ.

Runs in the environment of either, which has only one of them.
"""

import ctypes
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

CACHE_TYPES = {"F16": 1, "Q8_0": 8}  # ggml's numbers
LOG_ERROR = 4  # ggml's level


class LlamaApi:
    """The functions as `llama-cpp-python` declares them."""

    package, module = "llama-cpp-python", "llama_cpp"
    feature = "LLAMAFILE = 1"  # a build with fast matrix products reports this

    def __init__(self) -> None:
        self.version = version(self.package)
        self.c: Any = import_module(self.module)
        self.errors: list[str] = []
        signature = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
        self._log = signature(self._keep_errors)  # the library keeps no reference

    def silence(self) -> None:
        """Suppress the library's log, which has hundreds of lines for a load. Errors are kept."""
        self.c.llama_log_set(self._log, None)

    def _keep_errors(self, level: int, text: bytes, data: int | None) -> None:
        if level == LOG_ERROR:
            self.errors.append(text.decode(errors="replace").strip())

    def arrange(self, model_params: Any, params: Any, flash: bool, unified: bool) -> None:
        """Set the layout of weights and cache, and the kind of attention."""
        params.flash_attn_type, params.kv_unified, params.no_perf = int(flash), unified, True

    def forget(self, context: int, user: int) -> None:
        self.c.llama_memory_seq_rm(self.c.llama_get_memory(context), user, -1, -1)


class IkLlamaApi(LlamaApi):
    """The functions as `ik-llama-cpp-python` declares them, and some that it does not declare.
    Fused operations are its defaults; weights are repacked while they are loaded (its `-rtr`). It
    has one cache for all users. Flash attention skips entries that the last row of a block does not
    see, though others may: it is for one user only (github.com/ikawrakow/ik_llama.cpp, issue 809).
    """

    package, module = "ik-llama-cpp-python", "ik_llama_cpp._ctypes_api"
    feature = "AVX2 = 1"

    def __init__(self) -> None:
        super().__init__()
        library = self.c._lib
        self.c.llama_log_set = library.llama_log_set
        self.c.llama_print_system_info = library.llama_print_system_info
        self.c.llama_print_system_info.restype = ctypes.c_char_p

    def arrange(self, model_params: Any, params: Any, flash: bool, unified: bool) -> None:
        model_params.repack_tensors = True
        params.flash_attn = flash and params.n_seq_max == 1

    def forget(self, context: int, user: int) -> None:
        self.c._lib.llama_kv_cache_seq_rm(ctypes.c_void_p(context), user, -1, -1)


API = (IkLlamaApi if find_spec("ik_llama_cpp") else LlamaApi)()
