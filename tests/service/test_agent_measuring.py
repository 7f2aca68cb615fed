"""Measuring on a real cpu device: pinned, beside real load, cold and cooled, and never beside the agent's own work."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import fleet.aio
from device_agents.agent import Agent, Home
from device_agents.config import make_drivers, parse_config
from fleet.artifacts.artifact import Artifact
from fleet.building.built_candidate import BuiltCandidate
from fleet.client.steady import SteadyDevice
from fleet.domain import measuring
from fleet.domain.leases import make_terms
from fleet.domain.measuring import Evaluator, TensorSpec
from fleet.domain.scope import RecordScope
from fleet.domain.workload import Workload
from fleet.errors import LeaseRevoked
from fleet.optimizer.conditions import Conditions
from fleet.optimizer.core import events as ev
from fleet.optimizer.core.candidates import Candidate
from fleet.optimizer.core.progress import JobProgress, WorkloadProgress
from fleet.optimizer.core.repeats import find_doubtful
from fleet.optimizer.core.state import JobCore
from fleet.optimizer.measurer import Measurer
from fleet.optimizer.narrator import narrate
from fleet.testing import eventually, serve_tracker
from fleet.v1 import measurement_pb2
from fleet.v1.measurement_pb2 import Evaluator as Knobs
from fleet.v1.measurement_pb2 import Measurement
from tests.service.agent_bench import Bench, Holder, kind_of, request_for, serve_bench
from tests.service.tensors import spec

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the modules are built for x86_64"),
]
DEVICE = "devices/here"
CPUS = sorted(os.sched_getaffinity(0))
CPU = CPUS[-1]
"""The CPU that runs the device's kernels."""

STREAM_ARGS = [spec("fill", 2**18), spec("output", 2**18)]
HOG = f"import os\nos.sched_setaffinity(0, [{CPU}])\nwhile True: pass"


@pytest.fixture
def models(agent_models: Path) -> Path:
    return agent_models


@pytest.fixture
def board(tmp_path: Path) -> Path:
    """The /sys of a board that is warm."""
    sensor = tmp_path / "root/sys/class/thermal/thermal_zone0/temp"
    sensor.parent.mkdir(parents=True)
    sensor.write_text("80000\n")
    return sensor


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with serve_bench(tmp_path, {"devices": [{"driver": "cpu", "name": "here", "cpus": [CPU]}]}) as served:
        yield served


@pytest.fixture
def holder(bench: Bench) -> Holder:
    return bench.holding(epoch=1, device=DEVICE)


@contextlib.contextmanager
def busy_processor() -> Iterator[subprocess.Popen[bytes]]:
    """Keep the device's processor busy."""
    hog = subprocess.Popen([sys.executable, "-c", HOG])
    try:
        yield hog
    finally:
        hog.kill()
        hog.wait()


def cpus_of_threads(pid: int) -> set[str]:
    """Return where the threads of a process may run, as the kernel says it."""
    found = set()
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
            lines = status.read_text().splitlines()
            found |= {line.split()[1] for line in lines if line.startswith("Cpus_allowed_list")}
    return found


async def timed(holder: Holder, artifact: Path, **knobs: object) -> Measurement:
    content = await asyncio.to_thread(artifact.read_bytes)
    result = await holder.run(content, args=STREAM_ARGS, evaluator=Knobs(**knobs))  # type: ignore[arg-type]
    assert kind_of(result) == "UNSPECIFIED", result.error_message
    return result


def kinds(result: Measurement) -> set[int]:
    return {found.kind for found in result.provenance.disturbances}


@pytest.fixture
def some_processors() -> Iterator[list[int]]:
    """Restrict this process and its children to the last two processors, or the last one of two, as with `taskset`."""
    given = CPUS[-2:] if len(CPUS) > 2 else [CPU]
    os.sched_setaffinity(0, given)
    yield given
    os.sched_setaffinity(0, CPUS)


async def test_threads_keep_to_the_processors_that_the_agent_was_given(
    some_processors: list[int], tmp_path: Path, models: Path
) -> None:
    """TVM would bind threads from processor 0 on, onto those of other devices: its masks ignore a process's mask."""
    device = {"driver": "cpu", "name": "here", "threads": len(some_processors)}
    async with serve_bench(tmp_path, {"devices": [device]}) as bench:
        holder = bench.holding(epoch=1, device=DEVICE)
        result = await timed(holder, models / "parallel.so", number=3)

        masks = cpus_of_threads(result.provenance.worker_pid)
        assert masks <= {*map(str, some_processors), "-".join(map(str, some_processors))}


