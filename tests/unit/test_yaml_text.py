"""Reading YAML: duplicate keys and unusable files are refused, at once."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from device_agents.fabric.reader import parse_description
from fleet.base.config import parse, read_yaml
from fleet.base.settings import ClientFile
from fleet.errors import ConfigError
from tests.unit.alias_bomb import LISTS, MERGES, alias_bomb


def _written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "agent.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("tracker: a:1\ntracker: b:2\n", 2, "tracker"),
        ("devices:\n- driver: cpu\n  labels: {rack: 3, rack: 4}\n", 3, "rack"),
        ("a: &x {b: 1}\nc:\n  <<: *x\n  d: 1\n  d: 2\n", 5, "d"),
    ],
    ids=["outer", "within", "beside-a-merge"],
)
def test_a_key_that_stands_twice_is_refused(tmp_path: Path, text: str, line: int, key: str) -> None:
    """Before, the later one silently won. The error has file, line and key."""
    path = _written(tmp_path, text)

    with pytest.raises(ConfigError, match=rf"{path}: line {line}: the key '{key}' stands in line \d already"):
        read_yaml(path)


def test_a_merged_key_may_be_given_anew(tmp_path: Path) -> None:
    """Overriding is the purpose of a merge."""
    path = _written(tmp_path, "a: &x {b: 1}\nc: {<<: *x, b: 2}\n")

    assert read_yaml(path)[0]["c"] == {"b": 2}


def test_a_description_of_a_fabric_is_read_as_strictly() -> None:
    """The description comes from a peer."""
    with pytest.raises(ConfigError, match=r"registers.yaml: line 2: the key 'name'"):
        parse_description("name: a\nname: b\n")


def test_a_pipe_is_no_configuration(tmp_path: Path) -> None:
    """Before, the command waited for a writer forever."""
    path = tmp_path / "pipe"
    os.mkfifo(path)

    with pytest.raises(ConfigError, match="no regular file"):
        read_yaml(path)


def test_a_huge_file_is_no_configuration(tmp_path: Path) -> None:
    """Before, 20 MB of it took a minute and a gigabyte."""
    with pytest.raises(ConfigError, match="larger than"):
        read_yaml(_written(tmp_path, "# padding\n" * 2_000_000))


def test_merges_of_merges_are_refused_at_once(tmp_path: Path) -> None:
    """Before, nine lines took all memory."""
    with pytest.raises(ConfigError, match="'<<' copies more than 1048576 keys; write them out"):
        read_yaml(_written(tmp_path, alias_bomb(MERGES)))


def test_a_message_shows_the_beginning_of_a_huge_value(tmp_path: Path) -> None:
    """Before, the message about nine levels of aliases took all memory."""
    values, _ = read_yaml(_written(tmp_path, alias_bomb(LISTS)))

    with pytest.raises(ConfigError, match=r"expected text, found \[\[\[...\], ") as caught:
        parse(ClientFile, {"tracker": values["a9"]}, where="a file")

    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("number", ["1" + "0" * 400, "0x" + "f" * 9000])
def test_a_whole_number_beyond_all_floats_is_refused(tmp_path: Path, number: str) -> None:
    """Before, it was a traceback."""

    @dataclass(frozen=True, kw_only=True)
    class Settings:
        power_w: float

    with pytest.raises(ConfigError, match="power_w: expected a number, found"):
        parse(Settings, read_yaml(_written(tmp_path, f"power_w: {number}\n"))[0], where="a file")
