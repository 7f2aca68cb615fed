"""Artifacts of the best schedules in the database, so that a later run can tell changed code from a changed board."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import sqlalchemy as sa

from fleet.artifacts.artifact import Artifact, facts_from_json
from fleet.base.digests import digest_of
from fleet.errors import ArtifactRefused
from fleet.library.schema import has_table, insert_into, record_artifacts, records

_LEVEL = 1
"""Compression level of zlib: a third of the size for 1 ms."""

_SCOPE = ("workload_id", "target_key", "device_model", "tvm_version")


def keep(connection: sa.Connection, by_record: Mapping[int, Artifact], best: Collection[int]) -> None:
    """Store artifacts by record id.

    Args:
        best: ids of the best records of their workloads. The artifacts of other records of these are removed.

    Raises:
        OSError: a file cannot be read.
    """
    _forget_others(connection, best)
    rows = [
        {
            "record_id": record_id,
            "facts": artifact.facts_json(),
            "content": zlib.compress(artifact.path.read_bytes(), _LEVEL),
        }
        for record_id, artifact in sorted(by_record.items())
    ]
    if rows:
        connection.execute(insert_into(connection, record_artifacts).on_conflict_do_nothing(), rows)


def write(connection: sa.Connection, record_ids: Iterable[int], folder: Path) -> dict[int, Artifact]:
    """Write the kept artifacts of records into a folder, and return them by record id. Damaged ones are left out.

    Raises:
        OSError: a file cannot be written.
    """
    if not has_table(connection, record_artifacts):
        return {}
    query = sa.select(record_artifacts).where(record_artifacts.c.record_id.in_(sorted(set(record_ids))))
    found = ((row.record_id, _written(row.facts, row.content, folder)) for row in connection.execute(query))
    return {record_id: artifact for record_id, artifact in found if artifact is not None}


def _written(facts: str, packed: bytes, folder: Path) -> Artifact | None:
    try:
        content, known = zlib.decompress(packed), facts_from_json(facts)
    except (zlib.error, ArtifactRefused):
        return None
    digest = digest_of(content)
    path = folder / f"{digest.removeprefix('sha256:')}.so"
    path.write_bytes(content)
    return Artifact(path=path, digest=digest, **known)


def _forget_others(connection: sa.Connection, best: Collection[int]) -> None:
    chosen = records.alias("best")
    is_beside = sa.exists().where(
        chosen.c.id.in_(sorted(best)), *(chosen.c[name] == records.c[name] for name in _SCOPE)
    )
    others = sa.select(records.c.id).where(is_beside, records.c.id.not_in(sorted(best)))
    connection.execute(record_artifacts.delete().where(record_artifacts.c.record_id.in_(others)))
