"""Harmful candidates: the agent survives each, reports the failure, and runs the next candidate."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from device_agents.driver import Health, WorkerSpec
from device_agents.drivers.simulated import SimulatedDriver
from device_agents.machine import linux
from device_agents.serving.timing import Timing
from device_agents.workers.handle import Patience, WorkerLost
from device_agents.workers.limits import WorkerLimits
from device_agents.workers.pool import WorkerPool
from fleet.domain.devices import Inventory, Telemetry
from fleet.domain.measuring import ErrorKind
from fleet.errors import DeviceFaulted, DeviceUnreachable
from fleet.testing import eventually
from fleet.v1 import worker_pb2
from tests.programs import is_alive
from tests.service.agent_bench import DEVICE, Bench, kind_of, marked_processes, request_for, serve_bench

pytestmark = pytest.mark.slow

_MIB = 1024 * 1024
CONFIG = {
    "devices": [{"driver": "simulated", "name": "sim", "time_scale": 0.0}],
    "memory_limit_bytes": 256 * _MIB,
    "disk_limit_bytes": 32 * _MIB,
}


def count_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def read_process(pid: int) -> tuple[str, str]:
    return Path(f"/proc/{pid}/status").read_text(), Path(f"/proc/{pid}/maps").read_text()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with serve_bench(tmp_path, CONFIG) as served:
        yield served


class OneTrialDriver(SimulatedDriver):
    """A phone that goes away once a candidate ran."""

    is_here = True

    @property
    def is_prepared(self) -> bool:
        return self.is_here

    async def prepare(self) -> None:
        if not self.is_here:
            raise DeviceUnreachable("the phone is away")

    def learn(self, error: ErrorKind | None, message: str) -> None:
        self.is_here = False


async def test_a_device_that_goes_after_a_candidate_ran_takes_no_time_away(tmp_path: Path) -> None:
    """The measurement is reported; the next candidate fails because the device is away."""
    drivers = OneTrialDriver.from_config({"name": "sim", "time_scale": 0.0}, where="test", host_name="here")
    async with serve_bench(tmp_path, CONFIG, drivers=drivers) as bench:
        holder = bench.holding(epoch=1)
        digest = await holder.put(b"latency_us:50")

        ran, refused = await holder.measure([request_for(digest), request_for(digest)])

    assert kind_of(ran) == "UNSPECIFIED", ran.error_message
    assert kind_of(refused) == "DEVICE_FAULTED"
    assert "the phone is away" in refused.error_message


class CarelessDriver(SimulatedDriver):
    """A user's first driver, with a bug."""

    def _probe(self) -> Health:
        raise KeyError("battery")

    def _telemetry(self) -> Telemetry:
        raise ZeroDivisionError


async def test_a_driver_that_fails_costs_its_own_device(tmp_path: Path) -> None:
    """Only the driver's own device becomes unhealthy; an unforeseen error of one driver once took all of them away."""
    drivers = [
        *CarelessDriver.from_config({"name": "odd"}, where="test", host_name="here"),
        *SimulatedDriver.from_config({"name": "sim", "time_scale": 0.0}, where="test", host_name="here"),
    ]
    async with serve_bench(tmp_path, CONFIG, drivers=drivers) as bench:
        await eventually(lambda: len(bench.tracker.reports) == 2)
        odd = bench.tracker.reports["devices/odd"]
        measured = await bench.holding(epoch=1).run(b"latency_us:50")

    assert not odd.is_healthy
    assert odd.reason == "its driver failed: KeyError: 'battery'"
    assert kind_of(measured) == "UNSPECIFIED", measured.error_message


class NamelessDriver(SimulatedDriver):
    """Its board reports no inventory."""

    def _inventory(self) -> Inventory:
        raise FileNotFoundError("model")


class HugeDriver(SimulatedDriver):
    """Its board reports values out of range."""

    def _inventory(self) -> Inventory:
        return replace(super()._inventory(), core_count=2**32)

    def _telemetry(self) -> Telemetry:
        return Telemetry(read_at_sec=time.time(), memory_available_bytes=-1)


