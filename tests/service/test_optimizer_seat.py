"""The seat of a tuning job, against a real tracker and data paths that break, lie and never come to a result."""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from client_fakes import SmallAgent, serving

import fleet.aio
from fleet.artifacts import Artifact
from fleet.errors import DeviceClosed, DeviceFaulted, DeviceUnreachable, MeasurementError, TrackerUnavailable
from fleet.library import Library
from fleet.library import Workload as StoredWorkload
from fleet.measuring import ErrorKind, Evaluator, Measurement, TensorSpec, Trial
from fleet.optimizer import repeats
from fleet.optimizer import seat as seats
from fleet.optimizer.build_task import BuiltCandidate
from fleet.optimizer.candidates import Candidate, Conditions
from fleet.optimizer.checker import Checker
from fleet.optimizer.pipeline import Pipeline
from fleet.optimizer.progress import JobProgress, WorkloadProgress
from fleet.optimizer.recorder import Recorder
from fleet.optimizer.seat import Seat
from fleet.optimizer.turns import Turns
from fleet.testing import SimulatedAgent, serve_tracker
from fleet.v1 import measurement_pb2, session_service_pb2
from fleet.workloads.workload import Workload

Answer = Callable[[int, measurement_pb2.MeasureRequest], measurement_pb2.Measurement]


