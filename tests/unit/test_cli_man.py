"""The manual page fits this version, and renders without warnings."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from fleet.cli.main import _COMMANDS, app, load_command

pytestmark = pytest.mark.slow  # it loads every command


def rendered(page: str) -> str:
    """Return a page as a terminal shows it, after groff accepted it without warnings."""
    words = ["groff", "-man", "-ww", "-k", "-Tutf8", "-P-cbou", "-rLL=1000n"]
    done = subprocess.run(words, input=page, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


def flags_of(command: Any) -> set[str]:
    own = {opt for param in command.params if not param.hidden for opt in param.opts if opt.startswith("--")}
    return own.union(*(flags_of(child) for child in getattr(command, "commands", {}).values()))


def test_the_manual_has_every_command_and_flag_and_renders_without_a_warning() -> None:
    """Its text is that of --help: dashes that can be copied, and no line lost because of how it begins."""
    page = CliRunner().invoke(app, ["man"])
    assert page.exit_code == 0

    text = rendered(page.stdout)

    lines = {line.strip() for line in text.splitlines()}
    assert {f"fleet {name}" for name in _COMMANDS} <= lines
    root = typer.main.get_command(app)
    flags = flags_of(root).union(*(flags_of(load_command(name)) for name in _COMMANDS))
    assert sorted(flag for flag in flags if flag not in text) == []
    assert "fleet jobs submit model.onnx --trials 512 --priority background" in lines


def test_a_small_installation_has_a_manual_too() -> None:
    """Commands with missing packages are listed, with the extra to install."""
    script = "import sys; sys.modules['sqlalchemy'] = None; from fleet.cli.man import man; man()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    text = rendered(done.stdout)

    library = text.partition("fleet library")[2].partition("fleet targets")[0]
    assert "tvm-fleet[" in library
    assert "fleet devices show [OPTIONS]" in text
