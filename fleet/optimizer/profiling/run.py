"""Profiles a model on a leased device: builds it as `fleet tune` does, and times every operator in its place.

TVM never runs in this process: import and builds are tasks of the pool.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from cross.pool.build_pool import BuildPool
from cross.targets.intrinsics import target_hint
from cross.targets.target import Target, parse_target
from fleet.artifacts.artifact import Artifact
from fleet.base.machine import machine_fingerprint
from fleet.base.scratch import scratch_dir
from fleet.building.build_candidate import BuildTask
from fleet.building.build_operator import build_operator
from fleet.building.pool import Pool, run_within
from fleet.building.turns import Turns
from fleet.checking.index_inputs import largest_index
from fleet.checking.numerics import make_inputs
from fleet.client.device import Device
from fleet.domain.devices import Inventory, RuntimeKind
from fleet.domain.keys import NO_TRACE
from fleet.domain.measuring import Evaluator, Measurement, OperatorCall, TensorSpec, Trial
from fleet.domain.roofline import Roofline
from fleet.domain.scope import RecordScope
from fleet.domain.tvm_versions import check_versions
from fleet.domain.workload import Workload
from fleet.errors import BuildError, InvalidRequest
from fleet.library import Library
from fleet.model_schedules import schedules, without_static
from fleet.models.confined import having, reading
from fleet.models.model import Model, check_exists, load_model
from fleet.models.reference_profile import ReferenceProfile, profile_reference
from fleet.optimizer.profiling.peaks import build_peaks, measure_roofline
from fleet.optimizer.profiling.profile import CALL_SEC, VM_PREFIX, ModelProfile, join
from fleet.workloads.extract import compile_model, extract

_COMPILE_TIMEOUT_SEC = 600.0
_RUN_TIMEOUT_SEC = 300.0
_BUILD_TIMEOUT_SEC = 120.0
_MEASURED_SEC = 5.0
"""About how long a model runs with the instrument, if its user does not say how often."""

_FEWEST_RUNS, _MOST_RUNS = 3, 50


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOptions:
    """One `fleet profile`."""

    model: Path
    device_kind: str | None = None
    """Kind of the device, if it is known before there is one: "cpu", "cuda"."""

    library: str | None = None
    target: Target | None = None
    """The target to use instead of the device's own."""

    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    input_batch_size: int | None = None
    """Size of every input's open first dimension."""

    random_weights: bool = False
    seed: int = 0
    runs: int | None = None
    """Number of runs with the instrument, and of runs without; None: as many as take a few seconds."""

    measures_alone: bool = True
    """Build and time each operator alone, too."""

    is_untuned: bool = False
    """Do not look in the library."""

    workers: int | None = None


async def profile_model(
    options: ProfileOptions,
    holding: AbstractAsyncContextManager[Device],
    narrate: Callable[[str], object] = lambda _: None,
) -> ModelProfile:
    """Profile a model on a device.

    Args:
        holding: gives the device; entered once the model is read, which may take minutes or fail.
        narrate: called with the current activity.

    Raises:
        InvalidRequest: the device cannot time operators in their place.
        ImportFailed, BuildError: the model cannot be imported or built.
        MeasurementError: it does not run on the device.
    """
    check_versions()
    check_exists(options.model)
    with ExitStack() as stack:
        folder = stack.enter_context(scratch_dir("artifacts"))
        wanted = options.target or target_hint(options.device_kind)
        pool = BuildPool(options.workers, timeout_sec=_BUILD_TIMEOUT_SEC, target=wanted)
        stack.callback(pool.shutdown, wait=False)
        pool.start()
        narrate(f"reading {options.model.name}")
        model = await _read(options, pool)
        model = await asyncio.to_thread(model.stored_in, stack.enter_context(scratch_dir("model")))
        narrate("opening the device")
        async with holding as device:
            refuse_unfit(device.name, device.inventory)
            run = _Profiling(
                options=options,
                device=device,
                pool=pool,
                model=model,
                target=options.target or parse_target(device.inventory.target_json),
                folder=folder,
                narrate=narrate,
            )
            return await run.run()


