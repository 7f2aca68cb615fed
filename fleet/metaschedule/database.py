"""`FleetDatabase`: the library as a MetaSchedule database.

    with FleetDatabase("records.sqlite", target, "Cortex-A72 x4"):
        executable = ms.relax_integration.compile_relax(...)

TVM's own databases look a record up by its program alone, so a schedule tuned for one board is applied on another.
This one returns only records of the same target, device model and TVM version, without known wrong output.

It matches programs as `fleet tune` cuts them out of a model; stock lowering cuts them differently. For a whole model,
compile with `relax_pipeline=fleet.pipeline(target)` instead.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
import os
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.database import Database, PyDatabase, Workload
from tvm.target import Target

from fleet.domain.measuring import ErrorKind
from fleet.domain.operators import program_name
from fleet.domain.program_check import check_program
from fleet.domain.scope import RecordScope, ScopeFilter
from fleet.domain.trace_check import check_trace
from fleet.errors import InvalidRequest, NotFound
from fleet.library import Library, Record, StoredWorkload, canonical_target
from fleet.library.proof_words import unproven_line
from fleet.workloads.traces import tuning_record
from fleet.workloads.workload import workload_of

if TYPE_CHECKING:
    from tvm.ir import IRModule
    from tvm.s_tir.meta_schedule.database import TuningRecord

logger = logging.getLogger(__name__)

_FAILED_SEC = 1e9
_NO_DEVICE_MODEL = "name the device model that is measured on, FleetDatabase(..., device_model=...), to store records"


@dataclass(slots=True)
class Queries:
    """Counters of the lookups of a compilation."""

    asked: int = 0
    found: int = 0
    unchecked: int = 0
    unproven: int = 0

    def tell(self) -> None:
        """Warn if less than half of the programs were found, or if schedules are unchecked or unproven."""
        if self.found * 2 < self.asked:
            warnings.warn(
                f"the library has records for {self.found} of {self.asked} programs of this module: stock lowering "
                "cuts a model otherwise than fleet tune; compile with relax_pipeline=fleet.pipeline(target) instead",
                stacklevel=4,
            )
        if self.unchecked:
            warnings.warn(
                f"{self.unchecked} of {self.found} schedules were never checked against the unscheduled program; "
                "FleetDatabase(..., checked=True) leaves them out",
                stacklevel=4,
            )
        if line := unproven_line(self.unproven, self.found):
            logger.warning(line)


@derived_object
class FleetDatabase(PyDatabase):  # type: ignore[misc]
    """Reads and writes a library."""

    def __init__(
        self,
        library: Library | str | os.PathLike[str] | None = None,
        target: Target | str | dict[str, object] | None = None,
        device_model: str | None = None,
        *,
        tvm_version: str | None = None,
        checked: bool = False,
    ) -> None:
        """Use an open library, or open one.

        Args:
            library: an open library, which the caller closes; or an argument of `Library.open`: a file, a URL, None for
                the user's own. That library stays open until `close`.
            target: target of the records; None for the compilation's target. Required for tuning.
            device_model: hardware of the records; None for any, without storing.
            tvm_version: TVM version of the records; None for the installed one, "" for any.
            checked: leave out candidates with unchecked output, such as imported ones.
        """
        super().__init__()
        self._library = library if isinstance(library, Library) else Library.open(library)
        self._owns_library = self._library is not library
        self._target = None if target is None else Target(target)
        self._device_model = device_model
        self._tvm_version = importlib.metadata.version("apache-tvm") if tvm_version is None else tvm_version
        self._checked_only = checked
        self._queries = Queries()
        self._workloads: dict[str, Workload] = {}
        """TVM's workloads by hash, so that records of one share it."""

    def close(self) -> None:
        """Close the library if it was opened here; idempotent."""
        if self._owns_library:
            self._library.close()

    def has_workload(self, mod: IRModule) -> bool:
        """Tell whether the library has this program."""
        try:
            self._library.workload(_shash(Workload(mod)))
        except NotFound:
            return False
        return True

    def commit_workload(self, mod: IRModule) -> Workload:
        """Add the program unless it is there.

        Raises:
            InvalidRequest: no device model to store records under; better to fail now than after the first round.
        """
        if not self._device_model:
            raise InvalidRequest(_NO_DEVICE_MODEL)
        workload = Workload(mod)
        shash = _shash(workload)
        if shash not in self._workloads:
            self._library.add_workload(_stored(workload, shash))
            self._workloads[shash] = workload
        return self._workloads[shash]

    def commit_tuning_record(self, record: TuningRecord) -> None:
        """Store a record. A record without times is stored as failed; MetaSchedule gives no reason.

        Raises:
            InvalidRequest: no device model to store it under, or a step that is not on the allowlist.
        """
        if not self._device_model:
            raise InvalidRequest(_NO_DEVICE_MODEL)
        trace_json = json.dumps(record.as_json()[0], separators=(",", ":"))
        check_trace(trace_json)
        self.commit_workload(record.workload.mod)
        target = record.target or self._target
        run_secs = _run_secs(record)
        self._library.add_record(
            Record(
                workload=_shash(record.workload),
                scope=RecordScope(
                    target_json=str(target) if target else "",
                    device_model=self._device_model,
                    tvm_version=self._tvm_version,
                ),
                trace_json=trace_json,
                provenance={"tuner": "MetaSchedule"},
                run_secs=run_secs,
                error=None if run_secs else ErrorKind.RUN_FAILED,
                error_message="" if run_secs else "MetaSchedule noted no time, and not why",
            )
        )

    def get_top_k(self, workload: Workload, top_k: int) -> list[TuningRecord]:
        """Return the fastest candidates of a workload."""
        found = self._best(workload, self._target or Target.current(allow_none=True), top_k)
        return _tuning_records(found, workload)

    def get_all_tuning_records(self) -> list[TuningRecord]:
        """Return all records with times for this target and device model."""
        found: list[TuningRecord] = []
        for record in self._records():
            known = self._workload_of(record.workload)
            found += [] if known is None else _tuning_records([record], known)
        return found

    def __len__(self) -> int:
        return len(self._records())

    def query_tuning_record(
        self, mod: IRModule, target: Target, workload_name: str | None = None
    ) -> TuningRecord | None:
        """Return the fastest candidate of a program for a target, or None. A FleetDatabase for another target has none.

        Candidates with proven times are preferred, then those with checked output, then the others.
        """
        if self._target is not None and not _is_same(self._target, target):
            self._queries.asked += 1
            return None
        workload = Workload(mod)
        proven = self._best(workload, target, 1, checked_only=True, proven_only=True)
        checked = proven or self._best(workload, target, 1, checked_only=True)
        found = checked or self._best(workload, target, 1)
        self._queries.asked += 1
        self._queries.found += bool(found)
        self._queries.unchecked += bool(found) and not checked
        self._queries.unproven += any(record.needs_proof for record in found)
        return next(iter(_tuning_records(found, workload)), None)

    def tell(self) -> None:
        """Warn if no program was found, or if schedules are unchecked or unproven; reset the counters."""
        self._queries.tell()
        self._queries = Queries()

    def describe(self) -> str:
        """Return the repr: library, target, device model and TVM version."""
        parts = {"target": self._target, "device_model": self._device_model, "tvm_version": self._tvm_version or None}
        given = "".join(f", {name}={str(value)!r}" for name, value in parts.items() if value is not None)
        return f"FleetDatabase({self._library.url!r}{given})"

    def _best(
        self,
        workload: Workload,
        target: Target | None,
        k: int,
        *,
        checked_only: bool = False,
        proven_only: bool = False,
    ) -> list[Record]:
        return self._library.best(
            _shash(workload),
            self._within(target),
            k=k,
            checked_only=checked_only or self._checked_only,
            proven_only=proven_only,
        )

    def _records(self) -> list[Record]:
        return self._library.records(within=self._within(self._target), with_errors=False)

    def _within(self, target: Target | None) -> ScopeFilter:
        return ScopeFilter(
            target_json=str(target) if target else None,
            device_model=self._device_model,
            tvm_version=self._tvm_version or None,
        )

    def _workload_of(self, shash: str) -> Workload | None:
        """Return TVM's object of a workload, or None with a warning if its program is not on the allowlist."""
        if shash not in self._workloads:
            stored = self._library.workload(shash)
            try:
                check_program(stored.mod_json)
            except InvalidRequest as error:
                logger.warning("workload is refused", extra={"workload": stored.name, "error": str(error)})
                return None
            self._workloads[shash] = Workload(tvm.ir.load_json(stored.mod_json))
        return self._workloads[shash]


