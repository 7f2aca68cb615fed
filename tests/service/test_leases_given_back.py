"""A job holds a device only while it measures, not while it searches, builds or runs the engine for comparison."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fleet.building.build_candidate import build_candidate
from fleet.building.built_candidate import BuiltCandidate
from fleet.building.metered import Metered, metered
from fleet.building.turns import Turns
from fleet.checking.index_inputs import largest_index
from fleet.checking.numerics import LARGEST_INDICES
from fleet.client.steady import SteadyDevice
from fleet.domain.keys import NO_TRACE
from fleet.domain.measuring import TensorSpec
from fleet.domain.workload import Workload
from fleet.library import Library, StoredWorkload
from fleet.models.model import Model, ModelFormat
from fleet.models.reference import ReferenceRun
from fleet.optimizer.core.candidates import Candidate
from fleet.optimizer.core.progress import JobProgress, WorkloadProgress
from fleet.optimizer.core.state import JobCore
from fleet.optimizer.loop import TuningLoop
from fleet.optimizer.model_comparison import ModelComparison
from fleet.optimizer.tasks.propose import propose
from fleet.testing import eventually
from fleet.workloads.extract import compile_model
from tests.service.odd_agent import artifact, seated
from tests.service.test_optimizer_loop import conditions

SPEC = TensorSpec((4,), "float32")


class Attentive:
    """A build pool that records its tasks and whether a device was held."""

    def __init__(self, folder: Path, device: SteadyDevice, turns: Turns) -> None:
        self._built = artifact(folder)
        self._device = device
        self._turns = turns
        self.asked: list[tuple[str, bool]] = []
        """Names of tasks, and whether a device was held."""

        self.schedules: list[dict[str, str]] = []
        """Schedules given for whole models."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if fn is metered:
            future.set_result(Metered(self._answer(*args), 0.0))
        else:
            future.set_result(self._answer(fn, *args))
        return future

    def submit_within(self, timeout_sec: float, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self.submit(fn, *args, **kwargs)

    def submit_near(
        self, key: str, timeout_sec: float, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Future[Any]:
        return self.submit(fn, *args, **kwargs)

    def _answer(self, fn: Callable[..., Any], *args: Any) -> object:
        self.asked.append((fn.__name__, bool(self._device.name)))
        if fn is build_candidate:
            return BuiltCandidate(artifact=self._built, features=None)
        if fn is propose:
            trace = f'["{len(self.asked)}"]'
            return [Candidate(trace_json=trace, digest=trace, predicted=0.0)]
        if fn is compile_model:
            self.schedules.append(args[2])
            return self._built
        if fn is largest_index:
            return LARGEST_INDICES[0]
        return ReferenceRun(by="onnxruntime", outputs=[2 * array for array in args[1]])


class Crowded(Attentive):
    """Another job tries to measure once this one has an engine look for the largest index."""

    def __init__(self, folder: Path, device: SteadyDevice, turns: Turns) -> None:
        super().__init__(folder, device, turns)
        self.looked_on: list[bool] = []
        """True if the engine still looked when the other job measured."""

        self._tasks: list[asyncio.Task[None]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if fn is not largest_index:
            return super().submit(fn, *args, **kwargs)
        looking: Future[Any] = Future()
        self._tasks = [asyncio.create_task(self._measure(looking)), asyncio.create_task(self._look(looking))]
        return looking

    async def _measure(self, looking: Future[Any]) -> None:
        async with self._turns.measuring():
            self.looked_on.append(not looking.done())

    async def _look(self, looking: Future[Any]) -> None:
        for _ in range(10):
            await asyncio.sleep(0)
        looking.set_result(LARGEST_INDICES[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A job of one workload, and the comparison of its model."""

    core: JobCore
    loop: TuningLoop
    device: SteadyDevice
    pool: Attentive
    comparison: ModelComparison


@asynccontextmanager
async def bench(folder: Path, pool_type: type[Attentive] = Attentive) -> AsyncIterator[Bench]:
    args = (SPEC, TensorSpec((4,), "float32", is_output=True))
    item = WorkloadProgress(workload=Workload(name="w", weight=1, mod_json="{}", shash="w", flop=4.0, args=args))
    model = Model(
        title="m",
        format=ModelFormat.ONNX,
        digest="sha256:0",
        input_names=("x",),
        inputs=(SPEC,),
        output_names=("y",),
        stored=b"",
    )
    core = JobCore(JobProgress())
    with Library.open(folder / "library.sqlite") as library:
        library.add_workload(StoredWorkload(shash="w", name="w", mod_json="{}"))
        async with seated() as (_, device, _):
            core.start(conditions(folder, library.start_job(title="t").name), 2, [item])
            turns = Turns(shares_cores=True)
            pool = pool_type(folder, device, turns)
            loop = TuningLoop(core, device=device, pool=pool, library=library, turns=turns, gives_back=True)
            comparison = ModelComparison(
                model=model,
                core=core,
                loop=loop,
                device=device,
                pool=pool,
                turns=turns,
                threads=1,
                is_local=True,
                without_static={},
                terms=4,
                placing=None,
            )
            yield Bench(core=core, loop=loop, device=device, pool=pool, comparison=comparison)


async def test_no_model_has_a_static_schedule_that_failed(tmp_path: Path) -> None:
    """It would end the model, too, and with it the comparison of all other schedules."""
    async with bench(tmp_path) as job:
        comparison = replace(job.comparison, without_static={"failed": NO_TRACE, "tuned": NO_TRACE})
        report = await comparison.run({"tuned": "[[1],[]]"})

    assert report.is_right
    assert [schedules["failed"] for schedules in job.pool.schedules] == [NO_TRACE] * 3
    assert [schedules["tuned"] for schedules in job.pool.schedules] == [NO_TRACE, NO_TRACE, "[[1],[]]"]


async def test_a_job_has_no_device_while_the_pool_works_for_it(tmp_path: Path) -> None:
    """No device is held from the first static schedule to the comparison of the whole model; others measure
    meanwhile.
    """
    async with bench(tmp_path) as job:
        await job.loop.measure_static()
        await job.loop.measure_untuned()
        await job.loop.run()
        report = await job.comparison.run({})

        assert not job.device.name

    tasks = {"propose", "build_candidate", "compile_model", "largest_index", "reference_outputs", "serve_turns"}
    assert {name for name, _ in job.pool.asked} == tasks
    assert [name for name, has_device in job.pool.asked if has_device] == []
    assert report.is_right
    assert report.tuned_ms is not None
    assert job.core.progress.trials_done == 2


async def test_the_compared_engine_has_the_machine_to_itself(tmp_path: Path) -> None:
    """This includes the search for the largest index, which runs the model."""
    async with bench(tmp_path, Crowded) as job:
        await job.comparison.run({})

        assert isinstance(job.pool, Crowded)
        await eventually(lambda: job.pool.looked_on)
        assert job.pool.looked_on == [False]