def refuse_unfit(name: str, inventory: Inventory) -> None:
    """Refuse a device that cannot time operators in place.

    Raises:
        InvalidRequest: it cannot; the message has the reason.
    """
    problem = why_unfit(inventory)
    if problem:
        raise InvalidRequest(
            f"{name} cannot time operators in their place: {problem}. Time them alone with fleet tune --trials 0"
        )


def why_unfit(inventory: Inventory) -> str:
    """Return why a device cannot time operators in place; empty if it can."""
    problems = {
        RuntimeKind.PLAIN: "it has the plain runtime only, which has no Relax VM",
        RuntimeKind.TVM_RPC: "its Relax VM is behind TVM RPC, which takes no instrument",
    }
    return "nothing really runs on it" if inventory.is_pretended else problems.get(inventory.runtime, "")


def runs_for(run_sec: float) -> int:
    """Return the number of runs for a model of this duration."""
    if not math.isfinite(run_sec) or run_sec <= 0:
        return _FEWEST_RUNS
    return max(_FEWEST_RUNS, min(_MOST_RUNS, round(_MEASURED_SEC / run_sec)))


async def _read(options: ProfileOptions, pool: Pool) -> Model:
    async with Turns.of_this_machine().building():
        return await run_within(
            pool,
            _COMPILE_TIMEOUT_SEC,
            reading(load_model, options.model),
            options.model,
            shapes=dict(options.shapes),
            batch_size=options.input_batch_size,
            random_weights_seed=options.seed if options.random_weights else None,
        )


