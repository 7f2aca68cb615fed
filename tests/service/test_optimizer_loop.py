"""A job's loop and its checks on a real data path that breaks."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fleet.aio
from fleet.building.build_candidate import BuildTask
from fleet.building.built_candidate import BuiltCandidate
from fleet.building.metered import Metered, metered
from fleet.building.turns import Turns
from fleet.client.device import Device
from fleet.client.steady import SteadyDevice
from fleet.cost_model.feature_codec import FEATURE_VERSION
from fleet.domain.keys import trace_digest
from fleet.domain.leases import LeaseClass, make_terms
from fleet.domain.measuring import Evaluator, TensorSpec
from fleet.domain.model_snapshots import ModelSnapshot
from fleet.domain.scope import RecordScope
from fleet.domain.workload import Workload
from fleet.errors import DeviceUnreachable
from fleet.library import Library, RecordKind, StoredWorkload
from fleet.optimizer.conditions import Conditions
from fleet.optimizer.core.candidates import Candidate, CandidateStage
from fleet.optimizer.core.events import BatchWanted, Proposed
from fleet.optimizer.core.invariants import validate
from fleet.optimizer.core.progress import JobProgress, WorkloadProgress
from fleet.optimizer.core.state import JobCore
from fleet.optimizer.loop import Round, TuningLoop
from fleet.optimizer.narrator import narrate
from fleet.optimizer.recall import recall
from fleet.optimizer.tasks.propose import ProposeTask
from fleet.testing import SimulatedAgent, eventually, serve_tracker
from fleet.v1 import measurement_pb2
from tests.service.client_fakes import serving
from tests.service.odd_agent import OddAgent, artifact, bad, good, seated


class BuiltAlready:
    """A build pool that returns one known artifact for every build."""

    def __init__(self, folder: Path) -> None:
        self._built = artifact(folder)
        self.searches: list[ProposeTask] = []
        """Submitted searches; none of them finds anything."""

        self.tasks = 0
        """Number of other tasks."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.tasks += 1
        future: Future[Any] = Future()
        built = BuiltCandidate(artifact=self._built, features=None)
        future.set_result(Metered(built, 0.0) if fn is metered else built)
        return future

    def submit_within(self, timeout_sec: float, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self.submit(fn, *args, **kwargs)

    def submit_near(
        self, key: str, timeout_sec: float, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Future[Any]:
        self.searches.append(args[-1])
        future: Future[Any] = Future()
        future.set_result(Metered([], 0.0))
        return future


@dataclass
class Bench:
    """A job of one workload on an odd agent."""

    agent: OddAgent
    library: Library
    core: JobCore
    loop: TuningLoop
    notices: list[str]
    pool: BuiltAlready
    device: SteadyDevice

    @property
    def item(self) -> WorkloadProgress:
        return self.core.workload("w")

    async def measure(self, *digests: str) -> None:
        """Measure and check candidates; the trace of each is its digest in brackets."""
        await self.loop.apply(Proposed("w", proposals(*digests)))
        await self.loop.apply(BatchWanted("w", digests))


def proposals(*digests: str) -> tuple[Candidate, ...]:
    """Return proposals; the trace of each is its digest in brackets."""
    return tuple(Candidate(digest=digest, trace_json=f'["{digest}"]') for digest in digests)


ARGS = (TensorSpec((4,), "float32"), TensorSpec((4,), "float32", is_output=True))
WORKLOAD = Workload(name="w", weight=1, mod_json="{}", shash="w", flop=4.0, args=ARGS)


@contextlib.asynccontextmanager
async def bench(
    folder: Path,
    pool: BuiltAlready | None = None,
    *,
    agent: OddAgent | None = None,
    shares_cores: bool = True,
    **changes: float,
) -> AsyncGenerator[Bench, None]:
    item = WorkloadProgress(workload=WORKLOAD)
    notices: list[str] = []
    core = JobCore(JobProgress(notice=notices.append))
    with Library.open(folder / "library.sqlite") as library:
        library.add_workload(StoredWorkload(shash="w", name="w", mod_json="{}"))
        found = conditions(folder, library.start_job(title="t").name)
        terms = replace(found, shares_cores=shares_cores, **changes)
        async with seated(agent=agent) as (agent, device, _):
            core.start(terms, 100, [item])
            turns, pool = Turns(shares_cores=shares_cores), pool or BuiltAlready(folder)
            loop = TuningLoop(core, device=device, pool=pool, library=library, turns=turns)
            yield Bench(agent, library, core, loop, notices, pool, device)
            validate(core)


async def test_a_workload_that_cannot_be_checked_is_closed(tmp_path: Path) -> None:
    """If its unscheduled program fails on the check's inputs, the workload is closed with one notice, and the others go
    on.
    """
    async with bench(tmp_path) as job:
        job.agent.refuses_calls = [measurement_pb2.ERROR_KIND_OUT_OF_MEMORY]
        await job.measure("a", "b")

    assert "cannot be checked" in narrate(job.item.closing)
    assert job.item.best_trace is None
    assert len(job.notices) == job.agent.calls == 1


@pytest.mark.parametrize(("kinds", "asked"), [(["cuda", "llvm"], b"model"), (["cuda"], None)])
async def test_a_search_asks_the_snapshot_of_the_library(tmp_path: Path, kinds: list[str], asked: bytes | None) -> None:
    """The snapshot is used only if it was trained on such targets; GPUs teach nothing about processors."""
    snapshot = ModelSnapshot(
        digest="sha256:0",
        content=b"model",
        feature_version=FEATURE_VERSION,
        target_kinds=tuple(kinds),
        record_count=1,
        made_at_sec=0.0,
    )
    async with bench(tmp_path) as job:
        job.loop.use_snapshot(snapshot)
        await job.loop.measure_static()

        assert [task.shared for task in job.pool.searches] == [asked]


async def test_a_candidate_under_which_the_device_went_away_is_neither_right_nor_wrong(tmp_path: Path) -> None:
    """It is not called again, and is dropped; the next candidate is checked."""
    async with bench(tmp_path) as job:
        await job.measure("a")
        job.agent.answer = lambda _, asked: good(asked, 1e-7)
        job.agent.refuses_calls = [DeviceUnreachable("gone")]
        await job.measure("b")

        assert job.item.best_trace == '["a"]'
        assert ("w", "b") not in job.core.candidates
        assert not job.item.errors
        assert job.agent.calls == 3


@pytest.mark.parametrize(("crashes", "errors"), [(1, {}), (2, {"WRONG_OUTPUT": 1})])
async def test_a_crash_in_a_check_counts_only_when_it_happens_again(
    tmp_path: Path, crashes: int, errors: dict[str, int]
) -> None:
    """A single crash may have another cause, such as a killed worker."""
    async with bench(tmp_path) as job:
        await job.measure("a")
        job.agent.answer = lambda _, asked: good(asked, 1e-7)
        job.agent.refuses_calls = [measurement_pb2.ERROR_KIND_CRASHED] * crashes
        await job.measure("b")

    assert dict(job.item.errors) == errors
    assert job.item.best_trace == ('["a"]' if errors else '["b"]')


@pytest.mark.parametrize(("losses", "is_timed"), [(1, True), (2, False)])
async def test_an_unscheduled_program_is_timed_again_when_the_device_went_away(
    tmp_path: Path, losses: int, is_timed: bool
) -> None:
    """One loss of the agent does not close a workload for the whole job; a second one under the same program does."""
    async with bench(tmp_path) as job:
        job.agent.refuses_measure = [DeviceUnreachable("gone")] * losses
        await job.loop.measure_untuned()

    assert math.isfinite(job.item.untuned_sec) is is_timed
    assert bool(job.item.closing) is not is_timed


async def test_a_disturbed_time_is_stored_and_then_replaced(tmp_path: Path) -> None:
    """Both records are in the library; the job counts one trial, and search and best candidates see the calm time."""
    async with bench(tmp_path) as job:
        job.agent.answer = lambda count, asked: disturbed(asked, 9e-6) if count == 1 else good(asked, 1e-6)
        await job.measure("a")
        records = job.library.records("w")
        (best,) = job.library.best("w", k=1)

        assert job.core.candidates["w", "a"].median_sec == 1e-6
        assert job.core.candidates["w", "a"].stage is CandidateStage.CHECKED
    assert sorted(record.run_secs for record in records) == [(1e-6,), (9e-6,)]
    assert best.run_secs == (1e-6,)
    assert best.checked
    assert [record.run_sec for record in job.item.records] == [1e-6]
    assert (job.item.trials, job.core.progress.repeats.count) == (1, 1)


async def test_two_devices_measure_two_workloads_at_the_same_time(tmp_path: Path) -> None:
    """Each takes the next batch, checks it, and its name is stored with the result."""
    agent, names = OddAgent(), ["devices/a", "devices/b"]
    args = (TensorSpec((4,), "float32"), TensorSpec((4,), "float32", is_output=True))
    workloads = [Workload(name=n, weight=1, mod_json="{}", shash=n, flop=4.0, args=args) for n in "vw"]
    core = JobCore(JobProgress())
    with Library.open(tmp_path / "library.sqlite") as library:
        for item in workloads:
            library.add_workload(StoredWorkload(shash=item.shash, name=item.name, mod_json="{}"))
        job_name = library.start_job(title="t").name
        async with (
            serving(session=agent) as agent.address,
            serve_tracker() as tracker,
            SimulatedAgent(tracker.address, names, address=agent.address),
            fleet.aio.connect(tracker.address) as client,
            SteadyDevice(client, make_terms("simulated")) as first,
            SteadyDevice(client, make_terms("simulated")) as second,
        ):
            items = [WorkloadProgress(workload=item) for item in workloads]
            core.start(conditions(tmp_path, job_name), 100, items)
            turns = Turns(shares_cores=False)
            loop = TuningLoop(
                core, device=first, others=[second], pool=BuiltAlready(tmp_path), library=library, turns=turns
            )
            queue: asyncio.Queue[Round | None] = asyncio.Queue()
            for item in workloads:
                await loop.apply(Proposed(item.shash, proposals("a")))
                queue.put_nowait(Round(item.shash, ("a",), 1.0))
            queue.put_nowait(None)
            await loop.measure_rounds(queue)
        found = [record.device_name for item in workloads for record in library.records(item.shash)]

    validate(core)
    assert sorted(found) == names
    assert all(item.best_trace for item in items)


class Searching(BuiltAlready):
    """A build pool whose searches find the next of `most` candidates; one of its builds never ends."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.most = 100
        self.endless: int | None = 4
        """Number of that build."""

        self.log_secs: NDArray[np.float32] | None = None
        """Predictions for each candidate."""

        self.told: list[tuple[int, int]] = []
        """Number of results, and of candidates under way, given to each search."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if isinstance(args[-1], BuildTask) and args[-1].trace_json == f'["{self.endless}"]':
            return Future()
        return super().submit(fn, *args, **kwargs)

    def submit_near(
        self, key: str, timeout_sec: float, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Future[Any]:
        task: ProposeTask = args[-1]
        self.told.append((len(task.records), len(task.known)))
        old = {trace_digest(record.trace_json) for record in task.records} | task.known
        fresh = [trace for n in range(self.most) if trace_digest(trace := f'["{n}"]') not in old]
        found = [
            Candidate(trace_json=trace, digest=trace_digest(trace), predicted=math.nan, log_secs=self.log_secs)
            for trace in fresh[: task.count + task.ahead]
        ]
        future: Future[Any] = Future()
        future.set_result(Metered(found, 0.0))
        return future


@pytest.mark.parametrize("until_gain", [0.0, 0.005])
async def test_a_job_whose_predictions_are_all_nan_ends_with_all_of_its_candidates(
    tmp_path: Path, until_gain: float
) -> None:
    """Its records count instead: it neither ends before its first batch nor searches for ever."""
    pool = Searching(tmp_path)
    pool.most, pool.endless, pool.log_secs = 16, None, np.full(3, math.nan, np.float32)
    async with bench(tmp_path, pool, until_gain=until_gain) as job:
        async with asyncio.timeout(60):
            await job.loop.run()

    assert len(pool.told) > 1
    assert job.item.trials >= job.core.conditions.batch_size
    assert job.item.best_trace is not None
    assert job.item.closing is not None
    assert all(math.isfinite(batch.reason.worth) for batch in job.core.progress.decisions)
    assert until_gain or job.item.trials == 16


async def test_a_job_that_is_cut_off_with_batches_ahead_measures_each_once(tmp_path: Path) -> None:
    """Candidates that were only searched are not claimed, built ones are; the next run measures these first."""
    pool = Searching(tmp_path)
    async with bench(tmp_path, pool, shares_cores=False) as job:
        running = asyncio.create_task(job.loop.run())
        stuck = trace_digest('["4"]')
        await eventually(lambda: job.item.trials == 4 and stuck in job.item.under_way and job.item.backlog.candidates)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        terms = job.core.conditions
        in_flight = job.library.claims.in_flight(terms.job_name, terms.scope)
        pool.most, pool.endless = 8, None
        again = JobCore()
        again.start(terms, 100, recall(job.library, [WORKLOAD], terms.scope))
        turns = Turns(shares_cores=False)
        loop = TuningLoop(again, device=job.device, pool=pool, library=job.library, turns=turns)
        await loop.take_up(in_flight)
        await loop.run()
        records = job.library.records("w", kinds=[RecordKind.CANDIDATE])

    assert in_flight == {"w": {stuck: '["4"]'}}
    found = list(dict.fromkeys(record.trace_json for record in records))
    # Candidates of one batch are stored side by side, in any order; batches follow each other.
    assert [sorted(found[:4]), found[4], sorted(found[5:])] == [
        [f'["{n}"]' for n in range(4)],
        '["4"]',
        [f'["{n}"]' for n in range(5, 8)],
    ]
    assert again.workload("w").trials == 4


@pytest.mark.parametrize(("threads", "under_way"), [(2, 1), (1, 0)])
async def test_where_cores_are_shared_a_workload_alone_is_searched_while_a_batch_is_built(
    tmp_path: Path, threads: int, under_way: int
) -> None:
    """With one core for both, overlapping gains nothing: each search waits for all results."""
    pool = Searching(tmp_path)
    pool.endless = 2
    async with bench(tmp_path, pool, shares_cores=True, search_threads=threads) as job:
        running = asyncio.create_task(job.loop.run())
        stuck = trace_digest('["2"]')
        await eventually(lambda: stuck in job.item.under_way and len(pool.told) == 3)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    assert pool.told == [(0, 0), (1, under_way), (2, under_way)]
    assert job.item.trials == 2


class Vanishing(OddAgent):
    """Takes candidates, and vanishes before it has measured one."""

    def __init__(self) -> None:
        super().__init__()
        self.was_asked, self.is_gone = asyncio.Event(), asyncio.Event()

    async def measure(self, requests: Any, context: Any) -> AsyncGenerator[measurement_pb2.Measurement, None]:  # type: ignore[override]
        async for _ in requests:
            self.was_asked.set()
            await self.is_gone.wait()
            raise DeviceUnreachable("gone")
            yield


async def test_a_device_that_is_gone_for_good_leaves_its_batch_to_the_other(tmp_path: Path) -> None:
    """Another batch of the same workload on the remaining device blocks neither of them."""
    left, gone = OddAgent(), Vanishing()
    core = JobCore(JobProgress())
    args = (TensorSpec((4,), "float32"), TensorSpec((4,), "float32", is_output=True))
    item = WorkloadProgress(workload=Workload(name="w", weight=1, mod_json="{}", shash="w", flop=4.0, args=args))
    with Library.open(tmp_path / "library.sqlite") as library:
        library.add_workload(StoredWorkload(shash="w", name="w", mod_json="{}"))
        core.start(conditions(tmp_path, library.start_job(title="t").name), 100, [item])
        async with (
            serving(session=left) as left.address,
            serving(session=gone) as gone.address,
            serve_tracker() as tracker,
            SimulatedAgent(tracker.address, ["devices/left"], address=left.address),
            contextlib.AsyncExitStack() as agent_of_gone,
            fleet.aio.connect(tracker.address) as client,
            SteadyDevice(client, make_terms("simulated", prefer="name=gone"), stays_alike=False) as first,
            SteadyDevice(client, make_terms("simulated", prefer="name=left"), stays_alike=False) as second,
        ):
            agent = SimulatedAgent(tracker.address, ["devices/gone"], agent_id="gone", address=gone.address)
            await agent_of_gone.enter_async_context(agent)
            pool, turns = BuiltAlready(tmp_path), Turns(shares_cores=False)
            loop = TuningLoop(
                core, device=first, others=[second], pool=pool, library=library, turns=turns, gives_back=True
            )
            queue: asyncio.Queue[Round | None] = asyncio.Queue()
            await loop.apply(Proposed("w", proposals(*"abc")))
            queue.put_nowait(Round("w", ("a", "b"), 1.0))
            await second.device()
            measuring = asyncio.create_task(loop.measure_rounds(queue))
            await gone.was_asked.wait()
            queue.put_nowait(Round("w", ("c",), 1.0))
            queue.put_nowait(None)
            await eventually(lambda: left.measured or not second.name)
            await agent_of_gone.aclose()
            gone.is_gone.set()
            async with asyncio.timeout(60):
                await measuring
        found = {record.trace_json: (record.device_name, record.error) for record in library.records("w")}

    validate(core)
    assert found['["b"]'] == found['["c"]'] == ("devices/left", None)


@pytest.mark.parametrize("shares_cores", [True, False])
async def test_a_more_valuable_batch_of_the_account_goes_between_two_batches(
    tmp_path: Path, *, shares_cores: bool
) -> None:
    """Batches that have begun are measured whole. The job asks again, and measures the others afterwards."""
    agent, core = OddAgent(), JobCore(JobProgress())
    batch = make_terms("simulated", lease_class=LeaseClass.BATCH)
    with Library.open(tmp_path / "library.sqlite") as library:
        library.add_workload(StoredWorkload(shash="w", name="w", mod_json="{}"))
        core.start(conditions(tmp_path, library.start_job(title="t").name), 100, [WorkloadProgress(workload=WORKLOAD)])
        async with (
            serving(session=agent) as agent.address,
            serve_tracker() as tracker,
            SimulatedAgent(tracker.address, ["devices/odd"], address=agent.address),
            fleet.aio.connect(tracker.address) as client,
            SteadyDevice(client, batch) as device,
            SteadyDevice(client, make_terms(batch, bid=5.0)) as other,
        ):
            turns, pool = Turns(shares_cores=shares_cores), BuiltAlready(tmp_path)
            loop = TuningLoop(core, device=device, pool=pool, library=library, turns=turns, gives_back=True)
            waiting: list[asyncio.Task[Device]] = []
            measured_before: list[int] = []

            async def ask() -> None:
                if not waiting:
                    waiting.append(asyncio.create_task(other.device()))
                    await eventually(lambda: device.is_outbid)

            agent.before_call = ask
            queue: asyncio.Queue[Round | None] = asyncio.Queue()
            await loop.apply(Proposed("w", proposals(*"abcdef")))
            for made in (*(Round("w", (a, b), 1.0) for a, b in ("ab", "cd", "ef")), None):
                queue.put_nowait(made)
            measuring = asyncio.create_task(loop.measure_rounds(queue))
            async with asyncio.timeout(60):
                await eventually(lambda: bool(waiting))
                await waiting[0]
                measured_before.append(len(agent.measured))
                await other.give_back()
                await measuring
        found = {record.trace_json for record in library.records("w")}

    assert measured_before in ([2], [4])  # a batch that was sent ahead is measured, too
    assert found == {f'["{digest}"]' for digest in "abcdef"}


async def test_the_next_batch_is_measured_while_the_last_is_checked(tmp_path: Path) -> None:
    """A device of its own waits for no check; results are applied batch by batch all the same."""
    pool = Searching(tmp_path)
    pool.most, pool.endless = 4, None
    async with bench(tmp_path, pool, shares_cores=False) as job:
        trials: list[int] = []

        async def two_are_measured() -> None:
            await eventually(lambda: len(job.agent.measured) > 1)
            trials.append(job.item.trials)

        job.agent.before_call = two_are_measured
        await job.loop.run()

    assert trials[0] == 1
    assert job.item.trials == 4
    assert job.item.best_trace is not None


class Reading(OddAgent):
    """Receives requests while it measures; answers the last trial of its first batch once `before_last` holds."""

    def __init__(self) -> None:
        super().__init__()
        self.error: Any = None
        self.came: list[str] = []
        self.came_before_last: int | None = None
        self.before_last: Callable[[], bool] = lambda: True

    async def measure(self, requests: Any, context: Any) -> AsyncGenerator[measurement_pb2.MeasureResponse, None]:  # type: ignore[override]
        taken: asyncio.Queue[measurement_pb2.MeasureRequest | None] = asyncio.Queue()
        reading = asyncio.create_task(self._read(requests, taken))
        while (request := await taken.get()) is not None:
            if request.ends_batch and self.came_before_last is None:
                await eventually(self.before_last)
                self.came_before_last = len(self.came)
            found = good(request) if self.error is None else bad(request, self.error)
            yield measurement_pb2.MeasureResponse(measurement=found)
        await reading

    async def _read(self, requests: Any, taken: asyncio.Queue[measurement_pb2.MeasureRequest | None]) -> None:
        async for request in requests:
            self.came.append(request.candidate_id)
            taken.put_nowait(request)
        taken.put_nowait(None)


async def test_the_next_batch_is_on_its_way_before_the_last_is_measured(tmp_path: Path) -> None:
    """A remote device does not idle for a round trip between batches."""
    pool, agent = Searching(tmp_path), Reading()
    pool.most, pool.endless = 8, None
    agent.before_last = lambda: len(agent.came) > 4
    async with bench(tmp_path, pool, agent=agent, shares_cores=False, batch_size=4) as job:
        await job.loop.run()

    assert agent.came_before_last is not None
    assert job.item.trials == 8


async def test_no_batch_is_sent_ahead_while_candidates_break_down(tmp_path: Path) -> None:
    """The device may be at fault: the next batch waits until that is known."""
    pool, agent = Searching(tmp_path), Reading()
    pool.most, pool.endless = 8, None
    agent.error = measurement_pb2.ERROR_KIND_CRASHED
    async with bench(tmp_path, pool, agent=agent, shares_cores=False, batch_size=4) as job:
        agent.before_last = lambda: job.item.trials > 1  # by then another batch would have come
        running = asyncio.create_task(job.loop.run())
        await eventually(lambda: agent.came_before_last is not None)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    assert agent.came_before_last == 4


def conditions(folder: Path, job_name: str) -> Conditions:
    return Conditions(
        job_name=job_name,
        scope=RecordScope(target_json='{"kind": "llvm"}', device_model="", tvm_version=""),
        device_fingerprint="",
        seed=1,
        batch_size=1,
        search_threads=1,
        enough=100,
        evaluator=Evaluator(),
        trial_timeout_sec=1.0,
        artifact_dir=folder,
        started_at=0.0,
    )


def disturbed(request: measurement_pb2.MeasureRequest, run_sec: float) -> measurement_pb2.Measurement:
    measurement = good(request, run_sec)
    measurement.provenance.disturbances.add(kind=measurement_pb2.DISTURBANCE_KIND_THROTTLED, text="throttled: thermal")
    return measurement
