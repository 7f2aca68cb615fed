"""A job has a device only while it measures: not while it searches, builds or asks the engine that it compares with."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from fleet.client.steady import SteadyDevice
from fleet.domain.measuring import TensorSpec
from fleet.library import Library, StoredWorkload
from fleet.models.model import Model, ModelFormat
from fleet.models.reference import ReferenceRun
from fleet.optimizer.core.events import JobStarted
from fleet.optimizer.core.progress import JobProgress, WorkloadProgress
from fleet.optimizer.core.state import JobCore
from fleet.optimizer.index_inputs import largest_index
from fleet.optimizer.loop import TuningLoop
from fleet.optimizer.model_comparison import ModelComparison
from fleet.optimizer.numerics import LARGEST_INDICES
from fleet.optimizer.tasks.build import BuiltCandidate, build_candidate
from fleet.optimizer.tasks.metered import Metered, metered
from fleet.optimizer.tasks.propose import Proposal, propose
from fleet.optimizer.turns import Turns
from fleet.workloads.extract import compile_model
from fleet.workloads.workload import Workload
from tests.service.odd_agent import artifact, seated
from tests.service.test_optimizer_loop import conditions

SPEC = TensorSpec((4,), "float32")


class Attentive:
    """A build pool that notes who asks it for what while there is a device."""

    def __init__(self, folder: Path, device: SteadyDevice) -> None:
        self._built = artifact(folder)
        self._device = device
        self.asked: list[tuple[str, bool]] = []
        """Names of tasks, and whether a device was held."""

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
            return [Proposal(trace_json=trace, digest=trace, predicted=0.0)]
        if fn is compile_model:
            return self._built
        if fn is largest_index:
            return LARGEST_INDICES[0]
        return ReferenceRun(by="onnxruntime", outputs=[2 * array for array in args[1]], median_sec=1e-3)


async def test_a_job_has_no_device_while_the_pool_works_for_it(tmp_path: Path) -> None:
    """From the first static schedule to the comparison of the whole model; others measure meanwhile."""
    args = (SPEC, TensorSpec((4,), "float32", is_output=True))
    item = WorkloadProgress(workload=Workload(name="w", weight=1, mod_json="{}", shash="w", flop=4.0, args=args))
    model = Model(
        title="m",
        format=ModelFormat.ONNX,
        digest="sha256:0",
        input_names=("x",),
        inputs=(SPEC,),
        output_names=("y",),
        content=b"",
    )
    core = JobCore(JobProgress())
    with Library.open(tmp_path / "library.sqlite") as library:
        library.add_workload(StoredWorkload(shash="w", name="w", mod_json="{}"))
        async with seated() as (_, device, _):
            core.apply(JobStarted(conditions(tmp_path, library.start_job(title="t").name), 2, [item]))
            pool, turns = Attentive(tmp_path, device), Turns(shares_cores=True)
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
                placing=None,
            )

            await loop.measure_static()
            await loop.measure_untuned()
            await loop.run()
            report = await comparison.run({})

            assert not device.name

    tasks = {"propose", "build_candidate", "compile_model", "largest_index", "reference_outputs"}
    assert {name for name, _ in pool.asked} == tasks
    assert [name for name, has_device in pool.asked if has_device] == []
    assert report.is_right
    assert report.tuned_ms is not None
    assert core.progress.trials_done == 2
