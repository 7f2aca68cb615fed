"""Packages that only some formats need, and the extra that brings each."""

from __future__ import annotations

import importlib
from types import ModuleType

from fleet.errors import ImportFailed

_EXTRAS = {"torch": "torch", "transformers": "transformers", "keras": "keras", "tflite": "tflite", "onnx": "tune"}
"""Extra of tvm-fleet by package."""


def require(package: str, for_what: str) -> ModuleType:
    """Import a package.

    Raises:
        ImportFailed: it is not installed; names the extra that has it.
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        extra = _EXTRAS[package.partition(".")[0]]
        raise ImportFailed(
            f"{for_what} needs the package {error.name or package}; install it with: pip install 'tvm-fleet[{extra}]'"
        ) from error
