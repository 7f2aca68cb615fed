"""Environments of records, and the newest one of each device, in the database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

import sqlalchemy as sa

from fleet.domain.environment import environment_digest, has_facts, named_facts
from fleet.library.schema import device_environments, environments, has_table, insert_into, record_environments, records
from fleet.library.values import Record


def are_kept(connection: sa.Connection) -> bool:
    """Tell whether the library can store environments. A read-only library of an older version cannot."""
    return has_table(connection, record_environments)


def add(connection: sa.Connection, by_record: Mapping[int, tuple[Record, Mapping[str, object]]]) -> None:
    """Store records' environments, by record id, oldest first."""
    if not by_record:
        return
    distinct = {id(found): found for _, found in by_record.values()}
    digests = {key: environment_digest(found) for key, found in distinct.items()}
    facts = {digests[key]: found for key, found in distinct.items()}
    ids = _ids(connection, facts)
    if new := sorted(facts.keys() - ids.keys()):  # sorted: two inserts in different order would deadlock
        rows = [{"digest": digest, "facts": dict(facts[digest])} for digest in new]
        connection.execute(insert_into(connection, environments).on_conflict_do_nothing(), rows)
        ids = _ids(connection, facts)
    numbers = {record_id: ids[digests[id(found)]] for record_id, (_, found) in by_record.items()}
    links = [{"record_id": record_id, "environment_id": number} for record_id, number in numbers.items()]
    connection.execute(insert_into(connection, record_environments).on_conflict_do_nothing(), links)
    _note_devices(connection, [(record, numbers[record_id]) for record_id, (record, _) in by_record.items()])


def of_models(connection: sa.Connection) -> dict[str, frozenset[str]]:
    """Return the digests of the environments in which each device model's devices measured last."""
    if not are_kept(connection):
        return {}
    query = sa.select(device_environments.c.device_model, environments.c.digest).join_from(
        device_environments, environments
    )
    found: dict[str, set[str]] = {}
    for row in connection.execute(query):
        found.setdefault(row.device_model, set()).add(row.digest)
    return {model: frozenset(digests) for model, digests in found.items()}


def are_of_facts(connection: sa.Connection, wanted: Sequence[tuple[str, str]]) -> sa.ColumnElement[bool]:
    """Return an SQL condition for records of environments with these facts, see `fleet.domain.environment`."""
    if not are_kept(connection):
        return sa.false()
    query = sa.select(environments.c.id, environments.c.facts)
    fitting = [row.id for row in connection.execute(query) if has_facts(row.facts, wanted)]
    links = record_environments.c
    return sa.exists().where(links.record_id == records.c.id, links.environment_id.in_(fitting))


def known_facts(connection: sa.Connection) -> list[str]:
    """Return the names of the facts of all environments, sorted."""
    if not are_kept(connection):
        return []
    found = connection.scalars(sa.select(environments.c.facts))
    return sorted({name for facts in found for name in named_facts(facts)})


def _ids(connection: sa.Connection, digests: Iterable[str]) -> dict[str, int]:
    query = sa.select(environments.c.digest, environments.c.id).where(environments.c.digest.in_(sorted(digests)))
    return {row.digest: row.id for row in connection.execute(query)}


def _note_devices(connection: sa.Connection, of_records: Sequence[tuple[Record, int]]) -> None:
    newest = {(record.scope.device_model, record.device_name): number for record, number in of_records}
    rows = [
        {
            "device_model": model,
            "device_name": name,
            "environment_id": newest[model, name],
            "seen_at": datetime.now(UTC),
        }
        for model, name in sorted(newest)
    ]
    insert = insert_into(connection, device_environments)
    newer = {name: insert.excluded[name] for name in ("environment_id", "seen_at")}
    connection.execute(insert.on_conflict_do_update(index_elements=["device_model", "device_name"], set_=newer), rows)
