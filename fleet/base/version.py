"""The version of this package, and of others."""

from __future__ import annotations

import functools
from importlib.metadata import PackageNotFoundError, version


@functools.cache
def package_version() -> str:
    """Return the installed version; "unknown" when the package is not installed, as in an agent bundle."""
    return installed_version("tvm-fleet") or "unknown"


def installed_version(distribution: str) -> str | None:
    """Return the version of a distribution, or None where it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