async def test_every_thread_of_a_worker_keeps_to_its_processors(holder: Holder, models: Path) -> None:
    """Threads that TVM starts and binds for a parallel loop keep to them, too; the record says where it ran."""
    result = await timed(holder, models / "parallel.so", number=3)

    assert list(result.provenance.pinned_cpus) == [CPU]
    assert cpus_of_threads(result.provenance.worker_pid) == {str(CPU)}


@pytest.mark.skipif(len(CPUS) < 2, reason="one processor: the agent has nowhere else to go")
async def test_the_agent_keeps_off_the_processors_of_its_device(bench: Bench, holder: Holder, models: Path) -> None:
    """The agent and the process that workers are forked from; all is as before when it is closed."""
    await timed(holder, models / "stream.so", number=1)

    assert bench.agent is not None
    assert bench.agent.warm_pid is not None
    for pid in (os.getpid(), bench.agent.warm_pid):
        assert all(str(CPU) not in cpus.replace("-", ",").split(",") for cpus in cpus_of_threads(pid))
    await bench.stop_agent()
    assert os.sched_getaffinity(0) == set(CPUS)


@pytest.mark.measures
async def test_a_busy_processor_is_reported_with_the_times_until_it_is_idle(holder: Holder, models: Path) -> None:
    """The marks explain a candidate's slow time, and end with the load."""
    knobs = {"number": 1, "repeat": 5, "min_repeat_ms": 20}

    with busy_processor() as hog:
        await eventually(lambda: cpus_of_threads(hog.pid) == {str(CPU)})
        beside = await timed(holder, models / "stream.so", **knobs)

    assert measurement_pb2.DISTURBANCE_KIND_CONTENTION in kinds(beside), beside.provenance
    assert beside.provenance.after.reference_sec > 0

    async def is_calm() -> bool:
        return not (await timed(holder, models / "stream.so", **knobs)).provenance.disturbances

    await eventually(is_calm, timeout_sec=60)


def start(core: JobCore, args: tuple[TensorSpec, ...], folder: Path) -> None:
    """Start a job with one workload and many trials."""
    workload = Workload(name="w", weight=1, mod_json="{}", shash="w", flop=1.0, args=args)
    conditions = Conditions(
        job_name="jobs/1",
        scope=RecordScope(target_json="{}", device_model="", tvm_version=""),
        device_fingerprint="",
        seed=0,
        batch_size=3,
        search_threads=1,
        enough=10_000,
        evaluator=Evaluator(repeat=3, min_repeat_ms=20),
        trial_timeout_sec=10.0,
        artifact_dir=folder,
        started_at=0.0,
    )
    core.start(conditions, 10_000, [WorkloadProgress(workload=workload)])


async def measured(core: JobCore, measurer: Measurer, built: Artifact) -> list[measuring.Measurement]:
    """Let the core have three new candidates measured; return all measurements that it asked for."""
    digests = [str(core.workload("w").trials + number) for number in range(3)]
    core.apply(ev.Proposed("w", tuple(Candidate(digest=one, trace_json=one) for one in digests)))
    for digest in digests:
        core.apply(ev.Built("w", digest, BuiltCandidate(artifact=built, features=None)))
    results = []
    effects = core.apply(ev.BatchWanted("w", digests))
    while effects:
        effect = effects.pop(0)
        if isinstance(effect, ev.CheckOutputs):
            effects += core.apply(ev.Checked("w", effect.candidate.digest, ev.Verdict.RIGHT))
        if isinstance(effect, ev.Notice):
            core.progress.notice(narrate(effect.news))
        if not isinstance(effect, ev.Measure):
            continue
        async for event in measurer.measure(effect):
            for store in core.apply(event):
                effects += [] if isinstance(store, ev.Store) else [store]
                if isinstance(store, ev.Store):
                    core.note_stored(ev.Stored(store, 1, 0.0))
            results += [event.measurement] if isinstance(event, ev.Measured) else []
    return results


