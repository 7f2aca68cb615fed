"""The version of this package."""

from __future__ import annotations

import functools
from importlib.metadata import PackageNotFoundError, version


@functools.cache
def package_version() -> str:
    """Return the installed version; "unknown" when the package is not installed, as in an agent bundle."""
    try:
        return version("tvm-fleet")
    except PackageNotFoundError:
        return "unknown"
