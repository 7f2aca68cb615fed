"""The newest jobs of a library for shell completion: read directly and quickly.

Opening a library migrates an older one, ends jobs of vanished processes, and imports for half a second. Completion must
do none of this. The columns are those that every version has.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

_QUERY = "SELECT name, title FROM jobs ORDER BY id DESC LIMIT {}"
_BUSY_SEC = 0.2


def newest_jobs(url_or_path: str, limit: int) -> list[tuple[str, str]]:
    """Return names and titles, newest first; empty without a library.

    Raises:
        Exception: whatever the database says.
    """
    if "://" in url_or_path and not url_or_path.startswith("sqlite:"):
        return _of_postgresql(url_or_path, _QUERY.format(limit))
    path = Path(url_or_path.removeprefix("sqlite:///")).expanduser().absolute()
    if not path.is_file():
        return []
    # If no process has it open, this creates not even SQLite's own files; otherwise they exist already.
    how = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "mode=ro&immutable=1"
    with closing(sqlite3.connect(f"{path.as_uri()}?{how}", uri=True, timeout=_BUSY_SEC)) as connection:
        return _pairs(connection.execute(_QUERY.format(limit)).fetchall())


def _of_postgresql(url: str, query: str) -> list[tuple[str, str]]:
    import psycopg

    address = "postgresql://" + url.partition("://")[2]
    with psycopg.connect(address, options="-c default_transaction_read_only=on") as connection:
        return _pairs(connection.execute(query.encode()).fetchall())


def _pairs(rows: Iterable[tuple[object, ...]]) -> list[tuple[str, str]]:
    return [(str(name), str(title)) for name, title in rows]
