"""Unusable or missing libraries: one clear line and the right exit code. Reading creates no files."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fleet.cli.main import app
from fleet.errors import LibraryDamaged
from fleet.library import Library

READING = [
    ("jobs", "list"),
    ("jobs", "show", "1"),
    ("jobs", "cancel", "1"),
    ("library", "best"),
    ("library", "snapshots"),
    ("library", "prune"),
    ("optimizer", "list"),
    ("report", "1"),
    ("config", "show"),
]
WRITING = [("jobs", "submit", "matmul-8"), ("library", "import", ".", "--device-model", "x"), ("tune", "matmul-8")]


def fleet(*words: str, **variables: str | None) -> tuple[int, str]:
    """Run a command; return exit code and stderr."""
    done = CliRunner().invoke(app, words, env={"COLUMNS": "200", **variables}, prog_name="fleet")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql+nope://host/db", "not in postgresql+nope"),
        ("mysql://host/db", "not in mysql"),
        ("sqlite:///:memory:", "name a file"),
        ("sqlite://", "name a file"),
        ("sqlite:///x.db?mode=ro", "no options after '?'"),
        ("postgresql://host:port/db", "no database URL"),
    ],
)
def test_a_url_of_no_library_is_the_callers_mistake(
    url: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command refuses it, by flag or variable. Before, some gave tracebacks, one of them with exit code 0."""
    monkeypatch.chdir(tmp_path)
    for words in [*READING[:-1], *WRITING]:
        by_flag = fleet(*words, "--library", url)
        by_variable = fleet(*words, FLEET_LIBRARY=url)

        assert by_flag == by_variable, words
        assert (by_flag[0], by_flag[1].count("\n"), said in by_flag[1]) == (2, 1, True), (words, by_flag)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_look_creates_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a missing library creates no library and no folder, also below a missing home."""
    monkeypatch.chdir(tmp_path)
    for name in ("FLEET_DATA_DIR", "FLEET_LIBRARY", "FLEET_CONFIG", "XDG_DATA_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    nowhere = str(tmp_path / "home/x")
    for words in READING:
        code, said = fleet(*words, HOME=nowhere, TMPDIR=str(tmp_path / "tmp"))

        assert (code in (0, 1), said.count("\n") <= 1) == (True, True), (words, said)
    for words in READING[:-1]:
        named = fleet(*words, "--library", "sqlite:///x.db")

        assert named == (2, "error: there is no library x.db; name the one that a tune wrote with --library\n"), words
    assert list(tmp_path.iterdir()) == []


def test_a_number_that_no_database_holds_is_refused(tmp_path: Path) -> None:
    """Before, such a number gave a traceback of SQLite."""
    with Library.open(tmp_path / "l.sqlite"):
        pass
    for words in (("jobs", "list", "--limit"), ("library", "best", "--top"), ("library", "prune", "--keep")):
        code, said = fleet(*words, "99999999999999999999", "--library", str(tmp_path / "l.sqlite"))

        assert (code, "99999999999999999999 is not in the range" in said) == (2, True), said


@pytest.mark.parametrize("way", ["removed", "replaced"])
def test_a_removed_library_refuses_records(way: str, tmp_path: Path) -> None:
    """SQLite keeps using a deleted file: trials were reported as stored and were lost."""
    path = tmp_path / "l.sqlite"
    with Library.open(path) as library:
        job = library.start_job(title="m")
        path.unlink()
        if way == "replaced":
            with Library.open(path):
                pass
        with pytest.raises(LibraryDamaged, match="removed or replaced"):
            library.finish_job(job.name, job.state)
        with pytest.raises(LibraryDamaged, match="removed or replaced"):
            library.jobs()
