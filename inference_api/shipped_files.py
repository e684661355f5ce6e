"""Paths of files that ship with Hearth, and of files that it makes once, in a clone or a wheel.

State (the secret, SQLite files) is in `var/` of the directory that Hearth is started in. In a
clone this module imports no packages, because kernels compile while packages are being installed.
"""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
TOP = PACKAGE.parent  # a clone's top folder; for an installed package, the folder of all packages
PACKED = PACKAGE / "shipped"  # exists only in a wheel: see pyproject.toml
IS_INSTALLED = PACKED.exists()

SHIPPED = PACKED if IS_INSTALLED else TOP
CACHE = TOP / "var"
if IS_INSTALLED:
    import platformdirs

    CACHE = platformdirs.user_cache_path("hearth")
