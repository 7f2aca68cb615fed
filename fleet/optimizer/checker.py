"""Checks a candidate's numbers: runs it on random data and compares it with the unscheduled program.

On GPUs, where an unscheduled program does not run, TVM's default rules schedule it (fleet.workloads.default_schedule).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from fleet.artifacts.artifact import Artifact
from fleet.client.steady import SteadyDevice
from fleet.domain.measuring import ErrorKind
from fleet.errors import InvalidRequest, MeasurementError
from fleet.optimizer.conditions import Conditions
from fleet.optimizer.core.events import BaselineBuilt, Check, Checked, ReferenceFailed, ReferenceMade, Verdict
from fleet.optimizer.index_inputs import inputs_of
from fleet.optimizer.numerics import InputStyle, compare
from fleet.optimizer.searcher import Searcher
from fleet.optimizer.weakness import Weakness, find_weakness
from fleet.spaces.packing import pack_all
from fleet.workloads.workload import Workload

if TYPE_CHECKING:
    from fleet.client.arrays import Array
    from fleet.domain.measuring import TensorSpec

_REFERENCE_TIMEOUT_SEC = 120.0


@dataclass(slots=True, kw_only=True)
class Expected:
    """What the unscheduled program of a workload computes."""

    artifact: Artifact
    inputs: Sequence[Array | TensorSpec] = ()
    outputs: list[Array] = field(default_factory=list)
    fault: str = ""
    """Why there are no outputs; without them no candidate can be checked."""


class Checker:
    """Compares candidates of one job with the unscheduled programs."""

    def __init__(
        self,
        *,
        conditions: Conditions,
        device: SteadyDevice,
        searcher: Searcher,
        workload_of: Callable[[str], Workload],
        baselines: dict[str, Artifact],
    ) -> None:
        """Check nothing yet.

        Args:
            baselines: unscheduled programs that are built, by workload; shared by the checkers of a job.
        """
        self._baselines = baselines
        self._conditions = conditions
        self._device = device
        self._searcher = searcher
        self._workload_of = workload_of
        self._expected: dict[str, Expected] = {}

    async def build_baseline(self, shash: str) -> BaselineBuilt:
        """Build the unscheduled program of a workload, unless it is built."""
        if shash not in self._baselines:
            built = await self._searcher.build_baseline(shash)
            self._baselines.setdefault(shash, built.artifact)
        return BaselineBuilt(shash, self._baselines[shash])

    async def check(
        self, effect: Check
    ) -> AsyncGenerator[BaselineBuilt | ReferenceMade | ReferenceFailed | Checked, None]:
        """Tell whether a candidate computes what it should."""
        workload = self._workload_of(effect.workload)
        if effect.workload not in self._baselines:
            yield await self.build_baseline(effect.workload)
        expected = self._expected.setdefault(effect.workload, Expected(artifact=self._baselines[effect.workload]))
        if not expected.outputs and not expected.fault:
            try:
                yield ReferenceMade(effect.workload, await self._run_reference(workload, expected))
            except (MeasurementError, InvalidRequest) as error:
                expected.fault = str(error)
                yield ReferenceFailed(effect.workload, expected.fault)
        if expected.fault:
            yield Checked(effect.workload, effect.digest, Verdict.NOT_CHECKED)
            return
        try:
            fault = await self._find_fault(workload, effect, expected)
        except MeasurementError as error:  # the device went away: no verdict, and do not risk another one
            yield Checked(effect.workload, effect.digest, Verdict.LOST, str(error))
            return
        yield Checked(effect.workload, effect.digest, Verdict.WRONG if fault else Verdict.RIGHT, fault)

    async def _run_reference(self, workload: Workload, expected: Expected) -> Weakness | None:
        """Find inputs for which the unscheduled program's output is a real test; return why there are none."""
        weakness: Weakness | None = None
        for attempt, style in enumerate(InputStyle):
            inputs = inputs_of(workload, self._conditions.seed + attempt, style)
            outputs = await self._run(expected.artifact, inputs)
            found = find_weakness(outputs)
            if not expected.outputs or found is None:
                expected.inputs, expected.outputs = inputs, outputs
            weakness = weakness or found
            if found is None:
                return None
        return weakness

    async def _run(self, artifact: Artifact, inputs: Sequence[Array | TensorSpec]) -> list[Array]:
        call = partial(self._device.call, artifact, inputs, timeout_sec=_REFERENCE_TIMEOUT_SEC)
        return await _once_more_if_it_crashed(call)

    async def _find_fault(self, workload: Workload, effect: Check, expected: Expected) -> str:
        inputs = pack_all(expected.inputs, effect.packings)
        try:
            call = partial(self._device.call, effect.artifact, inputs, is_trusted=False)
            outputs = await _once_more_if_it_crashed(call)
        except MeasurementError as error:
            if error.kind is ErrorKind.DEVICE_FAULTED:
                raise
            return f"it failed on the numbers of the check: {error}"
        rounds = any(spec.dtype.startswith("float") for spec in workload.args if not spec.is_output)
        mismatch = compare(outputs, expected.outputs, reduction_size=workload.terms, are_codes=rounds)
        return mismatch.text if mismatch else ""


async def _once_more_if_it_crashed(call: Callable[[], Awaitable[list[Array]]]) -> list[Array]:
    """Run a program; if it crashed, once more in a new worker: the first may have been killed by somebody else."""
    try:
        return await call()
    except MeasurementError as error:
        if error.kind is not ErrorKind.CRASHED:
            raise
    return await call()
