"""Optional packages of tests: see `tests.needs`."""

from __future__ import annotations

import json

import pytest

from tests.needs import PROMISED, needs


def test_an_optional_module_is_imported() -> None:
    """The test gets the module itself."""
    assert json is needs("json")


def test_a_missing_module_skips_unless_it_was_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tier that installs a package fails without it, instead of skipping its tests silently."""
    with pytest.raises(pytest.skip.Exception):
        needs("no_such_module")
    monkeypatch.setenv(PROMISED, "torch,no_such_module")
    with pytest.raises(ImportError):
        needs("no_such_module")
