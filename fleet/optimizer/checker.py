"""Are a candidate's numbers right? It is run on random data on the device and compared with the unscheduled program.

On GPUs, where that does not run, with the one that TVM's default rules schedule (fleet.workloads.default_schedule).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fleet.artifacts import Artifact
from fleet.errors import InvalidRequest, MeasurementError
from fleet.measuring import ErrorKind, Measurement
from fleet.optimizer.build_task import build_candidate
from fleet.optimizer.candidates import Candidate, Conditions, Pool
from fleet.optimizer.numerics import compare, make_inputs
from fleet.optimizer.progress import JobProgress, WorkloadProgress
from fleet.optimizer.recorder import Recorder
from fleet.optimizer.seat import Seat

_REFERENCE_TIMEOUT_SEC = 120.0


@dataclass(slots=True, kw_only=True)
class Reference:
    """The unscheduled program of one workload, and what it computes."""

    artifact: Artifact
    inputs: list[Any] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    fault: str = ""
    """Why there are no outputs: nothing of the workload can be checked then."""


class Checker:
    """Compares candidates of one job with the unscheduled programs, each candidate once."""

    def __init__(
        self, *, progress: JobProgress, conditions: Conditions, seat: Seat, pool: Pool, recorder: Recorder
    ) -> None:
        self._progress = progress
        self._conditions = conditions
        self._seat = seat
        self._pool = pool
        self._recorder = recorder
        self._references: dict[str, Reference] = {}

    async def build_references(self, items: Sequence[WorkloadProgress]) -> list[Artifact]:
        """Build the unscheduled programs, those that are not built yet."""
        references = await asyncio.gather(*(self._reference(item) for item in items))
        return [reference.artifact for reference in references]

    async def is_right(self, item: WorkloadProgress, candidate: Candidate) -> bool:
        """Tell whether the candidate computes what it should. A wrong one is recorded as such and never used."""
        if candidate.is_checked:
            return True
        if candidate.measurement is None or candidate.measurement.error is not None:
            return False
        reference = await self._reference(item)
        if not await self._has_outputs(item, reference):
            return False
        try:
            fault = await self._find_fault(item, candidate, reference)
        except MeasurementError as error:  # the device went away: no verdict, and no second device for it
            candidate.measurement = Measurement(
                candidate_id=candidate.digest, error=ErrorKind.DEVICE_FAULTED, error_message=str(error)
            )
            return False
        if fault is None:
            await self._recorder.mark_checked(candidate)
            candidate.is_checked = True
            return True
        await self._recorder.mark_wrong(candidate, fault)
        item.reject(candidate.trace_json)
        candidate.measurement = Measurement(
            candidate_id=candidate.digest, error=ErrorKind.WRONG_OUTPUT, error_message=fault
        )
        self._progress.notice(f"{item.workload.name}: a candidate is wrong and not used: {fault}")
        return False

    async def _has_outputs(self, item: WorkloadProgress, reference: Reference) -> bool:
        """Tell whether there is something to compare with. Where there can be nothing, the workload is closed."""
        if reference.outputs:
            return True
        if not reference.fault:
            try:
                reference.inputs = list(make_inputs(item.workload.args, self._conditions.seed))
                reference.outputs = await self._seat.call(
                    reference.artifact, reference.inputs, timeout_sec=_REFERENCE_TIMEOUT_SEC
                )
                return True
            except (MeasurementError, InvalidRequest) as error:
                reference.fault = f"its numbers cannot be checked: {error}"
                item.closed_because = item.closed_because or reference.fault
                self._progress.notice(f"{item.workload.name} gets no more trials: {reference.fault}")
        return False

    async def _find_fault(self, item: WorkloadProgress, candidate: Candidate, reference: Reference) -> str | None:
        try:
            outputs = await self._seat.call(candidate.artifact, reference.inputs, is_trusted=False)
        except MeasurementError as error:
            if error.kind == ErrorKind.DEVICE_FAULTED:
                raise
            return f"it failed on the numbers of the check: {error}"
        mismatch = compare(outputs, reference.outputs, reduction_size=_reduction_size(item))
        return mismatch.text if mismatch else None

    async def _reference(self, item: WorkloadProgress) -> Reference:
        known = self._references.get(item.workload.shash)
        if known is None:
            task = self._conditions.build_task(item, None)
            built = await asyncio.wrap_future(self._pool.submit(build_candidate, task))
            known = self._references.setdefault(item.workload.shash, Reference(artifact=built.artifact))
        return known


def _reduction_size(item: WorkloadProgress) -> int | None:
    """Additions behind one output number, from the operation count; None when that is unknown."""
    outputs = sum(math.prod(spec.shape) for spec in item.workload.args if spec.is_output)
    return max(1, round(item.workload.flop / 2 / outputs)) if item.workload.flop and outputs else None
