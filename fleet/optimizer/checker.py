"""Checks a candidate's numbers: runs it on random data and compares it with the unscheduled program.

On GPUs, where an unscheduled program does not run, TVM's default rules schedule it (fleet.workloads.default_schedule).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from fleet.artifacts.artifact import Artifact
from fleet.building.built_candidate import BuiltCandidate
from fleet.checking.index_inputs import inputs_of
from fleet.checking.numerics import InputStyle, compare
from fleet.checking.weakness import Weakness, find_weakness
from fleet.client.steady import SteadyDevice
from fleet.domain.measuring import ErrorKind
from fleet.domain.proving import Proof, ProofVerdict
from fleet.domain.workload import Workload
from fleet.errors import InvalidRequest, MeasurementError
from fleet.optimizer.conditions import Conditions
from fleet.optimizer.core.events import (
    BaselineBuilt,
    Checked,
    CheckOutputs,
    Prove,
    Proven,
    ReferenceFailed,
    ReferenceMade,
    Verdict,
)
from fleet.optimizer.prover import Prover, impossible
from fleet.optimizer.searcher import Searcher
from fleet.spaces.packing import pack_all

if TYPE_CHECKING:
    from fleet.client.arrays import Array
    from fleet.domain.measuring import TensorSpec

_REFERENCE_TIMEOUT_SEC = 120.0
_SLOW_REFERENCE_SEC = 0.1
"""Run time of a reference above which a proof compares one answer instead of two."""


@dataclass(slots=True, kw_only=True)
class Expected:
    """Outputs of a workload's unscheduled program."""

    artifact: Artifact
    inputs: Sequence[Array | TensorSpec] = ()
    outputs: list[Array] = field(default_factory=list)
    style: InputStyle = InputStyle.NORMAL
    """Style of the inputs."""

    run_sec: float = 0.0
    """Time of one run of the reference, transfers included [s]."""

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
        """Store the arguments.

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
        self, effect: CheckOutputs
    ) -> AsyncGenerator[BaselineBuilt | ReferenceMade | ReferenceFailed | Checked, None]:
        """Compare a candidate's output with the reference, then prove its claimed time."""
        shash, digest, build = effect.candidate.workload, effect.candidate.digest, effect.candidate.built
        workload = self._workload_of(shash)
        if shash not in self._baselines:
            yield await self.build_baseline(shash)
        async for event in self._expect(workload):
            yield event
        expected = self._expected[shash]
        if expected.fault:
            yield Checked(shash, digest, Verdict.NOT_CHECKED)
            return
        try:
            fault = await self._find_fault(workload, build, expected)
        except MeasurementError as error:  # the device was lost: no verdict, and do not risk another one
            yield Checked(shash, digest, Verdict.LOST, str(error))
            return
        if fault or not effect.claimed_sec:
            yield Checked(shash, digest, Verdict.WRONG if fault else Verdict.RIGHT, fault)
            return
        try:
            proof = await self._prove(workload, build, effect.claimed_sec, expected)
        except MeasurementError as error:
            yield Checked(shash, digest, Verdict.LOST, str(error))
            return
        verdict = Verdict.NOT_PROVEN if proof.verdict is ProofVerdict.REFUTED else Verdict.RIGHT
        yield Checked(shash, digest, verdict, proof.message, proof)

    async def prepare_proof(self, effect: Prove) -> BuiltCandidate | None:
        """Build a schedule of the library and its reference; return None if the schedule does not build."""
        build = effect.build or await self._searcher.build_again(effect.workload, effect.trace_json)
        if build is None:
            return None
        await self.build_baseline(effect.workload)
        return build

    async def prove(
        self, effect: Prove, build: BuiltCandidate
    ) -> AsyncGenerator[ReferenceMade | ReferenceFailed | Proven, None]:
        """Prove the time of a schedule, if its workload has a reference."""
        workload = self._workload_of(effect.workload)
        async for event in self._expect(workload):
            yield event
        expected = self._expected[effect.workload]
        if expected.fault:
            return
        with contextlib.suppress(MeasurementError):  # the device is lost: no verdict on the time
            yield Proven(effect, await self._prove(workload, build, effect.claimed_sec, expected))

    async def _expect(self, workload: Workload) -> AsyncGenerator[ReferenceMade | ReferenceFailed, None]:
        """Compute the reference outputs of a workload with its unscheduled program, unless they are known."""
        shash = workload.shash
        expected = self._expected.setdefault(shash, Expected(artifact=self._baselines[shash]))
        if expected.outputs or expected.fault:
            return
        try:
            yield ReferenceMade(shash, await self._run_reference(workload, expected))
        except (MeasurementError, InvalidRequest) as error:
            expected.fault = str(error)
            yield ReferenceFailed(shash, expected.fault)

    async def _prove(self, workload: Workload, build: BuiltCandidate, claimed_sec: float, expected: Expected) -> Proof:
        if (await self._device.device()).inventory.is_pretended:
            return impossible("the device only pretends to run programs")
        prover = Prover(
            device=self._device,
            workload=workload,
            reference=expected.artifact,
            style=expected.style,
            answers=1 if expected.run_sec > _SLOW_REFERENCE_SEC else 2,
        )
        return await prover.prove(build, claimed_sec)

    async def _run_reference(self, workload: Workload, expected: Expected) -> Weakness | None:
        """Find inputs for which the unscheduled program's output is a real test; return why there are none."""
        weakness: Weakness | None = None
        for attempt, style in enumerate(InputStyle):
            inputs = inputs_of(workload, self._conditions.seed + attempt, style)
            started = time.monotonic()
            outputs = await self._run(expected.artifact, inputs)
            expected.run_sec = time.monotonic() - started
            found = find_weakness(outputs)
            if not expected.outputs or found is None:
                expected.inputs, expected.outputs, expected.style = inputs, outputs, style
            weakness = weakness or found
            if found is None:
                return None
        return weakness

    async def _run(self, artifact: Artifact, inputs: Sequence[Array | TensorSpec]) -> list[Array]:
        call = partial(self._device.call, artifact, inputs, timeout_sec=_REFERENCE_TIMEOUT_SEC)
        return await _once_more_if_it_crashed(call)

    async def _find_fault(self, workload: Workload, build: BuiltCandidate, expected: Expected) -> str:
        inputs = pack_all(expected.inputs, build.packings)
        try:
            call = partial(self._device.call, build.artifact, inputs, is_trusted=False)
            outputs = await _once_more_if_it_crashed(call)
        except MeasurementError as error:
            if error.kind is ErrorKind.DEVICE_FAULTED:
                raise
            return f"it failed on the numbers of the check: {error}"
        rounds = any(spec.dtype.startswith("float") for spec in workload.args if not spec.is_output)
        mismatch = compare(outputs, expected.outputs, reduction_size=workload.terms, are_codes=rounds)
        return mismatch.text if mismatch else ""


async def _once_more_if_it_crashed(call: Callable[[], Awaitable[list[Array]]]) -> list[Array]:
    """Run a program; after a crash, once more in a new worker: the first may have been killed from outside."""
    try:
        return await call()
    except MeasurementError as error:
        if error.kind is not ErrorKind.CRASHED:
            raise
    return await call()