@pytest.mark.measures
@pytest.mark.timeout(240)
async def test_a_disturbed_batch_is_measured_again_until_it_is_calm(tmp_path: Path, models: Path) -> None:
    """Through the optimizer, tracker and agent, a disturbed batch is marked, reported and repeated until it is
    clean.
    """
    config = parse_config({"devices": [{"driver": "cpu", "name": "here", "cpus": [CPU]}]})
    built = Artifact.of_file(models / "stream.so")
    args = (TensorSpec((2**18,), "float32"), TensorSpec((2**18,), "float32", is_output=True))
    notices: list[str] = []
    async with serve_tracker() as tracker:
        agent = Agent(config, make_drivers(config), Home(tracker=tracker.address, state_dir=tmp_path / "agent"))
        terms = make_terms("cpu", purpose="test")
        async with agent, fleet.aio.connect(tracker.address) as client, SteadyDevice(client, terms) as device:
            assert await agent.wait_attached(60.0)
            with busy_processor() as hog:

                def on_notice(text: str) -> None:
                    notices.append(text)
                    hog.kill()

                core = JobCore(JobProgress(notice=on_notice))
                start(core, args, tmp_path)
                first = await measured(core, Measurer(device), built)

            async def is_calm() -> bool:
                return not find_doubtful((await measured(core, Measurer(device), built))[-3:])

            assert find_doubtful(first[:3])
            assert core.progress.repeats.count > 0
            assert len(first) > 3
            assert "is disturbed" in notices[0]
            await eventually(is_calm, timeout_sec=100)


@pytest.mark.measures
async def test_flushing_the_cache_slows_a_cached_workload(holder: Holder, models: Path) -> None:
    """A megabyte that is copied again and again is warm; flushed before each run, by whichever knob, it is not."""
    results = {
        name: await timed(holder, models / "stream.so", repeat=15, **knobs)
        for name, knobs in {
            "warm": {"number": 5},
            "cpu": {"flush_cpu_cache": True},
            "bytes": {"cache_flush_bytes": 64 * 1024 * 1024},
            "f_preproc": {"f_preproc": "cache_flush_cpu_non_first_arg"},
        }.items()
    }

    fastest = {name: min(result.run_secs) for name, result in results.items()}
    assert all(fastest[name] > fastest["warm"] for name in ("cpu", "bytes", "f_preproc")), fastest
    assert [result.provenance.flushed for result in results.values()] == ["", "cpu", "cpu", ""]
    assert all(len(result.run_secs) == 15 for result in results.values())


async def test_a_relax_model_is_flushed_too(holder: Holder, models: Path) -> None:
    """The closure's arguments cannot be flushed one by one, so the whole cache is."""
    request = request_for(
        await holder.put((models / "vm.so").read_bytes()),
        args=[spec("fill", 4, 8), spec("fill", 8, 8)],
        evaluator=Knobs(number=2, repeat=3, flush_cpu_cache=True),
        module_kind=measurement_pb2.MODULE_KIND_RELAX_VM,
    )

    (result,) = await holder.measure([request])

    assert kind_of(result) == "UNSPECIFIED", result.error_message
    assert len(result.run_secs) == 3
    assert result.provenance.flushed == "cpu"


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"f_preproc": "no_such_function"}, "no global function 'no_such_function'"),
        ({"f_preproc": "cache_flush_cpu_non_first_arg", "flush_cpu_cache": True}, "ask for one of them"),
        ({"cache_flush_bytes": 2**31}, "flush_bytes: at most"),
    ],
)
async def test_invalid_knobs_give_the_reason(
    holder: Holder, models: Path, knobs: dict[str, object], message: str
) -> None:
    """They are refused with a reason and leave the worker as it is."""
    digest = await holder.put((models / "stream.so").read_bytes())
    request = request_for(digest, args=STREAM_ARGS, evaluator=Knobs(**knobs))  # type: ignore[arg-type]

    (result,) = await holder.measure([request])

    assert kind_of(result) == "BAD_ARGUMENTS"
    assert message in result.error_message


@pytest.mark.parametrize("cold", [{}, {"flush_cpu_cache": True}])
async def test_rests_between_repeats_are_taken(holder: Holder, models: Path, cold: dict[str, object]) -> None:
    """Every second repeat of six rests 60 ms: at least two rests, and not one for each single run."""
    knobs = {"number": 9, "repeat": 6, "cooldown_interval_ms": 60, "repeats_to_cooldown": 2, **cold}

    async def is_shorter_than_a_rest_for_each_run() -> bool:
        result = await timed(holder, models / "stream.so", **knobs)
        run_sec = result.clocks.run.ToTimedelta().total_seconds()
        assert run_sec >= 0.12
        return run_sec < 9 * 6 * 0.06

    await eventually(is_shorter_than_a_rest_for_each_run)  # at once, unless the machine stalled


