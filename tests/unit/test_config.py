"""Configuration that is wrong is refused with the nearest right word."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest

from fleet.base.config import Key, cache_dir, data_dir, keys_of, parse, read_yaml
from fleet.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Settings:
    name: Annotated[str, "What it is called."]
    timeout_sec: float = 1.0
    count: int | None = None
    state_dir: Path = Path("/nowhere")
    is_open: bool = False


def test_values_are_read() -> None:
    """Whole numbers will do for floats, text for paths."""
    found = parse(Settings, {"name": "x", "timeout_sec": 3, "state_dir": "/tmp", "count": None}, where="file")

    assert Settings(name="x", timeout_sec=3.0, state_dir=Path("/tmp")) == found


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "x", "timeout_secs": 3}, "file: unknown key 'timeout_secs'; did you mean 'timeout_sec'?"),
        ({"name": "x", "zzz": 3}, "file: unknown key 'zzz'; known are count, is_open"),
        ({}, "file: the key 'name' is missing"),
        ({"name": 3}, "file: name: expected text, found 3"),
        ({"name": "x", "count": True}, "file: count: expected a whole number, found True"),
        ({"name": "x", "is_open": 1}, "file: is_open: expected true or false, found 1"),
    ],
)
def test_wrong_values_are_refused(values: dict[str, object], message: str) -> None:
    """The message names the file, the key and valid values."""
    with pytest.raises(ConfigError) as caught:
        parse(Settings, values, where="file")

    assert str(caught.value).startswith(message)


def test_keys_are_listed_for_the_documentation() -> None:
    """A key has its name, type in words, default, and the documentation in its type."""
    name, timeout, count, *_ = keys_of(Settings)

    assert name == Key(name="name", expects="text", is_required=True, doc="What it is called.")
    assert timeout == Key(name="timeout_sec", expects="a number", default=1.0)
    assert count.expects == "a whole number"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: c: d", r"agent\.yaml: line 2, column 5 is not YAML: mapping values are not"),
        ("a: [", "is not YAML"),
        ("- 1", "expected 'key: value'"),
        (None, "No such"),
    ],
)
def test_files_that_cannot_be_read_are_refused(text: str | None, message: str, tmp_path: Path) -> None:
    """Missing, broken and misshapen files have different errors."""
    path = tmp_path / "agent.yaml"
    if text is not None:
        path.write_text(text)

    with pytest.raises(ConfigError, match=message):
        read_yaml(path)


def test_directories_can_be_moved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Environment variables set the directories; XDG is the fallback."""
    monkeypatch.setenv("FLEET_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("FLEET_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")

    assert tmp_path == data_dir()
    assert Path("/xdg/tvm-fleet") == cache_dir()
