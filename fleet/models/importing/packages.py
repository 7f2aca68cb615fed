"""Optional packages of some formats."""

from __future__ import annotations

import importlib
from types import ModuleType

from fleet.base.extras import advice_for
from fleet.errors import ImportFailed


def require(package: str, for_what: str) -> ModuleType:
    """Import a package.

    Raises:
        ImportFailed: it is not installed; names the extra that has it.
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise ImportFailed(f"{for_what} needs the package {error.name}; {advice_for(error)}") from error
