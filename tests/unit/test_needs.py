"""Optional packages of tests: see `tests.needs`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.needs import PROMISED, is_absent, needs


def test_an_optional_module_is_imported() -> None:
    """The test gets the module itself."""
    assert json is needs("json")


def test_a_missing_module_skips_unless_it_was_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tier that installs a package fails without it, instead of skipping its tests silently."""
    with pytest.raises(pytest.skip.Exception):
        needs("no_such_module")
    assert is_absent("no-such-program")
    monkeypatch.setenv(PROMISED, "torch,no_such_module,no-such-program")
    with pytest.raises(ImportError):
        needs("no_such_module")
    assert not is_absent("no-such-program")


def test_only_needs_skips_for_a_missing_module() -> None:
    """Packages that `make test` always installs, such as TVM and ONNX Runtime, are imported: their absence fails."""
    tests = Path(__file__).parents[1]

    found = [
        path.name for path in tests.rglob("test_*.py") if path != Path(__file__) and "importorskip" in path.read_text()
    ]

    assert found == []