class OddAgent(SmallAgent):
    """A small data path whose answers a test sets; counts what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.opens = 0
        self.measured: list[str] = []
        self.calls = 0
        self.refuses_open: list[Exception] = []
        self.answer: Answer | None = None
        self.last_word: Exception | None = None
        self.refuses_calls: list[Any] = []
        self.refuses_measure: list[Exception] = []

    async def open_session(self, request: Any, context: Any) -> session_service_pb2.OpenSessionResponse:
        self.opens += 1
        if self.refuses_open:
            raise self.refuses_open.pop(0)
        return await super().open_session(request, context)

    async def measure(self, requests: Any, context: Any) -> AsyncIterator[measurement_pb2.MeasureResponse]:
        if self.refuses_measure:
            raise self.refuses_measure.pop(0)
        async for request in requests:
            self.measured.append(request.candidate_id)
            answer = self.answer or (lambda _, asked: good(asked))
            yield measurement_pb2.MeasureResponse(measurement=answer(len(self.measured), request))
        if self.last_word is not None:
            raise self.last_word

    async def call(self, request: Any, context: Any) -> session_service_pb2.CallResponse:
        self.calls += 1
        if self.refuses_calls:
            refusal = self.refuses_calls.pop(0)
            if isinstance(refusal, Exception):
                raise refusal
            return session_service_pb2.CallResponse(error=refusal, error_message="no")
        return await super().call(request, context)


def good(request: measurement_pb2.MeasureRequest, *run_secs: float) -> measurement_pb2.Measurement:
    return measurement_pb2.Measurement(candidate_id=request.candidate_id, run_secs=run_secs or [1e-6])


def bad(request: measurement_pb2.MeasureRequest, error: Any) -> measurement_pb2.Measurement:
    return measurement_pb2.Measurement(candidate_id=request.candidate_id, error=error)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seats, "_PAUSES_SEC", (0.0, 0.01, 0.01))


@contextlib.asynccontextmanager
async def seated(address: str = "") -> AsyncGenerator[tuple[OddAgent, Seat, list[str]], None]:
    """Serve a tracker with one odd device, found at `address` if given, and sit down."""
    agent, notices = OddAgent(), list[str]()
    async with (
        serving(session=agent) as agent.address,
        serve_tracker() as tracker,
        SimulatedAgent(tracker.address, ["devices/odd"], address=address or agent.address),
        fleet.aio.connect(tracker.address) as client,
        Seat(client, "simulated", purpose="test", notice=notices.append) as seat,
    ):
        yield agent, seat, notices


def artifact(folder: Path) -> Artifact:
    path = folder / "a.so"
    path.write_bytes(b"content")
    return Artifact(path=path, digest="sha256:" + hashlib.sha256(b"content").hexdigest())


async def measured(seat: Seat, built: Artifact, count: int = 2) -> list[Measurement]:
    trials = [Trial(candidate_id=str(number), artifact_digest=built.digest) for number in range(count)]
    async with aclosing(seat.measure([built], trials)) as results:
        return [result async for result in results]


async def test_a_device_that_nobody_reaches_ends_the_wait() -> None:
    """Granted again and again at an address where nobody listens: an error after a few tries, no endless loop."""
    async with seated(address="127.0.0.1:9") as (_, seat, notices):
        with pytest.raises(DeviceUnreachable, match="does not answer"):
            await seat.device()
    assert len(notices) == 3


async def test_an_agent_that_has_just_started_is_waited_for(tmp_path: Path) -> None:
    """It has not met its tracker again: that ends no job."""
    async with seated() as (agent, seat, _):
        agent.refuses_open = [TrackerUnavailable("not yet"), TrackerUnavailable("not yet")]
        results = await measured(seat, artifact(tmp_path))
    assert [result.error for result in results] == [None, None]


async def test_an_artifact_that_is_always_missing_ends_the_batch(tmp_path: Path) -> None:
    """An agent that takes artifacts and never has them is given up, with what it said."""
    async with seated() as (agent, seat, _):
        agent.answer = lambda _, asked: bad(asked, measurement_pb2.ERROR_KIND_ARTIFACT_MISSING)
        with pytest.raises(DeviceUnreachable, match="no result in 3 tries: ARTIFACT_MISSING"):
            await measured(seat, artifact(tmp_path))


async def test_an_artifact_that_is_missing_once_is_put_again(tmp_path: Path) -> None:
    """One measurement for each trial, in order."""
    async with seated() as (agent, seat, _):
        agent.answer = lambda count, asked: (
            bad(asked, measurement_pb2.ERROR_KIND_ARTIFACT_MISSING) if count == 2 else good(asked)
        )
        results = await measured(seat, artifact(tmp_path), 3)
    assert [(result.candidate_id, result.error) for result in results] == [("0", None), ("1", None), ("2", None)]


async def test_the_reason_behind_an_ended_session_is_heard(tmp_path: Path) -> None:
    """A device that cannot run anything says so after its results: the job ends with that, and tries not for ever."""
    async with seated() as (agent, seat, _):
        agent.answer = lambda _, asked: bad(asked, measurement_pb2.ERROR_KIND_LEASE_ENDED)
        agent.last_word = DeviceFaulted("no worker can be started")
        with pytest.raises(DeviceUnreachable, match="no result in 3 tries: no worker can be started"):
            await measured(seat, artifact(tmp_path))


@pytest.mark.parametrize("times", [(math.nan,), (1e-6, -1e-6), (math.inf,), (0.0,)])
async def test_times_that_are_none_are_an_error(tmp_path: Path, times: tuple[float, ...]) -> None:
    """A device that lies costs the candidate, not the job."""
    async with seated() as (agent, seat, _):
        agent.answer = lambda _, asked: good(asked, *times)
        (result,) = await measured(seat, artifact(tmp_path), 1)
    assert result.error is ErrorKind.RUN_FAILED
    assert not result.run_secs


async def test_a_call_puts_a_missing_artifact_again(tmp_path: Path) -> None:
    """An artifact that the agent lost is no fault of the candidate."""
    async with seated() as (agent, seat, _):
        agent.refuses_calls = [measurement_pb2.ERROR_KIND_ARTIFACT_MISSING]
        assert await seat.call(artifact(tmp_path), []) == []
    assert agent.calls == 2


async def test_what_may_have_broken_the_device_is_not_called_again(tmp_path: Path) -> None:
    """A candidate that is not trusted is called once; a trusted program again."""
    async with seated() as (agent, seat, _):
        agent.refuses_calls = [DeviceUnreachable("gone")]
        with pytest.raises(MeasurementError, match="not tried again") as caught:
            await seat.call(artifact(tmp_path), [], is_trusted=False)
        assert caught.value.kind == ErrorKind.DEVICE_FAULTED
        assert agent.calls == 1
        agent.refuses_calls = [DeviceUnreachable("gone")]
        assert await seat.call(artifact(tmp_path), []) == []


class BuiltAlready:
    """A build pool whose every build is one known artifact."""

    def __init__(self, built: Artifact) -> None:
        self._built = built

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(BuiltCandidate(artifact=self._built, features=None))
        return future

    def submit_within(self, timeout_sec: float, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self.submit(fn, *args, **kwargs)


def conditions_in(folder: Path, *, job_name: str = "") -> Conditions:
    return Conditions(
        job_name=job_name,
        target_json='{"kind": "llvm"}',
        **dict.fromkeys(("device_model", "device_fingerprint", "tvm_version"), ""),  # type: ignore[arg-type]
        **dict.fromkeys(("seed", "batch_size", "search_threads", "enough"), 1),  # type: ignore[arg-type]
        evaluator=Evaluator(),
        trial_timeout_sec=1.0,
        artifact_dir=folder,
        started_at=0.0,
    )


def checking(seat: Seat, built: Artifact, library: Library) -> tuple[Checker, WorkloadProgress, Candidate, list[str]]:
    """Return a checker, a workload and a measured candidate of it, and where notices go."""
    args = (TensorSpec((4,), "float32"), TensorSpec((4,), "float32", is_output=True))
    item = WorkloadProgress(workload=Workload(name="w", weight=1, mod_json="{}", shash="w", flop=4.0, args=args))
    notices: list[str] = []
    progress = JobProgress(workloads=[item], notice=notices.append)
    conditions = conditions_in(built.path.parent)
    recorder = Recorder(library, conditions, progress)
    checker = Checker(progress=progress, conditions=conditions, seat=seat, pool=BuiltAlready(built), recorder=recorder)
    candidate = Candidate(trace_json="[]", digest="c", measurement=Measurement(candidate_id="c", run_secs=(1e-6,)))
    candidate.built = BuiltCandidate(artifact=built, features=None)
    return checker, item, candidate, notices


async def test_a_workload_that_cannot_be_checked_is_closed(tmp_path: Path) -> None:
    """Its unscheduled program fails on the numbers of the check: the others of the job go on, and it is said once."""
    with Library.open(tmp_path / "library.sqlite") as library:
        async with seated() as (agent, seat, _):
            agent.refuses_calls = [measurement_pb2.ERROR_KIND_OUT_OF_MEMORY]
            checker, item, candidate, notices = checking(seat, artifact(tmp_path), library)
            assert not await checker.is_right(item, candidate)
            assert not await checker.is_right(item, candidate)
    assert "cannot be checked" in item.closed_because
    assert len(notices) == agent.calls == 1


async def test_a_candidate_under_which_the_device_went_away_is_neither_right_nor_wrong(tmp_path: Path) -> None:
    """It is not called again, and takes no part any more."""
    with Library.open(tmp_path / "library.sqlite") as library:
        async with seated() as (agent, seat, _):
            checker, item, candidate, _ = checking(seat, artifact(tmp_path), library)
            assert await checker.is_right(item, candidate)
            candidate.is_checked = False
            agent.refuses_calls = [DeviceUnreachable("gone")]
            assert not await checker.is_right(item, candidate)
            assert not await checker.is_right(item, candidate)
    assert candidate.measurement is not None
    assert candidate.measurement.error is ErrorKind.DEVICE_FAULTED
    assert not item.errors
    assert agent.calls == 3


@pytest.mark.parametrize(("losses", "is_timed"), [(1, True), (2, False)])
async def test_an_unscheduled_program_is_timed_again_when_the_device_went_away(
    tmp_path: Path, losses: int, is_timed: bool
) -> None:
    """One loss of the agent does not close a workload for the whole job; a second one under the same program does."""
    item = WorkloadProgress(workload=Workload(name="w", weight=1, mod_json="{}", shash="w", flop=4.0, args=()))
    with Library.open(tmp_path / "library.sqlite") as library:
        library.add_workload(StoredWorkload(shash="w", name="w", mod_json="{}"))
        async with seated() as (agent, seat, _):
            agent.refuses_measure = [DeviceUnreachable("gone")] * losses
            pipeline = Pipeline(
                progress=JobProgress(workloads=[item]),
                conditions=conditions_in(tmp_path, job_name=library.start_job(title="t").name),
                seat=seat,
                pool=BuiltAlready(artifact(tmp_path)),
                library=library,
                turns=Turns(shares_cores=True),
            )
            await pipeline.measure_untuned([item])
    assert math.isfinite(item.untuned_sec) is is_timed
    assert bool(item.closed_because) is not is_timed


async def test_an_agent_that_shuts_down_is_waited_for(tmp_path: Path) -> None:
    """Restarting an agent in an orderly way ends no job, and blames no candidate."""
    async with seated() as (agent, seat, _):
        agent.refuses_measure = [DeviceClosed("the agent is shutting down")]
        results = await measured(seat, artifact(tmp_path))
    assert [result.error for result in results] == [None, None]


async def test_a_faulted_device_burns_no_trials(tmp_path: Path) -> None:
    """What it refuses to run is measured once it is well again, and counts as no trial until then."""
    async with seated() as (agent, seat, notices):
        agent.answer = lambda count, asked: (
            bad(asked, measurement_pb2.ERROR_KIND_DEVICE_FAULTED) if count in (2, 3) else good(asked)
        )
        results = await measured(seat, artifact(tmp_path), 3)
    assert [(result.candidate_id, result.error) for result in results] == [("0", None), ("1", None), ("2", None)]
    assert any("did not run" in notice for notice in notices)


async def test_a_disturbed_time_is_stored_and_then_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both records are in the library; the job counts one trial, and search and best candidates see the calm time."""
    monkeypatch.setattr(repeats, "_PAUSES_SEC", (0.0, 0.0))
    item = WorkloadProgress(workload=Workload(name="w", weight=1, mod_json="{}", shash="w", flop=4.0, args=()))
    built = artifact(tmp_path)
    candidate = Candidate(trace_json="[]", digest="c", built=BuiltCandidate(artifact=built, features=None))
    with Library.open(tmp_path / "library.sqlite") as library:
        library.add_workload(StoredWorkload(shash="w", name="w", mod_json="{}"))
        async with seated() as (agent, seat, _):
            agent.answer = lambda count, asked: disturbed(asked, 9e-6) if count == 1 else good(asked, 1e-6)
            progress = JobProgress(workloads=[item])
            conditions = conditions_in(tmp_path, job_name=library.start_job(title="t").name)
            pipeline = Pipeline(
                progress=progress,
                conditions=conditions,
                seat=seat,
                pool=BuiltAlready(built),
                library=library,
                turns=Turns(shares_cores=True),
            )
            await pipeline._measure(item, [candidate])
        records = library.records("w")
        (best,) = library.best("w", k=1)
    assert sorted(record.run_secs for record in records) == [(1e-6,), (9e-6,)]
    assert best.run_secs == (1e-6,)
    assert [record.run_sec for record in item.records] == [1e-6]
    assert (item.trials, progress.repeated, candidate.median_sec) == (1, 1, 1e-6)


def disturbed(request: measurement_pb2.MeasureRequest, run_sec: float) -> measurement_pb2.Measurement:
    measurement = good(request, run_sec)
    measurement.provenance.disturbances.append("throttled: thermal")
    return measurement


async def test_only_the_last_of_a_batch_ends_it(tmp_path: Path) -> None:
    """After it the agent looks whether the device still is what it was; after each would cost too much."""
    ends: list[bool] = []

    def answer(_: int, asked: measurement_pb2.MeasureRequest) -> measurement_pb2.Measurement:
        ends.append(asked.ends_batch)
        return good(asked)

    async with seated() as (agent, seat, _):
        agent.answer = answer
        await measured(seat, artifact(tmp_path), 3)
    assert ends == [False, False, True]
