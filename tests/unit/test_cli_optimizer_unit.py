"""`fleet optimizer unit`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from fleet.cli.main import app


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Working directory, without settings of the developer's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLEET_CONFIG", str(tmp_path / "none.yaml"))
    (tmp_path / "none.yaml").write_text("{}\n")
    for name in ("FLEET_TRACKER", "FLEET_LIBRARY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def unit(*words: str) -> Result:
    return CliRunner().invoke(app, ["optimizer", "unit", "--", *words])


def command(result: Result) -> str:
    """Return the command that systemd starts."""
    assert result.exit_code == 0, result.output
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("ExecStart=")]
    return line.removeprefix(f"ExecStart={sys.executable} -m fleet optimizer serve ")


def test_options_reach_the_service_with_absolute_paths(folder: Path) -> None:
    """Systemd starts it in another folder. Options that were not given keep their defaults of then."""
    found = command(
        unit("--jobs", "4", "--allow-network", "--library", "lab.sqlite", "--tracker", "lab:9290", "--build-cache", "x")
    )

    library = f"--library {folder}/lab.sqlite"
    assert found == f"--tracker lab:9290 {library} --jobs 4 --build-cache {folder}/x --allow-network"


def test_the_configured_tracker_and_library_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service does not inherit environment variables of this shell."""
    monkeypatch.setenv("FLEET_TRACKER", "lab:9290")
    monkeypatch.setenv("FLEET_LIBRARY", "postgresql://db/fleet")

    assert command(unit()) == "--tracker lab:9290 --library postgresql://db/fleet"


@pytest.mark.parametrize("words", [("--jobs", "0"), ("--nope",), ("--tracker", "nowhere")])
def test_invalid_options_are_refused_now(folder: Path, words: tuple[str, ...]) -> None:
    """The service would only refuse them when it starts."""
    result = unit(*words)

    assert result.exit_code != 0
    assert "ExecStart" not in result.stdout
