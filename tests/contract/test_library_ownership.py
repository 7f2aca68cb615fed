"""Ownership of jobs: only the submitting account or the library's owner changes a job, on SQLite and PostgreSQL."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from fleet.cli.main import app
from fleet.errors import ConfigError, NotAllowed
from fleet.identity.account_key import account_key_id, known_account_key_id
from fleet.library import Job, JobState, Library
from fleet.library.engine import database_url
from fleet.library.ownership import ANYBODY, Caller
from tests.contract.test_library_sqlite import opened_up, without_root

MINE, OTHER = Caller(key_id="a1"), Caller(key_id="b2")
CHANGES: list[Callable[[Library, str, Caller], Job]] = [
    lambda library, name, by: library.queue.cancel(name, by),
    lambda library, name, by: library.queue.resume(name, by),
    lambda library, name, by: library.queue.cancel(name, by),
    lambda library, name, by: library.queue.revert(name, by),
    lambda library, name, by: library.queue.revert(name, by, is_undone=True),
]
"""Changes of a job, in an order in which each is possible."""


@pytest.fixture
def library(url: str) -> Iterator[Library]:
    with Library.open(url) as library:
        yield library


def test_a_job_is_changed_by_its_own_account_only(library: Library) -> None:
    """Every change by another account, or by an account without a key, is refused and changes nothing."""
    name = library.queue.submit(title="m", spec={}, holder="ann@host", owner=MINE.key_id).name
    for change in CHANGES:
        before = library.queue.get(name)
        for stranger in (OTHER, ANYBODY):
            with pytest.raises(NotAllowed, match=r"belongs to another account, ann@host.*--force"):
                change(library, name, stranger)
        assert library.queue.get(name) == before
        assert change(library, name, MINE).owner == MINE.key_id


def test_the_owner_of_the_library_may_force_it(library: Library) -> None:
    """The owner of the file, or of the tables, can change every row in any case."""
    name = library.queue.submit(title="m", spec={}, owner=MINE.key_id).name

    assert library.queue.cancel(name, Caller(key_id="b2", is_forced=True)).state is JobState.CANCELLED


@pytest.mark.skipif(os.getuid() != 0, reason="becoming another account takes root")
def test_another_account_may_not_force_it(tmp_path: Path) -> None:
    """Another unix user cannot force a change, even with every right to write the file."""
    path = opened_up(tmp_path) / "l.sqlite"
    with Library.open(path) as library:
        name = library.queue.submit(title="m", spec={}, owner=MINE.key_id).name
    for each in (tmp_path, *tmp_path.iterdir()):
        each.chmod(0o777)

    with without_root(), Library.open(path) as library, pytest.raises(NotAllowed, match="the owner of the library"):
        library.queue.cancel(name, Caller(key_id="b2", is_forced=True))


@pytest.mark.slow
def test_a_role_that_does_not_own_the_tables_may_not_force_it(url_of_postgres: str) -> None:
    """A lab gives its users roles of their own, with write access to rows."""
    with Library.open(url_of_postgres) as library:
        name = library.queue.submit(title="m", spec={}, owner=MINE.key_id).name
    engine = sa.create_engine(database_url(url_of_postgres), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql("DROP ROLE IF EXISTS someone")
        connection.exec_driver_sql("CREATE ROLE someone LOGIN")
        connection.exec_driver_sql("GRANT USAGE ON SCHEMA public TO someone")
        connection.exec_driver_sql("GRANT ALL ON ALL TABLES IN SCHEMA public TO someone")
    theirs = sa.make_url(url_of_postgres).set(username="someone").render_as_string(hide_password=False)
    try:
        with Library.open(theirs) as library, pytest.raises(NotAllowed, match="the owner of the library"):
            library.queue.cancel(name, Caller(key_id="b2", is_forced=True))
    finally:
        with engine.connect() as connection:
            connection.exec_driver_sql("DROP OWNED BY someone")
            connection.exec_driver_sql("DROP ROLE someone")
        engine.dispose()


def test_a_job_without_owner_is_everybodys(library: Library) -> None:
    """Libraries of an older version have jobs without an owner."""
    name = library.queue.submit(title="m", spec={}).name

    assert library.queue.cancel(name, OTHER).state is JobState.CANCELLED


def test_a_running_job_of_tune_has_an_owner_too(library: Library) -> None:
    """Only its own account can revert a running job's records."""
    job = library.start_job(title="m", owner=MINE.key_id)
    library.finish_job(job.name, JobState.FINISHED)

    with pytest.raises(NotAllowed):
        library.queue.revert(job.name, OTHER)
    assert library.queue.revert(job.name, MINE).reverted_at is not None


def test_an_account_makes_its_key_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first job makes the key, in its own file. Reading makes none, and a key readable by others is refused."""
    monkeypatch.setenv("FLEET_CREDENTIALS_DIR", str(tmp_path / "keys"))

    assert known_account_key_id() == ""
    assert not (tmp_path / "keys").exists()
    first = account_key_id()
    assert first == account_key_id() == known_account_key_id() != ""
    assert [(path.name, path.stat().st_mode & 0o777) for path in (tmp_path / "keys").iterdir()] == [
        ("account.key", 0o600)
    ]
    (tmp_path / "keys/account.key").chmod(0o644)
    with pytest.raises(ConfigError, match="others can read"):
        account_key_id()


@pytest.mark.slow
def test_commands_of_another_account_are_refused(tmp_path: Path) -> None:
    """Commands end with one line and exit code 2; the submitting account and the library's owner succeed."""
    path = str(tmp_path / "l.sqlite")
    (tmp_path / "m.onnx").write_bytes(b"read by its optimizer")

    def fleet(account: str, *words: str) -> tuple[int, str, str]:
        variables = {"FLEET_CREDENTIALS_DIR": str(tmp_path / account), "COLUMNS": "200"}
        done = CliRunner().invoke(app, [*words, "--library", path], env=variables, prog_name="fleet")
        return done.exit_code, done.stdout, done.stderr

    job = json.loads(fleet("ann", "jobs", "submit", str(tmp_path / "m.onnx"), "--json")[1])
    for words in (("cancel",), ("resume",), ("revert",), ("revert", "--undo")):
        code, _, said = fleet("bob", "jobs", *words, job["name"])
        assert (code, said.count("\n"), "belongs to another account" in said) == (2, 1, True), said

    assert job["owner"] != ""
    assert fleet("ann", "jobs", "cancel", job["name"])[0] == 0
    assert fleet("bob", "jobs", "resume", job["name"], "--force")[0] == 0


@pytest.mark.skipif(os.name != "posix", reason="file modes")
def test_the_library_of_an_account_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library contains models and jobs, and was readable by every user of the machine."""
    monkeypatch.delenv("FLEET_LIBRARY", raising=False)
    monkeypatch.setenv("FLEET_CONFIG", "")
    monkeypatch.setenv("FLEET_DATA_DIR", str(tmp_path / "data"))
    with Library.open() as library:
        library.start_job(title="m")
        modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "data").iterdir()}

    assert modes["library.sqlite"] == 0o600
    assert set(modes.values()) == {0o600}