@pytest.mark.parametrize("odd", [NamelessDriver, HugeDriver])
async def test_a_device_that_cannot_be_described_costs_itself_only(tmp_path: Path, odd: type[SimulatedDriver]) -> None:
    """The other devices attach; their agent once could not attach at all."""
    drivers = [
        *odd.from_config({"name": "odd"}, where="test", host_name="here"),
        *SimulatedDriver.from_config({"name": "sim", "time_scale": 0.0}, where="test", host_name="here"),
    ]
    async with serve_bench(tmp_path, CONFIG, drivers=drivers) as bench:
        await eventually(lambda: len(bench.tracker.reports) == 2)
        (hello,) = bench.tracker.hellos
        measured = await bench.holding(epoch=1).run(b"latency_us:50")

    assert [device.name for device in hello.devices] == [DEVICE]
    assert kind_of(measured) == "UNSPECIFIED", measured.error_message


@pytest.mark.parametrize(
    ("content", "kind", "text"),
    [
        (b"crash", "CRASHED", "SIGSEGV"),
        (b"abort", "CRASHED", "SIGABRT"),
        (b"exit:0", "CRASHED", "exit code 0"),
        (b"exit:3", "CRASHED", "exit code 3"),
        (b"hang", "TIMEOUT", "longer than 3 s"),
        (b"chatter", "TIMEOUT", "all work and no play"),
        (b"oom", "OUT_OF_MEMORY", "the limit is 256 MiB"),
        (b"disk", "OUT_OF_DISK", "the limit is 32 MiB"),
        (b"bigfile", "OUT_OF_DISK", "limit"),
        (b"dig", "OUT_OF_DISK", "nobody can look into"),
        (b"nameless", "CRASHED", "SIGSEGV"),
        (b"close_fds", "CRASHED", ""),
        (b"scribble", "CRASHED", "not an answer"),
        (b"raise:no such luck", "RUN_FAILED", "no such luck"),
        (b"load_failed", "LOAD_FAILED", "cannot be loaded"),
        (b"bad_arguments", "BAD_ARGUMENTS", "do not fit"),
    ],
)
async def test_the_agent_outlives_a_harmful_candidate(bench: Bench, content: bytes, kind: str, text: str) -> None:
    """It gets its own kind of error, and the candidate behind it in the same stream runs."""
    holder = bench.holding(epoch=1)
    timeout_sec = 3.0 if kind == "TIMEOUT" else 60.0
    harmful, harmless = await holder.put(content), await holder.put(b"latency_us:50")

    results = await holder.measure([request_for(harmful, timeout_sec=timeout_sec), request_for(harmless)])

    assert [kind_of(result) for result in results] == [kind, "UNSPECIFIED"], results
    assert text in results[0].error_message
    assert not results[0].run_secs


async def test_the_agent_outlives_a_candidate_that_kills_its_keeper(tmp_path: Path) -> None:
    """Without a jail, which keeps a candidate from it: the next one in the same stream runs."""
    async with serve_bench(tmp_path, {**CONFIG, "jail": "none"}) as bench:
        holder = bench.holding(epoch=1)
        harmful, harmless = await holder.put(b"killparent"), await holder.put(b"latency_us:50")

        results = await holder.measure([request_for(harmful), request_for(harmless)])

    assert [kind_of(result) for result in results] == ["CRASHED", "UNSPECIFIED"], results
    assert "killed its keeper" in results[0].error_message


async def test_a_crash_names_its_signal_and_the_next_candidate_has_another_worker(bench: Bench) -> None:
    """Records get signal and worker as data."""
    holder = bench.holding(epoch=1)

    crashed, fine = await holder.run(b"crash"), await holder.run(b"latency_us:50")

    assert crashed.signal == signal.SIGSEGV
    assert crashed.provenance.worker_pid != fine.provenance.worker_pid
    assert not is_alive(crashed.provenance.worker_pid)


