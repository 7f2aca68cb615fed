"""Optional packages of tests: skip tests without them, unless this run promises that they are installed."""

from __future__ import annotations

import importlib
import os
from types import ModuleType

import pytest

PROMISED = "FLEET_TESTS_PROMISED"
"""Environment variable with comma-separated names of modules that must be importable in this run."""


def needs(name: str) -> ModuleType:
    """Import and return an optional module.

    Skips the test, or the whole file, if the module is not installed. Fails instead if `FLEET_TESTS_PROMISED` names it:
    a tier that installs PyTorch must not pass without running a test of PyTorch.
    """
    if name in os.environ.get(PROMISED, "").split(","):
        return importlib.import_module(name)
    module: ModuleType = pytest.importorskip(name)
    return module
