"""Optional packages and programs of tests: skip tests without them, unless this run promises their installation."""

from __future__ import annotations

import importlib
import os
import shutil
from types import ModuleType

import pytest

PROMISED = "FLEET_TESTS_PROMISED"
"""Environment variable with comma-separated names of modules and programs that must be installed in this run."""


def is_promised(name: str) -> bool:
    """Return True if this run must not skip the tests of a module or program: `make test` installs it."""
    return name in os.environ.get(PROMISED, "").split(",")


def is_absent(program: str) -> bool:
    """Return True if a program is neither installed nor promised."""
    return not is_promised(program) and shutil.which(program) is None


def needs(name: str) -> ModuleType:
    """Import and return an optional module.

    Skips the test, or the whole file, if the module is not installed. Fails instead if `FLEET_TESTS_PROMISED` names it:
    a tier that installs PyTorch must not pass without running a test of PyTorch.
    """
    if is_promised(name):
        return importlib.import_module(name)
    module: ModuleType = pytest.importorskip(name)
    return module