def _described(database: FleetDatabase) -> str:
    return database.describe()


def _leave(database: FleetDatabase, *raised: object) -> None:
    """End a `with` block, and issue the warnings of its lookups unless it raised."""
    Database.__exit__(database, *raised)
    if raised[0] is None:
        database.tell()


# TVM's decorator forwards only a fixed set of methods, without these two.
FleetDatabase.__exit__ = _leave
FleetDatabase.__repr__ = _described  # type: ignore[assignment, method-assign]


def _shash(workload: Workload) -> str:
    return str(workload.as_json()[0])


def _stored(workload: Workload, shash: str) -> StoredWorkload:
    facts = workload_of(workload.mod, name="main")
    mod_json = tvm.ir.save_json(workload.mod)
    name = f"main_{program_name(mod_json, facts.args)}"
    return StoredWorkload(shash=shash, name=name, mod_json=mod_json, flop=facts.flop, args=facts.args)


def _is_same(one: Target, other: Target) -> bool:
    return canonical_target(str(one)) == canonical_target(str(other))


def _run_secs(record: TuningRecord) -> tuple[float, ...]:
    """Return a record's times [s]; empty for a failure, which MetaSchedule stores as 1e10 s."""
    run_secs = tuple(float(getattr(sec, "value", sec)) for sec in record.run_secs or ())
    return run_secs if run_secs and max(run_secs) < _FAILED_SEC else ()


def _tuning_records(records: list[Record], workload: Workload) -> list[TuningRecord]:
    """Convert records to TVM's; skip those whose trace this TVM cannot read."""
    found = []
    for record in records:
        target = json.loads(canonical_target(record.scope.target_json) or "null")
        try:
            found.append(tuning_record(record.trace_json, record.run_secs, target, workload))
        except Exception as error:  # noqa: BLE001 - TVM's parser raises anything; other records are still useful
            logger.warning("record cannot be read by this TVM", extra={"record": record.id, "error": str(error)[-300:]})
    return found
