"""Data for the cost model in a library: features of programs, facts about devices, snapshots of the cost model.

    library.memory.programs(workload, scope, FEATURE_VERSION)

A library of a version before 3 that may only be read has nothing of it, and says so with empty answers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime

import sqlalchemy as sa

from fleet.domain.keys import canonical_target
from fleet.domain.measuring import NO_VERDICT, ErrorKind
from fleet.domain.observation import Observation
from fleet.domain.operators import workload_kind
from fleet.domain.scope import ANY_SCOPE, ScopeFilter
from fleet.library import counting, programs, records, static_times
from fleet.library import engine as engines
from fleet.library import snapshots as kept
from fleet.library.election import Term, stand
from fleet.library.records import Selection
from fleet.library.rows import args_of
from fleet.library.schema import device_models, has_table, insert_into, record_programs, workloads
from fleet.library.schema import jobs as jobs_table
from fleet.library.schema import records as table
from fleet.library.static_times import StaticTimes
from fleet.library.values import Record, RecordKind, RecordProgram, StoredSnapshot

_SAYS_NOTHING = sorted(
    NO_VERDICT | {ErrorKind.BUILD_FAILED, ErrorKind.BUILD_TIMEOUT, ErrorKind.BAD_ARGUMENTS, ErrorKind.WRONG_OUTPUT}
)
"""Such records tell nothing about how fast their program is."""

_REFUTED = (ErrorKind.WRONG_OUTPUT.value, ErrorKind.TIME_NOT_PROVEN.value)


class Memory:
    """Access to one library's cost model data. Raises LibraryError or DiskFull if the database fails."""

    def __init__(self, engine: sa.Engine) -> None:
        """Use `Library.memory`."""
        self._engine = engine

    def programs(
        self, workload: str, within: ScopeFilter = ANY_SCOPE, *, feature_version: str
    ) -> dict[str, RecordProgram]:
        """Return the stored features of a workload's scheduled programs, by the digest of their trace."""
        chosen = Selection(workloads=[workload], within=within)
        query = (
            sa.select(table.c.trace_digest, *_program_columns())
            .select_from(_with_programs())
            .where(record_programs.c.feature_version == feature_version)
        )
        with engines.reading(self._engine) as connection:
            if not _is_kept(connection):
                return {}
            found = connection.execute(query.where(*chosen.clauses(connection))).mappings().all()
        return {row["trace_digest"]: _program_of(row) for row in found}

    def observations_after(
        self,
        record_id: int,
        *,
        workloads: Sequence[str],
        within: ScopeFilter,
        except_job: str,
        feature_version: str,
    ) -> list[Observation]:
        """Return the trials stored after a record by other jobs, oldest first, with packed features where known."""
        chosen = Selection(workloads=workloads, within=within, kinds=[RecordKind.CANDIDATE])
        is_others = sa.or_(jobs_table.c.name.is_(None), jobs_table.c.name != except_job)
        query = records.joined().where(table.c.id > record_id, is_others, _tells()).order_by(table.c.id)
        with engines.reading(self._engine) as connection:
            found = records.fetch(connection, query.where(*chosen.clauses(connection)))
            if not found or not _is_kept(connection):
                return [record.observation() for record in found]
            known = sa.select(record_programs.c.record_id, *_program_columns()).where(
                record_programs.c.record_id.in_([record.id for record in found]),
                record_programs.c.feature_version == feature_version,
            )
            by_id = {row["record_id"]: _program_of(row) for row in connection.execute(known).mappings()}
        return [record.observation(by_id.get(record.id)) for record in found]

    def refuted_after(
        self, record_id: int, *, workloads: Sequence[str], within: ScopeFilter
    ) -> dict[str, frozenset[str]]:
        """Return the traces of trials stored after a record that turned out wrong or unproven, by workload."""
        chosen = Selection(workloads=workloads, within=within, kinds=[RecordKind.CANDIDATE])
        query = records.joined().where(table.c.id > record_id, table.c.error.in_(_REFUTED))
        found: dict[str, set[str]] = {}
        with engines.reading(self._engine) as connection:
            for record in records.fetch(connection, query.where(*chosen.clauses(connection))):
                found.setdefault(record.workload, set()).add(record.trace_json)
        return {workload: frozenset(traces) for workload, traces in found.items()}

    def without_features(
        self,
        feature_version: str,
        *,
        workload: str | None = None,
        within: ScopeFilter = ANY_SCOPE,
        limit: int,
    ) -> list[Record]:
        """Return the newest usable records without features of this version, oldest first."""
        chosen = Selection(workloads=None if workload is None else [workload], within=within)
        has_none = ~sa.exists().where(
            record_programs.c.record_id == table.c.id, record_programs.c.feature_version == feature_version
        )
        query = records.joined().where(has_none, _tells(), table.c.trace_digest != "")
        with engines.reading(self._engine) as connection:
            if not _is_kept(connection):
                return []
            query = query.where(*chosen.clauses(connection))
            return records.fetch(connection, query.order_by(table.c.id.desc()).limit(limit))[::-1]

    def add_programs(self, by_record: Mapping[int, RecordProgram]) -> None:
        """Store features of records' programs, by record id."""
        with engines.writing(self._engine) as connection:
            programs.add(connection, by_record)

    def samples(self, feature_version: str, *, limit: int) -> list[Observation]:
        """Return training samples of a cost model: one per candidate and scope, from the newest `limit` records, with
        packed features.

        Simulated and emulated devices are left out: their times are no board's.
        """
        with engines.reading(self._engine) as connection:
            if not _is_kept(connection):
                return []
            found = connection.execute(_samples(connection, feature_version, limit)).mappings().all()
            facts = _read_facts(connection)
        return [_sample_of(dict(row)) for row in found if _is_board(row["device_model"], facts)]

    def count_samples(self, feature_version: str, *, after: int = 0) -> int:
        """Return the number of records with features whose ids exceed `after`."""
        query = sa.select(sa.func.count()).where(
            record_programs.c.record_id > after, record_programs.c.feature_version == feature_version
        )
        with engines.reading(self._engine) as connection:
            return connection.scalar(query) or 0 if _is_kept(connection) else 0

    def newest_sample(self, feature_version: str) -> int:
        """Return the largest id of a record that has features; 0 if there is none."""
        query = sa.select(sa.func.max(record_programs.c.record_id)).where(
            record_programs.c.feature_version == feature_version
        )
        with engines.reading(self._engine) as connection:
            return connection.scalar(query) or 0 if _is_kept(connection) else 0

    def newest_snapshot(self, feature_version: str, *, published_only: bool = True) -> StoredSnapshot | None:
        """Return the newest snapshot that predicts from these features; None if there is none."""
        with engines.reading(self._engine) as connection:
            if not _is_kept(connection):
                return None
            return kept.newest(connection, feature_version, published_only=published_only)

    def snapshots(self) -> list[StoredSnapshot]:
        """Return all snapshots, oldest first."""
        with engines.reading(self._engine) as connection:
            return kept.every(connection) if _is_kept(connection) else []

    def static_times(self, targets: Sequence[str]) -> list[StaticTimes]:
        """Return the times of static schedules and of the best ones, of all workloads of some targets (JSON)."""
        with engines.reading(self._engine) as connection:
            return static_times.read(connection, [canonical_target(target) for target in targets])

    def watch(self) -> AbstractContextManager[kept.Watch]:
        """Start watching for new snapshots."""
        return kept.watching(self._engine)

    def stand(self, holder: str, *, lease_sec: float) -> Term | None:
        """Request the right to train: see `fleet.library.election`."""
        with engines.reading(self._engine) as connection:
            if not _is_kept(connection):
                return None
        return stand(self._engine, holder, lease_sec)

    def note_device(self, device_model: str, facts: Mapping[str, object]) -> None:
        """Store the facts about a device model, JSON-ready, shared by all of its records. New facts replace old
        ones.
        """
        row = {"name": device_model, "facts": dict(facts), "seen_at": datetime.now(UTC)}
        with engines.writing(self._engine) as connection:
            insert = insert_into(connection, device_models).values(row)
            newer = {name: insert.excluded[name] for name in ("facts", "seen_at")}
            connection.execute(insert.on_conflict_do_update(index_elements=["name"], set_=newer))

    def device_facts(self) -> dict[str, Mapping[str, object]]:
        """Return the stored facts, by device model."""
        with engines.reading(self._engine) as connection:
            return _read_facts(connection) if _is_kept(connection) else {}


