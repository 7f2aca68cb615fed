"""Runs the whole model on the device, untuned, with static schedules and tuned, beside the engine of its format."""

from __future__ import annotations

import asyncio
import math
import os
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

from cross.targets.target import Target, parse_target
from fleet.artifacts.artifact import Artifact
from fleet.base.quantities import time_text
from fleet.building.pool import Pool, run_within
from fleet.building.turns import Turns
from fleet.checking.index_inputs import largest_index
from fleet.checking.numerics import Array, InputStyle, answer_tolerances, make_inputs
from fleet.checking.spread import find_spread
from fleet.checking.weakness import Weakness, find_weakness
from fleet.client.steady import SteadyDevice
from fleet.domain.measuring import TensorSpec
from fleet.errors import BuildError, MeasurementError
from fleet.jobs.report import ModelReport, RatioReport
from fleet.models.confined import having
from fleet.models.model import Model
from fleet.models.reference import ReferenceRun, engine_of, reference_outputs
from fleet.optimizer.comparing.engine import Engine, engine_ready
from fleet.optimizer.comparing.intervals import RatioInterval
from fleet.optimizer.comparing.rounds import Rounds, rounds_budget_sec
from fleet.optimizer.comparing.turns import ENGINE, ModelTurns, Untuned
from fleet.optimizer.core.progress import Phase
from fleet.optimizer.core.state import JobCore
from fleet.optimizer.loop import TuningLoop
from fleet.optimizer.reporting import report_placed
from fleet.optimizer.whole_model_tuning.placing import Placement, Placing
from fleet.runtime.agreement import Agreement, agree, worst
from fleet.workloads.extract import compile_model, is_worth_keeping

UNTUNED, STATIC, TUNED, IN_PLACE = "untuned", "static", "tuned", "in place"
"""Builds of the whole model: the last two use the schedules that are fastest alone, and fastest in the model."""

_COMPILE_TIMEOUT_SEC = 600.0
_RUN_TIMEOUT_SEC = 120.0
_ONNX_RUNTIME = "onnxruntime"
_SLOWER = 1.01
"""Ratio below which a slowdown is not reported, even if it is significant."""

_OTHER_SEED = 1_000
"""Added to the seed for inputs that should give different outputs."""

