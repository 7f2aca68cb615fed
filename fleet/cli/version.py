"""`fleet version`: print the installed version."""

from __future__ import annotations

from fleet.base.version import package_version


def version() -> None:
    """Print the installed version, as fleet --version does.

    Example: fleet version
    """
    print(f"tvm-fleet {package_version()}")
