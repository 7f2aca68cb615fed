"""`FleetDatabase`: the library as a MetaSchedule database.

    with FleetDatabase(library, target, "Cortex-A72 x4"):
        executable = ms.relax_integration.compile_relax(...)

TVM's own databases look a record up by its program alone, so a schedule tuned for one board is applied on another.
This one gives only records of the same target, device model and TVM version, and none whose output was found wrong.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
from typing import Any

import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.database import PyDatabase, TuningRecord, Workload
from tvm.target import Target

from fleet.errors import InvalidRequest, NotFound
from fleet.library import Library, NewRecord, Record, canonical_target
from fleet.library import Workload as StoredWorkload
from fleet.measuring import ErrorKind
from fleet.workloads.workload import workload_of

logger = logging.getLogger(__name__)

_NO_DEVICE_MODEL = "name the device model that is measured on, FleetDatabase(..., device_model=...), to store records"


@derived_object
class FleetDatabase(PyDatabase):  # type: ignore[misc]
    """Reads and writes a library."""

    def __init__(
        self,
        library: Library,
        target: Target | str | dict[str, Any] | None = None,
        device_model: str | None = None,
        *,
        tvm_version: str | None = None,
        checked_only: bool = False,
    ) -> None:
        """Use an open library.

        Args:
            target: for which records are looked up; None takes the target that is being compiled for. Needed to tune.
            device_model: on which they were measured; None takes all, and can store nothing.
            tvm_version: with which they were measured; None is the installed one, "" takes all.
            checked_only: leave out candidates whose output was not compared with the unscheduled program.
        """
        super().__init__()
        self._library = library
        self._target = None if target is None else Target(target)
        self._device_model = device_model
        self._tvm_version = importlib.metadata.version("apache-tvm") if tvm_version is None else tvm_version
        self._wanted_version = self._tvm_version or None
        self._checked_only = checked_only
        self._workloads: dict[str, Any] = {}
        """TVM's workloads by hash, so that records of one share it."""

    def has_workload(self, mod: Any) -> bool:
        """Tell whether the library has this program."""
        try:
            self._library.workload(_shash(Workload(mod)))
        except NotFound:
            return False
        return True

    def commit_workload(self, mod: Any) -> Any:
        """Add the program unless it is there.

        Raises:
            InvalidRequest: no device model to store records under; better now than after the first round.
        """
        if not self._device_model:
            raise InvalidRequest(_NO_DEVICE_MODEL)
        workload = Workload(mod)
        shash = _shash(workload)
        if shash not in self._workloads:
            self._library.add_workload(_stored(workload, shash))
            self._workloads[shash] = workload
        return self._workloads[shash]

    def commit_tuning_record(self, record: Any) -> None:
        """Store a record. One without times is stored as failed; MetaSchedule does not say why.

        Raises:
            InvalidRequest: no device model to store it under.
        """
        if not self._device_model:
            raise InvalidRequest(_NO_DEVICE_MODEL)
        self.commit_workload(record.workload.mod)
        target = record.target or self._target
        self._library.add_record(
            NewRecord(
                workload=_shash(record.workload),
                target_json=str(target) if target else "",
                device_model=self._device_model,
                tvm_version=self._tvm_version,
                trace_json=json.dumps(record.as_json()[0], separators=(",", ":")),
                provenance={"tuner": "MetaSchedule"},
                **_verdict(record),
            )
        )

    def get_top_k(self, workload: Any, top_k: int) -> list[Any]:
        """The fastest candidates of a workload."""
        return self._best(workload, self._target or Target.current(allow_none=True), top_k)

    def get_all_tuning_records(self) -> list[Any]:
        """All records with times, of this target and device model."""
        found: list[Any] = []
        for record in self._records():
            known = self._workload_of(record.workload)
            found += [] if known is None else _tuning_records([record], known)
        return found

    def __len__(self) -> int:
        return len(self._records())

    def query_tuning_record(self, mod: Any, target: Any, workload_name: str | None = None) -> Any:
        """The fastest candidate of a program for a target, or None. A FleetDatabase for another target has none.

        One whose numbers were checked comes before a faster one that nobody compared with anything.
        """
        if self._target is not None and not _is_same(self._target, target):
            return None
        workload = Workload(mod)
        found = self._best(workload, target, 1, checked_only=True) or self._best(workload, target, 1)
        return found[0] if found else None

    def _best(self, workload: Any, target: Any, k: int, *, checked_only: bool = False) -> list[Any]:
        found = self._library.best(
            _shash(workload),
            target_json=str(target) if target else None,
            device_model=self._device_model,
            tvm_version=self._wanted_version,
            k=k,
            checked_only=checked_only or self._checked_only,
        )
        return _tuning_records(found, workload)

    def _records(self) -> list[Record]:
        return self._library.records(
            target_json=str(self._target) if self._target else None,
            device_model=self._device_model,
            tvm_version=self._wanted_version,
            with_errors=False,
        )

    def _workload_of(self, shash: str) -> Any:
        if shash not in self._workloads:
            mod_json = self._library.workload(shash).mod_json
            self._workloads[shash] = Workload(tvm.ir.load_json(mod_json))
        return self._workloads[shash]


def _shash(workload: Any) -> str:
    return str(workload.as_json()[0])


def _stored(workload: Any, shash: str) -> StoredWorkload:
    facts = workload_of(workload.mod, name="main")
    mod_json = tvm.ir.save_json(workload.mod)
    return StoredWorkload(shash=shash, name=f"main-{shash}", mod_json=mod_json, flop=facts.flop, args=facts.args)


def _is_same(one: Any, other: Any) -> bool:
    return canonical_target(str(one)) == canonical_target(str(other))


def _verdict(record: Any) -> dict[str, Any]:
    run_secs = tuple(float(getattr(sec, "value", sec)) for sec in record.run_secs or ())
    if run_secs and max(run_secs) < 1e9:  # 1e10 s is how TVM notes a failure
        return {"run_secs": run_secs}
    return {"error": ErrorKind.RUN_FAILED, "error_message": "MetaSchedule noted no time, and not why"}


def _tuning_records(records: list[Record], workload: Any) -> list[Any]:
    """TVM's form of records; one whose trace this TVM cannot read is left out."""
    found = []
    for record in records:
        target = json.loads(canonical_target(record.target_json) or "null")
        content = [json.loads(record.trace_json), list(record.run_secs), target, None]
        try:
            found.append(TuningRecord.from_json(content, workload))
        except Exception as error:  # noqa: BLE001 - TVM raises whatever its parser does; the others are of use
            logger.warning("record cannot be read by this TVM", extra={"record": record.id, "error": str(error)[-300:]})
    return found