async def test_all_other_knobs_reach_the_evaluator(holder: Holder, models: Path) -> None:
    """The length and the number of repeats follow the request."""
    result = await timed(
        holder, models / "stream.so", number=2, repeat=4, min_repeat_ms=30, limit_zero_time_iterations=7
    )

    assert len(result.run_secs) == 4
    assert result.clocks.run.ToTimedelta().total_seconds() >= 4 * 0.030


async def test_a_warm_device_is_waited_for(tmp_path: Path, models: Path, board: Path) -> None:
    """The agent waits until the sensor reads cool; the wait is counted, and the time is not marked disturbed."""
    entry = {"driver": "cpu", "name": "here", "sys_root": str(tmp_path / "root")}
    async with serve_bench(tmp_path / "agent", {"devices": [entry]}) as bench:
        holder = bench.holding(epoch=1, device=DEVICE)
        await holder.open()

        async def cooled() -> Measurement | None:
            await asyncio.to_thread(board.write_text, "80000\n")
            measuring = asyncio.create_task(timed(holder, models / "stream.so", cool_below_c=50.0))
            await asyncio.wait((measuring,), timeout=1.0)
            assert not measuring.done()
            await asyncio.to_thread(board.write_text, "45000\n")
            result = await measuring
            return result if result.provenance.cooldown.ToTimedelta() else None

        result = await eventually(cooled)  # at once, unless a busy machine had not looked yet after a second

    assert result.clocks.wait.ToTimedelta() >= result.provenance.cooldown.ToTimedelta()
    assert result.provenance.before.temp_c == 45
    assert measurement_pb2.DISTURBANCE_KIND_STILL_WARM not in kinds(result)


async def test_a_device_that_stays_warm_is_measured_and_marked(tmp_path: Path, models: Path, board: Path) -> None:
    """The client's time limit ends the wait, and the measurement is marked."""
    entry = {"driver": "cpu", "name": "here", "sys_root": str(tmp_path / "root")}
    async with serve_bench(tmp_path / "agent", {"devices": [entry]}) as bench:
        holder = bench.holding(epoch=1, device=DEVICE)
        result = await timed(holder, models / "stream.so", cool_below_c=50.0, cool_timeout_ms=300)

    texts = [found.text for found in result.provenance.disturbances]
    assert "still 80 C after 0.3 s, above 50 C" in texts
    assert len(result.run_secs) == 1


async def test_a_lease_that_ends_ends_the_wait_for_a_cool_device(tmp_path: Path, models: Path, board: Path) -> None:
    """A long time limit does not delay the end; the next holder gets the device."""
    entry = {"driver": "cpu", "name": "here", "sys_root": str(tmp_path / "root")}
    async with serve_bench(tmp_path / "agent", {"devices": [entry]}) as bench:
        holder = bench.holding(epoch=1, device=DEVICE)
        cooling = asyncio.create_task(timed(holder, models / "stream.so", cool_below_c=50.0, cool_timeout_ms=600_000))
        await asyncio.wait((cooling,), timeout=0.5)
        assert not cooling.done()

        bench.tracker.fence(DEVICE, 1)
        with pytest.raises(LeaseRevoked):
            await asyncio.wait_for(cooling, 30)
        after = await timed(bench.holding(epoch=2, device=DEVICE), models / "stream.so")

    assert len(after.run_secs) == 1


async def test_an_upload_waits_while_a_candidate_runs(tmp_path: Path) -> None:
    """Inflating and hashing would take time from the kernel where both share their processors."""
    async with serve_bench(tmp_path) as bench:
        holder = bench.holding(epoch=1)
        digest = await holder.put(b"sleep:2.0 ")
        await holder.run(b"latency_us:5")  # its worker is there, so that the next candidate runs at once
        started = time.monotonic()
        running = asyncio.create_task(holder.measure([request_for(digest)]))
        await eventually(lambda: len(bench.given_artifacts()) == 2)
        await holder.put(b"latency_us:5" + bytes(200_000))

        assert time.monotonic() - started >= 2.0
        assert (await running)[0].error == 0
