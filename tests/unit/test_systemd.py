"""Systemd units."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fleet.base.systemd import unit_text


@pytest.mark.parametrize("word", ["plain", "with space", 'a "quoted" one', "50%", "$HOME", "back\\slash", "it's", ""])
def test_a_word_reaches_the_program_as_it_is(word: str) -> None:
    """Systemd reverses the escaping: doubled signs, escaped quotes."""
    (line,) = [
        line for line in unit_text("a service", ["/bin/true", word]).splitlines() if line.startswith("ExecStart=")
    ]
    said = line.removeprefix("ExecStart=/bin/true ")
    if said.startswith('"'):
        said = said[1:-1].replace('\\"', '"').replace("\\\\", "\\")

    assert said.replace("%%", "%").replace("$$", "$") == word


def test_a_line_end_is_refused() -> None:
    """A line end would start another setting of the unit."""
    with pytest.raises(ValueError, match="line end"):
        unit_text("a service", ["/bin/true", "x\nExecStartPost=/bin/evil"])


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """Its own verifier finds no unknown key and no bad quoting."""
    path = tmp_path / "fleet-test.service"
    path.write_text(unit_text("a service", ["/bin/sh", "-c", 'echo "50%" $HOME']))

    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert path.name not in done.stderr, done.stderr
    assert done.returncode == 0, done.stderr