def _is_kept(connection: sa.Connection) -> bool:
    return has_table(connection, record_programs)


def _samples(connection: sa.Connection, feature_version: str, limit: int) -> sa.Select[tuple[object, ...]]:
    """Select samples, oldest first. The features are most of a sample: they are read of chosen records only."""
    newest = (
        sa.select(*counting.columns(connection))
        .select_from(_with_programs())
        .where(*Selection().clauses(connection), record_programs.c.feature_version == feature_version, _tells())
        .order_by(table.c.id.desc())
        .limit(limit)
    )
    chosen = counting.choose(newest.subquery())
    of_record = (table.c[name] for name in ("target_key", "device_model", "median_sec"))
    of_workload = (workloads.c.shash.label("workload"), *(workloads.c[name] for name in ("flop", "name", "args")))
    return (
        sa.select(
            chosen.c.id.label("record_id"), *of_workload, *of_record, chosen.c.is_disturbed, record_programs.c.stores
        )
        .select_from(_with_programs().join(chosen, chosen.c.id == table.c.id))
        .order_by(chosen.c.id)
    )


def _with_programs() -> sa.FromClause:
    on = record_programs.c.record_id == table.c.id
    return table.join(workloads).join(record_programs, on).outerjoin(jobs_table)


def _program_columns() -> list[sa.ColumnElement[object]]:
    return [record_programs.c[name] for name in ("program_hash", "feature_version", "stores")]


def _tells() -> sa.ColumnElement[bool]:
    tells = sa.or_(table.c.error.is_(None), table.c.error.not_in(_SAYS_NOTHING))
    return tells & sa.or_(table.c.checked.is_(None), table.c.checked.is_(True))


def _program_of(row: sa.RowMapping) -> RecordProgram:
    return RecordProgram(program_hash=row["program_hash"], feature_version=row["feature_version"], stores=row["stores"])


def _sample_of(row: Mapping[str, object]) -> Observation:
    names = ("record_id", "workload", "target_key", "device_model", "stores", "flop")
    run_sec = row["median_sec"]
    return Observation(
        **{name: row[name] for name in names},  # type: ignore[arg-type]
        kind=workload_kind(row["name"], args_of(row["args"])),  # type: ignore[arg-type]
        run_sec=run_sec if isinstance(run_sec, float) else math.inf,
        is_disturbed=bool(row["is_disturbed"]),
    )


def _read_facts(connection: sa.Connection) -> dict[str, Mapping[str, object]]:
    found = connection.execute(sa.select(device_models.c.name, device_models.c.facts))
    return {row.name: row.facts for row in found}


def _is_board(device_model: str, facts: Mapping[str, Mapping[str, object]]) -> bool:
    """Tell whether times are of real hardware. Libraries older than version 3 have only the model's name."""
    if device_model in facts:
        return not facts[device_model].get("is_simulated", False)
    return not (device_model.startswith("emulated ") or device_model.endswith(" (simulated)"))