async def test_a_worker_that_is_broken_for_good_answers_and_ends(bench: Bench) -> None:
    """After an error that persists in its process, as CUDA's do, the failure is reported and the next candidate is
    clean.
    """
    holder = bench.holding(epoch=1)
    breaking, harmless = await holder.put(b"break:illegal memory access"), await holder.put(b"latency_us:50")

    broken, fine = await holder.measure([request_for(breaking), request_for(harmless)])

    assert [kind_of(broken), kind_of(fine)] == ["RUN_FAILED", "UNSPECIFIED"]
    assert "illegal memory access" in broken.error_message
    assert broken.provenance.worker_pid != fine.provenance.worker_pid
    assert not is_alive(broken.provenance.worker_pid)


async def test_daemons_left_by_a_candidate_die(bench: Bench) -> None:
    """A double fork into a session of its own does not get away from the agent."""
    holder = bench.holding(epoch=1)
    worker = await holder.open()

    async def daemons() -> list[int]:
        assert kind_of(await holder.run(b"fork")) == "UNSPECIFIED"
        return [pid for pid in bench.agent.family_pids() if pid != worker]

    left = await eventually(daemons)  # the agent, which looks ten times a second, may have been faster
    await bench.holding(epoch=2).open()

    assert not any(map(is_alive, left))


async def test_a_daemon_dies_even_while_its_session_goes_on(bench: Bench) -> None:
    """It would disturb the measurements that follow."""
    holder = bench.holding(epoch=1)
    await holder.run(b"fork")

    await eventually(lambda: sorted(bench.agent.family_pids()) == sorted(bench.agent.worker_pids))


async def test_the_agent_starts_another_warm_process(bench: Bench) -> None:
    """Killed from outside, between candidates: sessions go on with their workers, and new ones can be had."""
    holder = bench.holding(epoch=1)
    worker, warm = await holder.open(), bench.agent.warm_pid

    os.kill(warm, signal.SIGKILL)

    await eventually(lambda: bench.agent.warm_pid not in (warm, None))
    assert kind_of(await holder.run(b"latency_us:50")) == "UNSPECIFIED"
    assert worker == await holder.open()
    assert kind_of(await holder.run(b"crash")) == "CRASHED"
    assert kind_of(await holder.run(b"latency_us:50")) == "UNSPECIFIED"


async def test_a_killed_worker_is_replaced(bench: Bench) -> None:
    """kill -9 of a worker in the middle costs that candidate only."""
    holder = bench.holding(epoch=1)
    slow, fine = await holder.put(b"sleep:20"), await holder.put(b"latency_us:50")
    worker = await holder.open()
    running = asyncio.create_task(holder.measure([request_for(slow, timeout_sec=30.0), request_for(fine)]))
    await eventually(bench.given_artifacts)

    os.kill(worker, signal.SIGKILL)

    results = await running
    assert [kind_of(result) for result in results] == ["CRASHED", "UNSPECIFIED"]
    assert results[0].signal == signal.SIGKILL


async def test_a_daemon_that_ended_leaves_no_files_behind(bench: Bench) -> None:
    """An orphaned daemon, such as adb's server, is adopted by the agent; it once stayed as a zombie."""
    command = "setsid sleep 0.1 > /dev/null & echo $!"
    starter = await asyncio.create_subprocess_exec("sh", "-c", command, stdout=asyncio.subprocess.PIPE)
    daemon, _ = await starter.communicate()

    await eventually(lambda: linux.look_at(int(daemon)) is None)


async def test_how_a_worker_ended_is_waited_for(tmp_path: Path) -> None:
    """On a busy board the keeper may be slow, and only its report distinguishes a full disk from a crash."""
    limits, patience = WorkerLimits(memory_bytes=2**30, disk_bytes=2**30), Patience(given_up_sec=60.0)
    pool = WorkerPool(tmp_path / "workers", [], limits, patience=patience)
    await pool.open()
    try:
        spec = WorkerSpec(runtime="device_agents.runtimes.simulated:SimulatedRuntime")
        worker = await pool.start_worker(spec, lambda _: None)
        artifact = tmp_path / "crash.so"
        artifact.write_bytes(b"crash")
        order = worker_pb2.WorkerRequest(measure=request_for(""), artifact_path=worker.give(artifact))
        process = linux.look_at(worker.pid)
        assert process is not None
        os.kill(process.parent, signal.SIGSTOP)

        running = asyncio.create_task(worker.exchange(order.SerializeToString(), 60.0))
        await asyncio.wait((running,), timeout=1.0)
        assert not running.done()
        os.kill(process.parent, signal.SIGCONT)

        with pytest.raises(WorkerLost) as caught:
            await running
        assert caught.value.signal_number == signal.SIGSEGV
    finally:
        await pool.close()


