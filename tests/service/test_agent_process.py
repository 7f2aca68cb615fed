"""`python -m device_agents` as a process: ready line, signals, and bad input without a traceback."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from device_agents.machine import linux
from fleet.base.readiness import Ready, read_ready
from fleet.testing import SimulatedAgent, eventually, serve_tracker
from tests.programs import is_alive
from tests.service.agent_bench import Holder, StubTracker, admit, marked_processes, request_for
from tests.service.opencl_presence import require_opencl

pytestmark = pytest.mark.slow
YAML = "devices: [{driver: simulated, name: sim, time_scale: 0.0}]\n"


class AgentProcess:
    """A started agent."""

    def __init__(self, folder: Path, tracker: str, yaml: str = YAML, arguments: tuple[str, ...] = ()) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        (folder / "agent.yaml").write_text(yaml)
        admit(folder / "state")
        command = [sys.executable, "-m", "device_agents", "--tracker", tracker, "--config", folder / "agent.yaml"]
        self.process = subprocess.Popen(
            [*command, "--state-dir", folder / "state", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def port(self, what: str = "serving") -> int:
        """Wait for the line that reports this activity. On a busy machine a line about waiting comes first."""
        for line in iter(self.process.stdout.readline, ""):
            if found := re.fullmatch(rf"agent listening on 127\.0\.0\.1:(\d+), {what} devices/sim\n", line):
                return int(found[1])
            assert ", waiting for the tracker at " in line, line
        raise AssertionError(self.process.stderr.read())

    def descendants(self) -> list[int]:
        return linux.descendants_of(self.process.pid)

    def finish(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err


@contextlib.contextmanager
def running(*arguments: object, **fields: object) -> Iterator[AgentProcess]:
    agent = AgentProcess(*arguments, **fields)
    try:
        yield agent
    finally:
        agent.process.kill()
        agent.process.communicate()


@pytest.fixture
async def tracker() -> AsyncIterator[StubTracker]:
    stub = StubTracker()
    await stub.start()
    yield stub
    await stub.stop()


def run_to_its_end(folder: Path, yaml: str = YAML, *arguments: str) -> tuple[int, str, str]:
    with running(folder, "127.0.0.1:1", yaml=yaml, arguments=arguments) as agent:
        return agent.finish()


def test_an_agent_exits_if_its_parent_ends_without_a_tracker(tmp_path: Path) -> None:
    """An agent exits with an error if its parent ends before the tracker listens."""
    command = [sys.executable, "-m", "device_agents", "--tracker", "-", "--state-dir", tmp_path]

    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)

    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "error: stdin ended before it said where the tracker is\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_agent_cleanly(tmp_path: Path, tracker: StubTracker, number: int) -> None:
    """Exit code 0, one line on stdout, no process left, in the middle of a measurement too."""
    with running(tmp_path, tracker.address) as agent:
        holder = Holder(await asyncio.to_thread(agent.port), tracker.token(1))
        digest = await holder.put(b"hang")
        measuring = asyncio.create_task(holder.measure([request_for(digest, timeout_sec=60.0)]))
        await holder.open()
        family = agent.descendants()

        agent.process.send_signal(number)
        code, out, err = await asyncio.to_thread(agent.finish)

        assert (code, out) == (0, "")
        assert "Traceback" not in err
        assert len(family) >= 2
        assert not any(map(is_alive, family))
        await asyncio.gather(measuring, return_exceptions=True)
        await holder.close()


async def test_a_signal_ends_an_agent_that_is_still_starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends even if a driver waits for ever, here for another process that compiles the OpenCL plug-in."""
    require_opencl()
    monkeypatch.setenv("FLEET_CACHE_DIR", str(tmp_path / "cache"))
    lock = tmp_path / "cache/opencl/.lock"
    lock.parent.mkdir(parents=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yaml = "devices: [{driver: opencl, type: cpu, name: sim}]"
        with running(tmp_path, "127.0.0.1:1", yaml=yaml) as agent:
            await eventually(lambda: lock in open_files(agent.process.pid))

            agent.process.send_signal(signal.SIGTERM)
            code, out, err = await asyncio.to_thread(agent.finish)

    assert (code, out) == (0, "")
    assert "Traceback" not in err


def open_files(pid: int) -> list[Path]:
    with contextlib.suppress(FileNotFoundError):
        return [entry.readlink() for entry in Path(f"/proc/{pid}/fd").iterdir()]
    return []


async def test_an_agent_reports_serving_once_it_is_registered(tmp_path: Path) -> None:
    """An agent with a copied key is refused while the other is attached, and must not report that it serves until
    then.
    """
    async with serve_tracker() as tracker:
        other = SimulatedAgent(tracker.address, ["devices/sim"])
        await other.open()
        with running(tmp_path, tracker.address) as agent:
            port = await asyncio.to_thread(agent.port, f"waiting for the tracker at {tracker.address} with")
            await other.close()

            assert port == await asyncio.to_thread(agent.port)


def leave_a_file_among_workers(folder: Path) -> None:
    """Leave a file among the workers' folders, as kernels without a jail can."""
    (workers,) = folder.rglob("workers")
    (workers / "left-by-a-kernel").touch()


async def test_a_killed_agent_takes_its_workers_with_it(tmp_path: Path, tracker: StubTracker) -> None:
    """kill -9 of the agent leaves no process, and another can take its place, whatever lies among its workers."""
    with running(tmp_path, tracker.address) as agent:
        holder = Holder(await asyncio.to_thread(agent.port), tracker.token(1))
        await holder.run(b"fork")
        family = agent.descendants()

        os.kill(agent.process.pid, signal.SIGKILL)

        await eventually(lambda: not any(map(is_alive, family)))
        await holder.close()
        assert len(family) >= 2
        leave_a_file_among_workers(tmp_path)
    with running(tmp_path, tracker.address) as agent:
        holder = Holder(await asyncio.to_thread(agent.port), tracker.token(2))
        assert await holder.open() > 0
        await holder.close()


async def test_the_agent_process_loads_no_tvm(tmp_path: Path, tracker: StubTracker) -> None:
    """TVM is loaded by the warm process only."""
    with running(tmp_path, tracker.address, yaml="devices: [{driver: cpu, name: sim}]") as agent:
        await asyncio.to_thread(agent.port)

        def maps(pid: int) -> str:
            return Path(f"/proc/{pid}/maps").read_text()

        assert "libtvm" not in maps(agent.process.pid)
        assert "numpy" not in maps(agent.process.pid)
        assert any("libtvm_runtime.so" in maps(pid) for pid in agent.descendants())
        assert not any("libtvm_compiler" in maps(pid) for pid in agent.descendants())


@pytest.mark.parametrize(
    ("yaml", "text"),
    [
        ("devices: [{driver: cup}]", "did you mean 'cpu'"),
        ("devcies: []", "did you mean 'devices'"),
        ("devices: [{driver: simulated, latency_su: 3}]", "did you mean 'latency_us'"),
        ("devices: [{driver: simulated, name: a}, {driver: simulated, name: a}]", "two devices are named 'a'"),
        ("devices: [{driver: simulated, name: 'a/b'}]", "is no device name"),
        ("devices: [cpu]", "expected 'driver: NAME'"),
        ("devices: []", "name at least one"),
        ("cache_max_bytes: -1", "above zero"),
        ("cache_max_bytes: many", "expected a whole number"),
        ("devices: [{driver: simulated, count: 0}]", "above zero"),
        ("devices: [{driver: simulated, count: 100000000}]", "an agent serves at most 1000"),
        (
            f"devices: [{', '.join(600 * ['{driver: simulated, count: 2}'])}]",
            "1200 of them, an agent",
        ),
        ("devices: [{driver: simulated, labels: {kind: cuda}}]", "the fleet sets 'kind' by itself"),
        ("\ndevices: [{driver: cpu, threads: 9999}]", "line 2: devices[0]: threads: 9999, and its kernels keep to"),
        ("memory_limit_bytes: 1", "a worker needs at least 67108864"),
        ("disk_limit_bytes: 1", "a worker needs at least 1048576"),
        ("jail: none\njail: auto", "line 2: the key 'jail' stands in line 1 already"),
        ("{", "is not YAML"),
    ],
)
def test_a_bad_configuration_is_one_message(tmp_path: Path, yaml: str, text: str) -> None:
    """A bad configuration ends with exit code 2, the place and the mistake, and no traceback."""
    code, out, err = run_to_its_end(tmp_path, yaml)

    assert (code, out) == (2, "")
    assert text in err
    assert "Traceback" not in err


def test_other_machines_need_a_flag(tmp_path: Path) -> None:
    """Nothing listens beyond the loopback without being asked to."""
    code, _, err = run_to_its_end(tmp_path, YAML, "--host", "0.0.0.0")

    assert code == 2
    assert "--allow-network" in err


def test_the_ready_file_has_address_and_devices_without_a_tracker(tmp_path: Path) -> None:
    """A deployment ends although the tracker is down: the file reports that the agent listens."""
    path = tmp_path / "ready"
    with running(tmp_path, "127.0.0.1:1", arguments=("--ready-file", str(path))) as agent:
        port = agent.port("waiting for the tracker at 127.0.0.1:1 with")

        ready = read_ready(path.read_bytes())

    assert ready == Ready(address=f"127.0.0.1:{port}", devices=("devices/sim",))


def test_a_second_agent_on_the_same_state_or_port_is_refused(tmp_path: Path) -> None:
    """Two agents never share a cache, nor connections."""
    with running(tmp_path, "127.0.0.1:1") as agent:
        port = agent.port("waiting for the tracker at 127.0.0.1:1 with")

        same_state = run_to_its_end(tmp_path)
        same_port = run_to_its_end(tmp_path / "other", YAML, "--port", str(port))

        assert [same_state[0], same_port[0]] == [2, 2]
        assert "another agent uses" in same_state[2]
        assert "the port is in use" in same_port[2]
        assert not marked_processes(str(tmp_path / "other"))