Inputs = Sequence["Array | TensorSpec"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Expected:
    """Inputs of the model with their expected answers."""

    inputs: Sequence[Array | TensorSpec]
    outputs: Sequence[Array]
    by: str
    """ "onnxruntime", "torch" or "untuned"."""

    weakness: Weakness | None
    style: InputStyle
    attempt: int
    spread: tuple[float, ...] | None = None
    """Error of the reference against float64, by output; None if it is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """Answers of the tuned model to one set of shapes."""

    expected: _Expected
    outputs: Sequence[Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timed:
    """Times of all programs."""

    rounds: Rounds
    untuned: Untuned
    same: Mapping[str, str]
    """For each build, the build that ran in its place: equal programs run once."""

    def best_sec(self, name: str) -> float:
        """Return the time of a build [s]; infinite if it did not run."""
        return self.rounds.best_sec(self.same.get(name, name))

    def against(self, name: str, other: str) -> RatioInterval | None:
        """Return the interval of the ratio of two programs' times, or None if they were not compared."""
        one, two = self.same.get(name, name), self.same.get(other, other)
        return self.rounds.interval(one, two) if one != two else None


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

    terms: int
    """Number of terms in the sums of all workloads of the model, untuned ones included."""

    is_local: bool
    """The device is this machine, so that ONNX Runtime's time here compares with the device's."""

    without_static: Mapping[str, str]
    """NO_TRACE, by structural hash, for workloads with static schedules that failed on the device."""

    has_static_only: bool = False
    """All given schedules are the static ones."""

    placing: Placing | None
    """Compares schedules in the model, and stores the choice; None: nothing is stored."""

    async def run(self, schedules: Mapping[str, str]) -> ModelReport:
        """Run everything and return a report.

        Args:
            schedules: trace JSON by structural hash; workloads without one get their static schedule, if that runs.
        """
        is_static = self.has_static_only or not schedules
        builds = "untuned and static" if is_static else "untuned, static and tuned"
        self.core.say(f"compiling the whole model: {builds}", Phase.MODEL)
        async with self.turns.building():
            started = time.monotonic()
            untuned, static = await asyncio.gather(self._compile({}, is_static=False), self._compile({}))
            # Afterwards: programs that only whole models have, such as those of joined concats, are compiled once.
            tuned = static if is_static else await self._compile(schedules)
            compile_sec = (time.monotonic() - started) / (2 if is_static else 3)
            largest = [await self._largest_index(variant) for variant in self.model.variants]
        placement = await self._place(schedules, tuned, static, compile_sec)
        built = {UNTUNED: untuned, STATIC: static, TUNED: tuned}
        if placement.artifact is not None:
            built[IN_PLACE] = placement.artifact
        timed = await self._time(built, largest)
        kept = await self._keep(placement, timed, schedules)
        self.core.say("checking the whole model")
        report = self._report_times(timed, kept)
        try:
            report = await self._check(report, built[kept], untuned, largest)
        except MeasurementError as error:
            return replace(report, is_right=False, message=f"the model does not run on the device: {error}")
        return replace(
            report,
            loop_nests=built[kept].loop_nests,
            alone_ms=_ms(timed.best_sec(TUNED)) if kept != TUNED else None,
            in_place=tuple(report_placed(item, is_confirmed=kept == IN_PLACE) for item in placement.placed),
            in_place_sec=placement.took_sec,
            keeps_static=kept == STATIC,
        )

    async def _place(
        self, schedules: Mapping[str, str], tuned: Artifact, static: Artifact, compile_sec: float
    ) -> Placement:
        if self.placing is None or not self.placing.is_profiled:
            return Placement(lineup=schedules)
        self.core.say("comparing the best schedules in the model")
        try:
            return await self.placing.run(schedules, tuned, static, self._compile, compile_sec)
        except BuildError as error:
            self.core.progress.notice(f"schedules are not compared in the model: {error}")
            return Placement(lineup=schedules)

    async def _keep(self, placement: Placement, timed: _Timed, schedules: Mapping[str, str]) -> str:
        """Return which build is fastest as a whole, and note in the library that later ones are to be like it."""
        fastest = min((TUNED, IN_PLACE), key=timed.best_sec)
        if self.placing is None:
            return fastest
        if _is_slower(timed.against(fastest, STATIC)) and await self.placing.keep_static(schedules):
            return STATIC
        await self.placing.keep(placement, is_confirmed=fastest == IN_PLACE)
        return fastest

    async def _time(self, built: Mapping[str, Artifact], largest: Sequence[int]) -> _Timed:
        """Time all programs in turns. Programs on the device and the engine use the same cores and never overlap."""
        digests = {name: artifact.digest for name, artifact in built.items()}
        order = (STATIC, TUNED, IN_PLACE, UNTUNED)
        same = {name: next(one for one in order if digests.get(one) == digests[name]) for name in built}
        running = [name for name in order if same.get(name) == name and name != UNTUNED]
        async with AsyncExitStack() as stack:
            engine = await stack.enter_async_context(self._engine(largest)) if self.is_local else None
            names = (*running, *([ENGINE] if engine is not None else []))
            rounds = Rounds(
                names=names,
                pairs=tuple((name, other) for name in running for other in (STATIC, ENGINE) if name != other),
                budget_sec=rounds_budget_sec(
                    job_sec=time.monotonic() - self.core.conditions.started_at, trials=self.core.progress.trials_known
                ),
                rng=random.Random(self.core.conditions.seed),
            )
            turns = ModelTurns(
                device=self.device,
                builds={name: built[name] for name in running},
                engine=engine,
                inputs=[variant.inputs for variant in self.model.variants],
            )
            async with self.loop.measuring():
                self.core.say(f"running the whole model in turns: {', '.join(map(self._title, names))}")
                await turns.run(rounds)
                if same[UNTUNED] != UNTUNED:
                    untuned = Untuned(sec=rounds.best_sec(same[UNTUNED]))
                else:
                    self.core.say("running the untuned model once")
                    untuned = await turns.time_untuned(built[UNTUNED], rounds.best_sec(STATIC))
        return _Timed(rounds=rounds, untuned=untuned, same=same)

    @asynccontextmanager
    async def _engine(self, largest: Sequence[int]) -> AsyncIterator[Engine | None]:
        """Prepare the engine in a process of the pool."""
        inputs = [
            [given for given in self._inputs(variant, one) if not isinstance(given, TensorSpec)]
            for variant, one in zip(self.model.variants, largest, strict=True)
        ]
        folder = self.core.conditions.artifact_dir
        self.core.say(f"preparing {self._title(ENGINE)}")
        async with AsyncExitStack() as stack:
            async with self.turns.building():
                ready = engine_ready(self.pool, self.model, inputs, folder=folder, threads=self._engine_threads)
                engine = await stack.enter_async_context(ready)
            yield engine

    def _title(self, name: str) -> str:
        return engine_of(self.model.format) if name == ENGINE else name

    def _inputs(self, variant: Model, largest: int, seed: int = 0, style: InputStyle = InputStyle.NORMAL) -> Inputs:
        return make_inputs(variant.inputs, self.core.conditions.seed + seed, style, largest_index=largest)

    def _report_times(self, timed: _Timed, kept: str) -> ModelReport:
        against_static, against_engine = timed.against(kept, STATIC), timed.against(kept, ENGINE)
        untuned_sec = timed.untuned.sec
        return ModelReport(
            untuned_ms=_ms(untuned_sec),
            untuned_above_ms=_ms(timed.untuned.above_sec) if timed.untuned.above_sec else None,
            untuned_problem=timed.untuned.problem,
            static_ms=_ms(timed.best_sec(STATIC)),
            tuned_ms=_ms(timed.best_sec(kept)),
            reference_ms=_ms(timed.best_sec(ENGINE)),
            rounds=timed.rounds.count,
            is_static=timed.same.get(kept) == STATIC,
            is_untuned_static=timed.same[UNTUNED] == STATIC,
            against_static=_report_ratio(against_static),
            against_engine=_report_ratio(against_engine),
            is_slower=_is_slower(against_static),
        )

    async def _check(
        self, report: ModelReport, tuned: Artifact, untuned: Artifact, largest: Sequence[int]
    ) -> ModelReport:
        """Compare the answers with the engine's, or with the untuned program's if that is fast enough."""
        is_bounded = bool(report.untuned_above_ms or report.untuned_problem)
        trusted = None if is_bounded else untuned
        runs = []
        for variant, one in zip(self.model.variants, largest, strict=True):
            expected = await self._expect(variant, trusted, one)
            if expected is None:
                return replace(report, unchecked=f"no engine is installed, and {_why_not_run(report)}")
            outputs = await self._call(tuned, expected.inputs)
            if not self._agree(outputs, expected).is_right:  # else the larger tolerance changes no verdict
                expected = await self._with_spread(variant, expected, one)
            runs.append(_Run(expected=expected, outputs=outputs))
        report = self._report_answers(report, runs)
        if report.is_right:
            return report
        if trusted is None:
            return replace(report, message=f"{report.message}; {_why_not_run(report)}, so the cause is unknown")
        return await self._judge(report, runs, trusted)

    def _report_answers(self, report: ModelReport, runs: Sequence[_Run]) -> ModelReport:
        """Summarise one run for each set of shapes."""
        by = runs[0].expected.by
        agreement = worst([self._agree(run.outputs, run.expected) for run in runs])
        return replace(
            report,
            onnxruntime_ms=report.reference_ms if by == _ONNX_RUNTIME else None,
            max_abs_error=agreement.max_abs_error,
            tolerance=agreement.allowed,
            tolerance_by="float64" if any(run.expected.spread is not None for run in runs) else "sums",
            roundings=self.model.roundings,
            reference=by,
            weakness=next(filter(None, (run.expected.weakness for run in runs)), None),
            is_right=agreement.is_right,
            message=agreement.problem,
        )

    def _agree(self, outputs: Sequence[Array], expected: _Expected) -> Agreement:
        """Compare with the same tolerances as for exported models."""
        tolerances = answer_tolerances(
            expected.outputs,
            terms=self.terms,
            roundings=self.model.roundings,
            spread=expected.spread,
        )
        return agree(outputs, expected.outputs, tolerances)

    async def _judge(self, report: ModelReport, runs: Sequence[_Run], untuned: Artifact) -> ModelReport:
        """Attribute a wrong answer to a schedule or to the import, which the untuned program shares."""
        problem = ""
        for run in runs:
            try:
                outputs = await self._call(untuned, run.expected.inputs)
            except MeasurementError as error:
                return replace(report, message=f"{report.message}; the untuned program does not run: {error}")
            problem = problem or self._agree(run.outputs, replace(run.expected, outputs=outputs)).problem
        return replace(report, message=f"{report.message}; {blame(problem)}")

    async def _compile(self, schedules: Mapping[str, str], *, is_static: bool = True) -> Artifact:
        core = self.core
        return await run_within(
            self.pool,
            _COMPILE_TIMEOUT_SEC,
            having(compile_model, self.model, writable=core.conditions.artifact_dir),
            self.model,
            self._target,
            {**self.without_static, **schedules},
            core.conditions.artifact_dir,
            is_static=is_static,
            shares_objects=True,
            is_compiled_again=is_worth_keeping(self.model),
        )

    async def _largest_index(self, model: Model) -> int:
        return await run_within(self.pool, _COMPILE_TIMEOUT_SEC, having(largest_index, model), model)

    async def _expect(self, model: Model, untuned: Artifact | None, largest: int) -> _Expected | None:
        """Find inputs that make the model's output a meaningful test; return None without a reference."""
        first: _Expected | None = None
        for attempt, style in enumerate(InputStyle):
            found = await self._expect_for(model, untuned, attempt, style, largest)
            first = first or found
            if found is None or found.weakness is None:
                return found
        return first

    async def _with_spread(self, model: Model, expected: _Expected, largest: int) -> _Expected:
        if expected.by == UNTUNED:
            return expected
        seed = self.core.conditions.seed + expected.attempt
        async with self.turns.building():
            spread = await find_spread(self.pool, model, seed=seed, style=expected.style, largest_index=largest)
        return replace(expected, spread=spread)

    async def _expect_for(
        self, model: Model, untuned: Artifact | None, attempt: int, style: InputStyle, largest: int
    ) -> _Expected | None:
        inputs, others = (self._inputs(model, largest, one, style) for one in (attempt, attempt + _OTHER_SEED))
        async with self.turns.building():
            run = await self._run_reference(model, inputs)
            other = await self._run_reference(model, others) if run is not None else None
        if run is not None and other is not None:
            outputs, answers, by = run.outputs, other.outputs, run.by
        elif untuned is not None:
            outputs, answers = [tuple(await self._call(untuned, given)) for given in (inputs, others)]
            by = UNTUNED
        else:
            return None
        return _Expected(
            inputs=inputs,
            outputs=outputs,
            by=by,
            weakness=find_weakness(outputs, answers),
            style=style,
            attempt=attempt,
        )

    @property
    def _target(self) -> Target:
        return parse_target(self.core.conditions.scope.target_json)

    @property
    def _engine_threads(self) -> int:
        return self.threads if self._target.is_processor else os.cpu_count() or 1

    async def _run_reference(self, model: Model, inputs: Inputs) -> ReferenceRun | None:
        return await run_within(
            self.pool,
            _COMPILE_TIMEOUT_SEC,
            having(reference_outputs, model),
            model,
            [given for given in inputs if not isinstance(given, TensorSpec)],
            threads=self._engine_threads,
        )

    async def _call(self, artifact: Artifact, inputs: Sequence[Array | TensorSpec]) -> list[Array]:
        async with self.loop.measuring():
            return await self.device.call(artifact, inputs, timeout_sec=_RUN_TIMEOUT_SEC)


def blame(problem: str) -> str:
    """Return the cause of a wrong answer, given its difference from the untuned program's (empty if equal)."""
    if not problem:
        return "the untuned program answers the same, so that it is the import, and no schedule"
    return f"the untuned program answers otherwise, so that it is a schedule: {problem}"


def _why_not_run(report: ModelReport) -> str:
    if report.untuned_above_ms:
        return f"the untuned program takes more than {time_text(report.untuned_above_ms / 1e3)}"
    return f"the untuned program does not run: {report.untuned_problem}"


def _is_slower(interval: RatioInterval | None) -> bool:
    return interval is not None and interval.low > 1 and interval.ratio >= _SLOWER


def _report_ratio(interval: RatioInterval | None) -> RatioReport | None:
    if interval is None:
        return None
    return RatioReport(ratio=interval.ratio, low=interval.low, high=interval.high)


def _ms(sec: float | None) -> float | None:
    return sec * 1e3 if sec is not None and math.isfinite(sec) else None
