"""Errors as JSON for commands with JSON output."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter
from typer.testing import CliRunner

from fleet.cli import json_out
from fleet.cli.failures import Failure, tell
from fleet.cli.json_schema.of_errors import Failed
from fleet.cli.main import _COMMANDS, app, load_command
from fleet.errors import FleetError


def _with_json(words: tuple[str, ...], command: Any) -> Iterator[tuple[str, ...]]:
    if any("--json" in option.opts for option in command.params):
        yield words
    for word, part in getattr(command, "commands", {}).items():
        yield from _with_json((*words, word), part)


_ALL = [words for name in _COMMANDS for words in _with_json((name,), load_command(name))]


def _failed(*words: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    done = CliRunner().invoke(app, words, env=env)
    document: dict[str, Any] = json.loads(done.stdout)
    assert document.pop("schema") == 1
    TypeAdapter(Failed).validate_python(document, strict=True)
    error: dict[str, Any] = document["error"]
    assert done.exit_code == error["exit_code"]
    assert f"error: {error['message']}\n" in done.stderr
    return error


@pytest.mark.parametrize("words", _ALL, ids=" ".join)
def test_a_bad_command_line_is_an_object_for_every_command(words: tuple[str, ...]) -> None:
    """Before, scripts that read stdout got no output, and had to parse the text on stderr."""
    error = _failed(*words, "--json", "--no-such-option")

    assert ("UsageError", 2) == (error["class"], error["exit_code"])


@pytest.mark.parametrize(
    "words",
    [
        ("devices", "--json", "--connect-timeout", "0.1"),
        ("--format", "json", "devices", "--connect-timeout", "0.1"),
        ("--format=json", "leases", "--connect-timeout", "0.1"),
        ("tracker", "members", "--json"),
        ("acquire", "cpu", "--json", "--connect-timeout", "0.1", "--", "true"),
    ],
    ids=" ".join,
)
def test_an_error_names_its_class(words: tuple[str, ...]) -> None:
    """The class decides the reaction, as in Python."""
    error = _failed("--tracker", "127.1:1", *words)

    assert ("TrackerUnavailable", 1) == (error["class"], error["exit_code"])


def test_the_environment_asks_for_json_errors() -> None:
    """The variable applies to errors as to data."""
    words = ("--tracker", "127.0.0.1:1", "devices", "--connect-timeout", "0.1")

    assert _failed(*words, env={"FLEET_FORMAT": "json"})["class"] == "TrackerUnavailable"


def test_a_path_that_refuses_is_an_object(tmp_path: Path) -> None:
    """Errors of the operating system are objects, too."""
    path = tmp_path / ("x" * 300)

    assert _failed("report", "--json", "--library", str(path))["exit_code"] == 2


def test_a_commands_own_json_option_is_not_the_global_one() -> None:
    """Words after -- belong to another command, and --format after a command is the command's own."""
    at = ("--tracker", "127.0.0.1:1")
    for words in (
        (*at, "acquire", "cpu", "--connect-timeout", "0.1", "--", "true", "--json"),
        ("report", "--format", "json"),
    ):
        done = CliRunner().invoke(app, words)
        assert (True, "") == (done.exit_code != 0, done.stdout)


def test_an_error_behind_a_document_prints_no_second_one(capsys: pytest.CaptureFixture[str]) -> None:
    """A document that reports a wrong answer stays the only object on stdout."""
    json_out.begin()
    json_out.print_document({"is_right": False})
    error = FleetError("an answer is wrong")

    tell(Failure(kind="FleetError", message=str(error), exit_code=1), error, as_json=True)

    assert json.loads(capsys.readouterr().out) == {"schema": 1, "is_right": False}
