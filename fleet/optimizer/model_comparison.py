"""Runs the whole model on the device, untuned, with static schedules and tuned, beside the engine of its format."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cross.targets.target import parse_target
from fleet.artifacts.artifact import Artifact
from fleet.client.steady import SteadyDevice
from fleet.domain.measuring import TensorSpec
from fleet.errors import BuildError, MeasurementError
from fleet.models.confined import having
from fleet.models.model import Model
from fleet.models.reference import ReferenceRun, reference_outputs
from fleet.optimizer.core.events import ModelWanted, Said
from fleet.optimizer.core.measuring import IN_PLACE, STATIC, TUNED, UNTUNED
from fleet.optimizer.core.progress import Phase
from fleet.optimizer.core.state import JobCore
from fleet.optimizer.in_place import Placement, Placing
from fleet.optimizer.index_inputs import largest_index
from fleet.optimizer.job import ModelReport, report_placed
from fleet.optimizer.loop import TuningLoop, feed
from fleet.optimizer.numerics import Array, InputStyle, Mismatch, compare, largest_difference, make_inputs
from fleet.optimizer.pool import Pool, run_within
from fleet.optimizer.turns import Turns
from fleet.optimizer.weakness import Weakness, find_weakness
from fleet.workloads.extract import compile_model
from fleet.workloads.workload import terms_of_model

_COMPILE_TIMEOUT_SEC = 600.0
_RUN_TIMEOUT_SEC = 120.0
_REFERENCE_RUNS = 20
_ONNX_RUNTIME = "onnxruntime"
_SLOWER = 1.03
"""A tuned model counts as slower from this factor on: two timings of the same program differ by up to as much."""

_OTHER_SEED = 1_000
"""Added to the seed for inputs that should give different outputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Expected:
    """What the model should answer to which inputs."""

    inputs: Sequence[Array | TensorSpec]
    outputs: Sequence[Array]
    by: str
    """ "onnxruntime", "torch" or "untuned"."""

    median_sec: float | None
    weakness: Weakness | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What the tuned model answers to one set of shapes."""

    expected: _Expected
    outputs: Sequence[Array]


@dataclass(frozen=True, kw_only=True)
class ModelComparison:
    """Compiles, times and checks one model. For several sets of shapes, times are those of one run of each."""

    model: Model
    core: JobCore
    loop: TuningLoop
    device: SteadyDevice
    pool: Pool
    turns: Turns
    threads: int
    """Cores that ONNX Runtime may use: as many as the device if that is a processor, else all."""

    is_local: bool
    """The device is this machine, so that ONNX Runtime's time here compares with the device's."""

    without_static: Mapping[str, str]
    """NO_TRACE, by structural hash, for workloads whose static schedules failed on the device."""

    placing: Placing | None
    """Compares schedules in the model, and keeps what it shall have; None: the library is told nothing."""

    async def run(self, schedules: Mapping[str, str]) -> ModelReport:
        """Run everything and return a report.

        Args:
            schedules: trace JSON by structural hash; workloads without one get their static schedule, if that runs.
        """
        feed(self.core, Said("compiling the whole model: untuned, static and tuned", Phase.MODEL))
        async with self.turns.building():
            started = time.monotonic()
            wanted = (self._compile({}, is_static=False), self._compile({}), self._compile(schedules))
            untuned, static, tuned = await asyncio.gather(*wanted)
            compile_sec = (time.monotonic() - started) / len(wanted)  # side by side, as more of them would be
        placement = await self._place(schedules, tuned, static, compile_sec)
        built = {UNTUNED: untuned, STATIC: static, TUNED: tuned}
        if placement.artifact is not None:
            built[IN_PLACE] = placement.artifact
        async with self.loop.measuring():
            secs = await self._time(built)
        kept = await self._keep(placement, secs, schedules)
        feed(self.core, Said("checking the whole model"))
        try:
            runs = [await self._run(variant, untuned, built[kept]) for variant in self.model.variants]
        except MeasurementError as error:
            return ModelReport(is_right=False, message=f"the model does not run on the device: {error}")
        report = self._report(secs, runs, built, kept, is_tuned=bool(schedules))
        if not report.is_right:
            report = await self._judge(report, runs, untuned)
        return replace(
            report,
            alone_ms=_ms(secs[TUNED]) if kept != TUNED else None,
            in_place=tuple(report_placed(item, is_confirmed=kept == IN_PLACE) for item in placement.placed),
            in_place_sec=placement.took_sec,
            keeps_static=kept == STATIC,
        )

    async def _place(
        self, schedules: Mapping[str, str], tuned: Artifact, static: Artifact, compile_sec: float
    ) -> Placement:
        if self.placing is None or not self.placing.is_profiled:
            return Placement(lineup=schedules)
        feed(self.core, Said("comparing the best schedules in the model"))
        try:
            return await self.placing.run(schedules, tuned, static, self._compile, compile_sec)
        except BuildError as error:
            self.core.progress.notice(f"schedules are not compared in the model: {error}")
            return Placement(lineup=schedules)

    async def _keep(self, placement: Placement, secs: Mapping[str, float], schedules: Mapping[str, str]) -> str:
        """Return which build is fastest as a whole, and note in the library that later ones are to be like it."""
        fastest = min((TUNED, IN_PLACE), key=lambda name: secs.get(name, math.inf))
        if self.placing is None:
            return fastest
        is_slower = bool(schedules) and _SLOWER * secs[STATIC] < secs[fastest] < math.inf
        if is_slower and await self.placing.keep_static(schedules):
            return STATIC
        await self.placing.keep(placement, is_confirmed=fastest == IN_PLACE)
        return fastest

    async def _time(self, built: Mapping[str, Artifact]) -> dict[str, float]:
        """Return the time of one run of each set of shapes [s], by build; infinite where one could not be timed."""
        secs = dict.fromkeys(built, 0.0)
        for variant in self.model.variants:
            await self.loop.apply(ModelWanted(built, variant.inputs, _RUN_TIMEOUT_SEC))
            secs = {name: sec + self.core.model_secs.get(name, math.inf) for name, sec in secs.items()}
        return secs

    async def _run(self, variant: Model, untuned: Artifact, tuned: Artifact) -> _Run:
        expected = await self._expect(variant, untuned)
        return _Run(expected=expected, outputs=await self._call(tuned, expected.inputs))

    def _report(
        self,
        secs: Mapping[str, float],
        runs: Sequence[_Run],
        built: Mapping[str, Artifact],
        kept: str,
        *,
        is_tuned: bool,
    ) -> ModelReport:
        """Sum up one run for each set of shapes."""
        tuned_sec = secs[kept]
        times = [run.expected.median_sec for run in runs]
        reference_sec = sum(sec for sec in times if sec is not None) if None not in times else None
        reference_ms = _ms(reference_sec) if self.is_local else None
        by = runs[0].expected.by
        mismatch = next(filter(None, (self._compare(run.outputs, run.expected.outputs) for run in runs)), None)
        terms, roundings = terms_of_model(self.core.workloads), self.model.roundings
        apart, allowed = max(
            largest_difference(run.outputs, run.expected.outputs, reduction_size=terms, roundings=roundings)
            for run in runs
        )
        return ModelReport(
            untuned_ms=_ms(secs[UNTUNED]),
            static_ms=_ms(secs[STATIC]),
            tuned_ms=_ms(tuned_sec),
            onnxruntime_ms=reference_ms if by == _ONNX_RUNTIME else None,
            reference_ms=reference_ms,
            is_slower=is_tuned and _SLOWER * min(secs[UNTUNED], secs[STATIC]) < tuned_sec < math.inf,
            max_abs_error=apart,
            tolerance=allowed,
            roundings=roundings,
            reference=by,
            weakness=next(filter(None, (run.expected.weakness for run in runs)), None),
            is_right=mismatch is None,
            message=mismatch.text if mismatch else "",
            loop_nests=built[kept].loop_nests,
        )

    def _compare(self, outputs: Sequence[Array], reference: Sequence[Array]) -> Mismatch | None:
        terms = terms_of_model(self.core.workloads)
        return compare(outputs, reference, reduction_size=terms, roundings=self.model.roundings)

    async def _judge(self, report: ModelReport, runs: Sequence[_Run], untuned: Artifact) -> ModelReport:
        """Have the untuned program of the same import decide about answers that are not the reference's."""
        mismatch: Mismatch | None = None
        for run in runs:
            try:
                mismatch = mismatch or self._compare(run.outputs, await self._call(untuned, run.expected.inputs))
            except MeasurementError as error:
                return replace(report, message=f"{report.message}; the untuned program does not run: {error}")
        return replace(report, is_right=mismatch is None, message=f"{report.message}; {blame(mismatch)}")

    async def _compile(self, schedules: Mapping[str, str], *, is_static: bool = True) -> Artifact:
        core = self.core
        return await run_within(
            self.pool,
            _COMPILE_TIMEOUT_SEC,
            having(compile_model, self.model, writable=core.conditions.artifact_dir),
            self.model,
            core.conditions.scope.target_json,
            {**self.without_static, **schedules},
            core.conditions.artifact_dir,
            is_static=is_static,
        )

    async def _expect(self, model: Model, untuned: Artifact) -> _Expected:
        """Find inputs for which the model's output is a real test, if there are any."""
        first: _Expected | None = None
        async with self.turns.building():
            largest = await run_within(self.pool, _COMPILE_TIMEOUT_SEC, having(largest_index, model), model)
        for attempt, style in enumerate(InputStyle):
            found = await self._expect_for(model, untuned, self.core.conditions.seed + attempt, style, largest)
            first = first or found
            if found.weakness is None:
                return found
        return first or found

    async def _expect_for(
        self, model: Model, untuned: Artifact, seed: int, style: InputStyle, largest: int
    ) -> _Expected:
        inputs, others = (
            make_inputs(model.inputs, one, style, largest_index=largest) for one in (seed, seed + _OTHER_SEED)
        )
        async with self.turns.measuring() if self.is_local else self.turns.building():
            run = await self._run_reference(model, inputs, _REFERENCE_RUNS if self.is_local else 0)
            other = await self._run_reference(model, others) if run is not None else None
        if run is not None and other is not None:
            outputs, answers, by = run.outputs, other.outputs, run.by
        else:
            outputs, answers = [tuple(await self._call(untuned, given)) for given in (inputs, others)]
            by = "untuned"
        return _Expected(
            inputs=inputs,
            outputs=outputs,
            by=by,
            median_sec=run.median_sec if run is not None else None,
            weakness=find_weakness(outputs, answers),
        )

    async def _run_reference(
        self, model: Model, inputs: Sequence[Array | TensorSpec], repeat: int = 0
    ) -> ReferenceRun | None:
        is_processor = parse_target(self.core.conditions.scope.target_json)["kind"] == "llvm"
        return await run_within(
            self.pool,
            _COMPILE_TIMEOUT_SEC,
            having(reference_outputs, model),
            model,
            [given for given in inputs if not isinstance(given, TensorSpec)],
            threads=self.threads if is_processor else os.cpu_count() or 1,
            repeat=repeat,
        )

    async def _call(self, artifact: Artifact, inputs: Sequence[Array | TensorSpec]) -> list[Array]:
        async with self.loop.measuring():
            return await self.device.call(artifact, inputs, timeout_sec=_RUN_TIMEOUT_SEC)


def blame(mismatch: Mismatch | None) -> str:
    """Say why a tuned model answers otherwise, given how it differs from the untuned program of the same import."""
    if mismatch is None:
        return "the untuned program answers the same, so that it is the import, and no schedule"
    return f"the untuned program answers otherwise, so that it is a schedule: {mismatch.text}"


def _ms(sec: float | None) -> float | None:
    return sec * 1e3 if sec is not None and math.isfinite(sec) else None