@dataclass(frozen=True, kw_only=True)
class _Profiling:
    """One profiling run: everything is built first and measured afterwards, as both may share their cores."""

    options: ProfileOptions
    device: Device
    pool: Pool
    model: Model
    target: Target
    folder: Path
    narrate: Callable[[str], object]

    async def run(self) -> ModelProfile:
        options, model, inventory = self.options, self.model, self.device.inventory
        turns = Turns.of_this_machine()
        async with turns.building():
            self.narrate("finding the operators")
            workloads = await run_within(self.pool, _COMPILE_TIMEOUT_SEC, having(extract, model), model, self.target)
            traces = {} if options.is_untuned else await asyncio.to_thread(self._traces, workloads)
            self.narrate("compiling the model")
            artifact = await run_within(
                self.pool,
                _COMPILE_TIMEOUT_SEC,
                having(compile_model, model, writable=self.folder),
                model,
                self.target,
                traces,
                self.folder,
            )
            self.narrate("building the operators")
            peaks = await build_peaks(self.pool, self.target, self.folder)
            built = await self._build_alone(workloads, traces) if options.measures_alone else {}
        async with turns.measuring(inventory):
            self.narrate(f"timing the operators in their place on {self.device.name}")
            measured = await self._measure_model(artifact)
            if measured.operators is None:
                raise InvalidRequest(
                    f"the agent of {self.device.name} is too old to time operators in their place; update it"
                )
            self.narrate("timing the operators alone")
            runs = len(measured.operators.run_secs)
            alone = await self._measure_alone(workloads, built, runs)
            roofline = await measure_roofline(self.device, peaks)
            self.narrate("profiling ONNX Runtime")
            reference = await self._profile_reference(runs)
        calls = measured.operators.calls
        own = [call for call in calls if call.function.startswith(VM_PREFIX)]
        instrumented_sec = statistics.median(measured.operators.run_secs)
        # If each call is synchronized, as on GPUs, that is most of the instrument's cost.
        instrument_sec = (min(measured.operators.run_secs) - min(measured.run_secs)) / max(1, len(calls))
        return ModelProfile(
            title=model.title,
            device=self.device.name,
            device_model=inventory.device_model,
            tuned=sum(trace != NO_TRACE for trace in traces.values()),
            total_sec=measured.median_sec,
            instrumented_sec=instrumented_sec,
            operators=join(calls, workloads, alone, roofline, call_sec=max(CALL_SEC, instrument_sec)),
            vm_sec=sum(call.median_sec for call in own),
            vm_calls=len(own),
            roofline=roofline,
            reference=reference,
            notes=self._notes(measured, workloads, alone, roofline),
        )

    def _traces(self, workloads: Sequence[Workload]) -> dict[str, str]:
        inventory = self.device.inventory
        scope = RecordScope(
            target_json=self.target.json, device_model=inventory.device_model, tvm_version=inventory.tvm_version
        )
        with Library.open(self.options.library) as library:
            return without_static(library, workloads, scope) | schedules(library, workloads, scope)

    async def _build_alone(self, workloads: Sequence[Workload], traces: Mapping[str, str]) -> dict[str, Artifact]:
        """Return the built programs, by structural hash."""
        tasks = [
            BuildTask(
                mod_json=workload.mod_json,
                target=self.target,
                trace_json=traces.get(workload.shash),
                out_dir=str(self.folder),
            )
            for workload in workloads
        ]
        results = await asyncio.gather(
            *(run_within(self.pool, _BUILD_TIMEOUT_SEC, build_operator, task) for task in tasks),
            return_exceptions=True,
        )
        built = {}
        for workload, result in zip(workloads, results, strict=True):
            if isinstance(result, BaseException) and not isinstance(result, BuildError | InvalidRequest):
                raise result
            if not isinstance(result, BaseException):
                built[workload.shash] = result
        return built

    async def _measure_model(self, artifact: Artifact) -> Measurement:
        once = await self.device.time(artifact, self.model.inputs, evaluator=Evaluator(), timeout_sec=_RUN_TIMEOUT_SEC)
        runs = self.options.runs or runs_for(once.median_sec)
        return await self.device.time(
            artifact,
            self.model.inputs,
            evaluator=Evaluator(repeat=runs),
            timeout_sec=_RUN_TIMEOUT_SEC + 3 * runs * once.median_sec,
            operator_runs=runs,
        )

    async def _measure_alone(
        self, workloads: Sequence[Workload], built: Mapping[str, Artifact], runs: int
    ) -> dict[str, OperatorCall]:
        """Return one call of each by structural hash, of those that ran.

        As in the model, over as many single runs: an average over many would include disturbances of some.
        """
        wanted = [workload for workload in workloads if workload.shash in built]
        trials = [
            Trial(
                candidate_id=uuid.uuid4().hex,
                artifact_digest=built[workload.shash].digest,
                args=built[workload.shash].args,
                evaluator=Evaluator(repeat=runs),
                timeout_sec=_RUN_TIMEOUT_SEC,
            )
            for workload in wanted
        ]
        await self.device.ensure(built.values())
        found = [measurement async for measurement in self.device.measure(trials)]
        return {
            workload.shash: OperatorCall(
                function=workload.name, min_sec=min(measurement.run_secs), median_sec=measurement.median_sec
            )
            for workload, measurement in zip(wanted, found, strict=True)
            if measurement.run_secs
        }

    async def _profile_reference(self, runs: int) -> ReferenceProfile | None:
        inventory = self.device.inventory
        if not self.target.is_processor or inventory.host_fingerprint != machine_fingerprint():
            return None
        largest = await run_within(self.pool, _COMPILE_TIMEOUT_SEC, having(largest_index, self.model), self.model)
        made = make_inputs(self.model.inputs, 0, largest_index=largest)
        inputs = [given for given in made if not isinstance(given, TensorSpec)]
        return await run_within(
            self.pool,
            _COMPILE_TIMEOUT_SEC,
            having(profile_reference, self.model),
            self.model,
            inputs,
            threads=inventory.core_count,
            runs=runs,
        )

    def _notes(
        self,
        measured: Measurement,
        workloads: Sequence[Workload],
        alone: Mapping[str, OperatorCall],
        roofline: Roofline,
    ) -> tuple[str, ...]:
        notes = [f"disturbed: {found.text}" for found in measured.disturbances]
        failed = [workload.operator for workload in workloads if workload.shash not in alone]
        if failed and self.options.measures_alone:
            notes.append(f"could not be timed alone: {', '.join(failed)}")
        missing = [
            what for what, known in (("arithmetic", roofline.flop_per_sec), ("memory", roofline.memory)) if not known
        ]
        notes += [f"the device's peak of {what} could not be measured" for what in missing]
        return tuple(notes)
