"""Programs of records in the database: their hashes and features."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from fleet.library.schema import insert_into, record_programs
from fleet.library.values import RecordProgram


def add(connection: sa.Connection, by_record: Mapping[int, RecordProgram]) -> None:
    """Store programs by record id. They replace features of another version."""
    if not by_record:
        return
    values = [
        {
            "record_id": record_id,
            "program_hash": program.program_hash,
            "feature_version": program.feature_version,
            "stores": program.stores,
        }
        for record_id, program in by_record.items()
    ]
    insert = insert_into(connection, record_programs)
    newer = {name: insert.excluded[name] for name in ("program_hash", "feature_version", "stores")}
    connection.execute(insert.on_conflict_do_update(index_elements=["record_id"], set_=newer), values)
