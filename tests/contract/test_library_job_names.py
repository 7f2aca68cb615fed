"""The names of a library's jobs for a shell that completes them, on SQLite and on PostgreSQL."""

from __future__ import annotations

import platform
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fleet.cli.job_names import newest_jobs
from fleet.library import Library, schema
from tests.contract.test_library_migrations import connected, make_library, version_of


def make_with_job(url: str, version: int) -> str:
    """Make a library of a version with a running job whose process is gone; return the job's name."""
    make_library(url, version)
    now = datetime.now(UTC)
    row = {
        "name": "jobs/20261101-old",
        "title": "squeezenet",
        "conditions": {},
        "state": "running",
        **dict.fromkeys(("model_digest", "tuner", "message", "holder"), ""),
        "host": platform.node(),
        "pid": 2**22 + 1,
        "process_started_sec": 0.0,
        "trials_total": 8,
        "started_at": now,
        "touched_at": now,
    }
    with connected(url) as connection:
        connection.execute(schema.jobs.insert(), row)
    if "://" not in url:
        with closing(sqlite3.connect(url)) as raw:
            raw.execute("PRAGMA journal_mode = WAL")
    return "jobs/20261101-old"


def contents(folder: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in folder.iterdir()}


@pytest.mark.parametrize("version", [schema.OLDEST_VERSION, schema.SCHEMA_VERSION])
def test_a_library_of_any_version_stays_as_it_is(url: str, version: int) -> None:
    """It is not brought to today's, its job is not ended, and of SQLite no file appears or changes."""
    name = make_with_job(url, version)
    before = {} if "://" in url else contents(Path(url).parent)

    assert [(name, "squeezenet")] == newest_jobs(url, 9)

    assert version == version_of(url)
    assert before == ({} if "://" in url else contents(Path(url).parent))


def test_the_newest_come_first_while_others_write(url: str) -> None:
    """Jobs in SQLite's log are included; the limit holds."""
    with Library.open(url) as library:
        names = [library.start_job(title="squeezenet").name for _ in range(3)]

        assert [(name, "squeezenet") for name in names[:0:-1]] == newest_jobs(url, 2)


def test_where_there_is_no_library_none_is_made(tmp_path: Path) -> None:
    """The folder of a missing library is not created either."""
    assert [] == newest_jobs(str(tmp_path / "none" / "library.sqlite"), 9)
    assert [] == newest_jobs(f"sqlite:///{tmp_path}/library.sqlite", 9)
    assert {} == contents(tmp_path)