async def test_many_crashes_leave_no_files_behind(bench: Bench) -> None:
    """No process, no directory, no descriptor is lost per crash."""
    holder = bench.holding(epoch=1)
    harmful = await holder.put(b"crash")
    await holder.measure([request_for(harmful)] * 3)
    await holder.open()
    before = count_descriptors()

    results = await holder.measure([request_for(harmful)] * 20)

    await holder.open()
    assert {"CRASHED"} == {kind_of(result) for result in results}
    assert count_descriptors() <= before + 2
    assert len(list((bench.state_dir / "workers").iterdir())) == 2  # with that of the reference kernel
    assert len(bench.agent.family_pids()) == 2


async def test_memory_leaked_by_a_candidate_does_not_count_against_the_next(bench: Bench) -> None:
    """A worker that retains too much memory is replaced, so the order of candidates does not matter."""
    holder = bench.holding(epoch=1)
    digests = [await holder.put(f"leak:150 {number}".encode()) for number in range(3)]

    results = await holder.measure([request_for(digest) for digest in digests])

    assert [kind_of(result) for result in results] == ["UNSPECIFIED"] * 3, results
    assert len({result.provenance.worker_pid for result in results}) == 3


async def test_closing_the_agent_leaves_no_process(tmp_path: Path) -> None:
    """Worker and warm process end with it, a hanging candidate too."""
    async with serve_bench(tmp_path, CONFIG) as bench:
        holder = bench.holding(epoch=1)
        digest = await holder.put(b"hang")
        running = asyncio.create_task(holder.measure([request_for(digest, timeout_sec=60.0)]))
        worker, warm = await holder.open(), bench.agent.warm_pid

        await bench.stop_agent()

        assert not is_alive(worker)
        assert not is_alive(warm)
        assert not marked_processes(str(tmp_path))
        await asyncio.gather(running, return_exceptions=True)


async def test_the_warm_process_stays_small_and_without_threads(bench: Bench) -> None:
    """Forking a process with threads is undefined; gRPC in it would be a fork hazard and 20 MB."""
    await bench.holding(epoch=1).open()
    status, maps = read_process(bench.agent.warm_pid)

    assert "Threads:\t1\n" in status
    assert "grpc" not in maps
    assert "numpy" not in maps


async def test_a_device_that_can_start_no_worker_is_faulted_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tracker and holders get the fault, and the device recovers without a restart of the agent."""
    async with serve_bench(tmp_path, CONFIG, timing=Timing(restarts=1)) as bench:
        with monkeypatch.context() as broken:
            broken.setattr("sys.executable", "/no/such/python")
            assert bench.agent is not None
            assert bench.agent.warm_pid is not None
            os.kill(bench.agent.warm_pid, signal.SIGKILL)
            await eventually(lambda: not bench.tracker.reports[DEVICE].is_healthy)
            assert "cannot be started" in bench.tracker.reports[DEVICE].reason
            with pytest.raises(DeviceFaulted, match="cannot be started"):
                await bench.holding(1).open()
        await eventually(lambda: bench.tracker.reports[DEVICE].is_healthy, timeout_sec=60)
        assert await bench.holding(2).open()


async def test_errors_of_candidates_contain_no_terminal_escapes(bench: Bench) -> None:
    """Colours and reversed text direction are removed: error messages reached clients as the kernel wrote them."""
    holder = bench.holding(epoch=1)

    raised = await holder.run("raise:\x1b[31mred\u202e\nand more\r".encode())

    assert raised.error_message == "[31mred\nand more "
