"""Migrates a library between schema versions by the Alembic scripts in this folder.

A version is a file: `revision` is its number, `down_revision` the one before. To add one: the file, the tables in
`fleet.library.schema`, and `SCHEMA_VERSION` there. Add tables rather than columns: a process with read access only
reads a library of an older version as it is, so today's queries must still find all of its data.

The version of a library is in its own table, not in one of Alembic's: programs that know nothing of Alembic read it,
too, and opening a library of today's version must not import it (0.2 s).
"""

from __future__ import annotations

import threading
from pathlib import Path

import sqlalchemy as sa

from fleet.library.schema import library

_one_at_a_time = threading.Lock()
"""Alembic's scripts speak to whatever database `op` means in this process."""


def migrate(connection: sa.Connection, found: int, wanted: int) -> None:
    """Migrate the tables from version `found` to `wanted`, up or down, within the connection's write transaction.

    Version 0 is an empty database, to which the caller adds the row with its version.
    """
    from alembic.migration import MigrationContext
    from alembic.operations import Operations
    from alembic.script import ScriptDirectory

    folder = Path(__file__).parent
    scripts = ScriptDirectory(folder, version_locations=[folder])
    newest, oldest = max(found, wanted), min(found, wanted)
    steps = list(scripts.iterate_revisions(str(newest), str(oldest or "base")))  # newest first, without the oldest
    with _one_at_a_time, Operations.context(MigrationContext.configure(connection)):
        for step in reversed(steps) if wanted > found else steps:
            (step.module.upgrade if wanted > found else step.module.downgrade)()
    connection.execute(library.update().values(schema_version=wanted))
