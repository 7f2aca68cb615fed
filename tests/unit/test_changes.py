"""The changelog, and the files in `changes/` that its next section is made from."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fleet.cli.main import app

_ROOT = Path(__file__).parents[2]
_PROJECT = tomllib.loads((_ROOT / "pyproject.toml").read_text())
_TYPES = _PROJECT["tool"]["towncrier"]["fragment"]


def test_the_newest_section_of_the_changelog_is_this_version() -> None:
    """The version of the package, of `fleet version` and of the changelog are the same."""
    version = _PROJECT["project"]["version"]
    sections = [line for line in (_ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")]

    assert sections[0].startswith(f"## [{version}] - ")
    assert CliRunner().invoke(app, ["version"]).output == f"tvm-fleet {version}\n"


def test_every_change_has_a_known_type() -> None:
    """A file with a misspelled type would be missing in the changelog."""
    names = [path.name for path in (_ROOT / "changes").iterdir() if path.name != "README.md"]

    assert [
        name for name in names if not (name.startswith("+") and name.split(".")[1:] in [[t, "md"] for t in _TYPES])
    ] == []


@pytest.mark.slow
def test_a_change_becomes_an_entry_of_the_next_section(tmp_path: Path) -> None:
    """`towncrier build --draft` with the project's settings shows each type under a heading of its own."""
    (tmp_path / "changes").mkdir()
    (tmp_path / "pyproject.toml").write_text((_ROOT / "pyproject.toml").read_text())
    for kind in _TYPES:
        (tmp_path / f"changes/+one.{kind}.md").write_text(f"An effect that is {kind}.\n")

    command = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "9.8.7", "--date", "2030-01-02"]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    assert "## [9.8.7] - 2030-01-02" in shown
    for kind in _TYPES:
        assert f"### {kind.capitalize()}\n\n- An effect that is {kind}." in shown
