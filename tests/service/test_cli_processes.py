"""The commands as processes, on a local fleet with a simulated device."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

import fleet.aio
from fleet.aio import LocalFleet
from fleet.base.readiness import Ready
from fleet.cli.up import _gateway
from fleet.client.aio import Fleet
from fleet.domain.leases import PendingRequest
from fleet.domain.measuring import Trial
from fleet.errors import FleetError, NotFound
from fleet.local.children import Child, ChildSpec
from fleet.testing import eventually, serve_tracker
from tests.programs import alive

pytestmark = pytest.mark.slow

_START_SEC = 60.0
"""A command starts in a second of a processor, which may be a long time on a busy machine."""

USES_THE_HELD_DEVICE = """
import fleet, pathlib, sys
path = pathlib.Path(sys.argv[1])
path.write_bytes(b"a library of the simulated device")
with fleet.held_device() as device:
    print(device.name, len(device.load(path).time("main", [((4,), "float32")], repeat=3).run_secs))
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "agent.yaml"
    path.write_text("devices:\n  - driver: simulated\n    name: sim\n")
    return path


@pytest_asyncio.fixture
async def local(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LocalFleet]:
    """Its state directory is relative to the user's directory, which is not the workers'."""
    monkeypatch.chdir(tmp_path)
    async with LocalFleet(agent_config=config, state_dir=Path("state")) as running:
        yield running


@pytest_asyncio.fixture
async def client(local: LocalFleet) -> AsyncIterator[Fleet]:
    async with fleet.aio.connect(local.address) as connected:
        yield connected


async def start(local: LocalFleet, *arguments: str) -> asyncio.subprocess.Process:
    """Start `fleet` as a process of its own."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "fleet.cli.main", "--tracker", local.address, *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def finished(process: asyncio.subprocess.Process) -> tuple[int | None, str, str]:
    """Wait for the end of a process and return its exit code and output."""
    stdout, stderr = await process.communicate()
    return process.returncode, stdout.decode(), stderr.decode()


async def first_request(client: Fleet) -> PendingRequest | None:
    return next(iter((await client.snapshot()).requests), None)


async def holds(client: Fleet) -> bool:
    return bool((await client.snapshot()).leases)


async def is_free(client: Fleet) -> bool:
    return not await holds(client)


async def test_a_local_fleet_leaves_no_files_behind(config: Path) -> None:
    """Tracker and agent serve while the block runs; their processes and files are gone after it."""
    others = set(psutil.Process().children(recursive=True))
    async with LocalFleet(agent_config=config) as local, fleet.aio.connect(local.address) as client:
        assert [device.name for device in (await client.snapshot()).devices] == ["devices/sim"]
        children = set(psutil.Process().children(recursive=True)) - others
        assert len(children) >= 2
        state_dir = local.state_dir
    assert not alive(children)
    assert not state_dir.exists()


async def test_a_child_that_cannot_start_is_one_clear_error(tmp_path: Path) -> None:
    """The error says which child, its exit code, and its last lines."""
    config = tmp_path / "agent.yaml"
    config.write_text("devises: []\n")
    with pytest.raises(FleetError, match=r"(?s)the agent did not start \(exit code 2\).*devises.*devices"):
        await LocalFleet(agent_config=config).start()


async def test_a_killed_tracker_is_started_again(config: Path) -> None:
    """With restarts on, a lease survives kill -9 of the tracker and its restart on the same port."""
    told: list[str] = []
    async with (
        LocalFleet(agent_config=config, restarts=True, on_change=told.append) as local,
        fleet.aio.connect(local.address) as client,
        client.acquire("simulated") as device,
    ):
        before = device.token
        assert local.tracker is not None
        assert local.tracker.pid is not None
        os.kill(local.tracker.pid, signal.SIGKILL)
        await eventually(lambda: client.is_connected and device.token != before, 30)
        assert device.ended is None
    assert told[0].startswith("the tracker ended (exit code -9)")
    assert told[1] == "the tracker is back"


async def test_the_command_runs_with_the_lease_and_its_exit_code_is_ours(local: LocalFleet, client: Fleet) -> None:
    """The environment names lease, device and tracker; the device is free again afterwards."""
    script = 'echo "$FLEET_DEVICE $FLEET_TRACKER $FLEET_LEASE"; test -s "$FLEET_TOKEN_FILE" && exit 7'
    code, stdout, _ = await finished(await start(local, "acquire", "simulated", "--", "sh", "-c", script))
    assert code == 7
    assert stdout.startswith(f"devices/sim {local.address} leases/")
    await eventually(lambda: is_free(client))


async def test_a_command_starts_after_the_hook_of_its_device(tmp_path: Path) -> None:
    """Also one that does not use the agent; if the hook fails, the command does not start, and the lease ends."""
    done = tmp_path / "done"
    hooks = {"good": f"sleep 0.5; echo prepared > {done}", "bad": "echo no power; exit 1"}
    entries = [
        f"- {{driver: simulated, name: {name}, before_lease: {{command: [sh, -c, '{text}']}}}}\n"
        for name, text in hooks.items()
    ]
    config = tmp_path / "agent.yaml"
    config.write_text("devices:\n" + "".join(entries))
    async with (
        LocalFleet(agent_config=config, state_dir=tmp_path / "state") as local,
        fleet.aio.connect(local.address) as client,
    ):
        code, stdout, stderr = await finished(await start(local, "acquire", "name=good", "--", "cat", str(done)))
        assert (code, stdout) == (0, "prepared\n"), stderr
        code, stdout, stderr = await finished(await start(local, "acquire", "name=bad", "--", "echo", "started"))
        assert (code, stdout) == (1, "")
        assert "devices/bad: before_lease: no power" in stderr
        assert "Traceback" not in stderr
        assert not (await client.snapshot()).leases


async def test_code_under_acquire_uses_the_held_device(local: LocalFleet, tmp_path: Path) -> None:
    """`fleet.held_device()` measures under the lease of the surrounding command."""
    process = await start(
        local, "acquire", "simulated", "--", sys.executable, "-c", USES_THE_HELD_DEVICE, str(tmp_path / "a.so")
    )
    code, stdout, stderr = await finished(process)
    assert (code, stdout) == (0, "devices/sim 3\n"), stderr


async def test_waiting_is_shown_and_bounded(local: LocalFleet, client: Fleet) -> None:
    """The place in the queue goes to stderr; after the allowed wait the exit code is 124."""
    async with client.acquire("simulated"):
        process = await start(local, "acquire", "simulated", "--wait-timeout", "0.3", "--", "true")
        code, stdout, stderr = await finished(process)
    assert (code, stdout) == (124, "")
    assert "next in the queue" in stderr
    assert "error: no device" in stderr
    assert "Traceback" not in stderr


async def test_a_cancelled_request_ends_its_wait(local: LocalFleet, client: Fleet) -> None:
    """It is listed, a prefix of its id selects it, and the waiting client gets the reason."""
    async with client.acquire("simulated"):
        waiting = await start(local, "acquire", "simulated", "--", "true")
        request = await eventually(lambda: first_request(client), _START_SEC)
        code, stdout, _ = await finished(await start(local, "request", "list"))
        assert (code, request.request_id[:8] in stdout) == (0, True)
        code, stdout, _ = await finished(
            await start(local, "request", "cancel", request.request_id[:8], "--reason", "to the workshop", "--json")
        )
        assert [request.request_id] == [each["request_id"] for each in json.loads(stdout)["requests"]]
        code, stdout, stderr = await finished(waiting)
    assert (code, stdout) == (1, "")
    assert "was cancelled by " in stderr
    assert "to the workshop" in stderr
    code, _, stderr = await finished(await start(local, "request", "cancel", request.request_id))
    assert (code, "'fleet request list' lists those that do" in stderr) == (1, True)


async def test_a_lost_lease_ends_the_command_and_its_children(local: LocalFleet, client: Fleet) -> None:
    """After a revocation the whole process tree is gone, the reason is printed, and the exit code is 1."""
    process = await start(local, "acquire", "simulated", "--", "sh", "-c", "sleep 300 & sleep 301")
    await eventually(lambda: holds(client), _START_SEC)
    await eventually(lambda: len(psutil.Process(process.pid).children(recursive=True)) >= 3, _START_SEC)
    family = psutil.Process(process.pid).children(recursive=True)
    await client.revoke((await client.snapshot()).leases[0].name, "needed elsewhere")
    code, _, stderr = await finished(process)
    assert code == 1
    assert "needed elsewhere" in stderr
    assert not alive(family)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
async def test_signals_reach_the_command(local: LocalFleet, client: Fleet, number: int, code: int) -> None:
    """A signal to us is a signal to the command, and the device is free again."""
    process = await start(local, "acquire", "simulated", "--", "sleep", "300")
    await eventually(lambda: len(psutil.Process(process.pid).children()) == 1, _START_SEC)
    await eventually(lambda: _runs(process.pid, "sleep"), _START_SEC)
    process.send_signal(number)
    assert (await finished(process))[0] == code
    await eventually(lambda: is_free(client))


async def test_a_killed_acquire_takes_its_command_with_it(local: LocalFleet, client: Fleet) -> None:
    """After kill -9 of the holder the command is dead at once; the tracker frees the device in its own time."""
    process = await start(local, "acquire", "simulated", "--", "sleep", "300")
    await eventually(lambda: _runs(process.pid, "sleep"), _START_SEC)
    command = psutil.Process(process.pid).children()[0]
    process.kill()
    await process.wait()
    await eventually(lambda: not alive([command]))
    await eventually(lambda: is_free(client), 30)


async def test_status_devices_and_leases_print_tables_and_json(local: LocalFleet, client: Fleet) -> None:
    """status, devices and leases print tables for people and JSON for programs."""
    async with client.acquire("simulated", purpose="a test") as device:
        code, stdout, _ = await finished(await start(local, "leases", "--json"))
        assert code == 0
        (lease,) = json.loads(stdout)["leases"]
        found = lease["name"], lease["purpose"], lease["lease_class"]
        assert found == (device.lease.name, "a test", "normal")
        code, stdout, _ = await finished(await start(local, "leases"))
        assert (code, "normal" in stdout) == (0, True)
        code, stdout, _ = await finished(await start(local, "status", "--once"))
        assert code == 0
        assert "sim" in stdout
        assert "leased" in stdout
        code, stdout, _ = await finished(await start(local, "--format", "json", "devices"))
        assert [found["name"] for found in json.loads(stdout)["devices"]] == ["devices/sim"]
        code, stdout, _ = await finished(await start(local, "devices", "--json", "kind=simulated,name=s*"))
        assert [found["name"] for found in json.loads(stdout)["devices"]] == ["devices/sim"]
        code, stdout, _ = await finished(await start(local, "devices", "kind=rocm"))
        assert (code, "none of 1 devices matches 'kind=rocm'" in stdout) == (0, True)
        assert len(stdout.splitlines()) == 1  # a pipe has no width to break lines at
        code, stdout, _ = await finished(await start(local, "devices", "show", "sim"))
        assert device.lease.name in stdout
        code, _, stderr = await finished(await start(local, "devices", "show", "nope"))
        assert (code, stderr) == (1, "error: there is no devices/nope; known are: sim\n")


async def test_the_agents_worker_measures_for_the_client(client: Fleet, tmp_path: Path) -> None:
    """The client's data path fits the real agent: upload, and a thousand trials in order."""
    artifact = fleet.Artifact.of_file(_library(tmp_path))
    async with client.acquire("simulated") as device:
        await device.ensure([artifact])
        trials = [Trial(candidate_id=str(i), artifact_digest=artifact.digest) for i in range(1000)]
        measurements = [measurement async for measurement in device.measure(trials)]
        assert [measurement.candidate_id for measurement in measurements] == [trial.candidate_id for trial in trials]
        assert all(measurement.error is None for measurement in measurements)


def _library(directory: Path) -> Path:
    path = directory / "library.so"
    path.write_bytes(b"a library of the simulated device")
    return path


def _runs(pid: int, name: str) -> bool:
    return [child.name() for child in psutil.Process(pid).children()] == [name]


async def test_a_child_that_does_not_start_is_heard_alone(tmp_path: Path) -> None:
    """The message has the output of this start, not of an earlier one in the same log."""
    log_path = tmp_path / "child.log"
    log_path.write_text("an earlier start\n")
    program = "import sys; sys.exit('a line of its log\\nerror: the port is taken')"
    spec = ChildSpec(name="child", command=(sys.executable, "-c", program), log_path=log_path)

    with pytest.raises(FleetError) as caught:
        await Child(spec).start()

    assert str(caught.value) == "the child did not start (exit code 1)\n  child: error: the port is taken"


async def test_a_child_reads_its_input_from_stdin_after_the_start(tmp_path: Path) -> None:
    """The child starts before its input is known, and its stdin is closed after it."""
    program = (
        "import sys; from fleet.base.readiness import *; "
        "print('a line of a library'); write_ready(Ready(address=sys.stdin.read().strip()))"
    )
    spec = ChildSpec(name="child", command=(sys.executable, "-c", program), log_path=tmp_path / "child.log")
    told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    child = Child(spec)

    starting = asyncio.create_task(child.start(told))
    await eventually(lambda: child.pid)
    told.set_result("127.0.0.1:1")

    assert await starting == Ready(address="127.0.0.1:1")
    await child.stop()


async def test_a_device_shows_its_last_hour(local: LocalFleet) -> None:
    """People get a plot, scripts get the samples."""
    process = await start(local, "devices", "show", "sim")
    shown, _ = await process.communicate()
    process = await start(local, "devices", "show", "sim", "--json")
    told, _ = await process.communicate()

    assert b"temperature" in shown
    assert b"60 min ago" in shown
    history = json.loads(told)["history"]
    assert history[0]["temp_c"] == 40.0
    assert "read_at" in history[0]


async def test_an_unknown_device_has_no_history(client: Fleet) -> None:
    """The tracker reports an error instead of an empty hour."""
    with pytest.raises(NotFound, match="devices/nobody"):
        await client.history("devices/nobody")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP, signal.SIGTERM])
async def test_the_children_of_fleet_up_end_with_it(config: Path, tmp_path: Path, number: signal.Signals) -> None:
    """They end when its terminal closes and after kill -9, even while a client holds a device."""
    up = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "fleet.cli.main", "up", "--port", "0", "--gateway-port", "0"),
        *("--config", str(config), "--state-dir", str(tmp_path / "state")),
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert up.stderr is not None
    line = await asyncio.wait_for(up.stderr.readline(), _START_SEC)
    address = line.decode().partition("tracker on ")[2].partition(",")[0]
    line = await asyncio.wait_for(up.stderr.readline(), _START_SEC)
    assert line.startswith(b"gateway for stock TVM clients on 127.0.0.1:")
    family = psutil.Process(up.pid).children(recursive=True)
    assert len(family) >= 2
    async with fleet.aio.connect(address) as client, client.acquire("simulated"):
        os.kill(up.pid, number)
        await eventually(lambda: not alive(family), 30)
    code = await up.wait()
    assert code in (-signal.SIGKILL, 0)


async def test_fleet_up_says_that_the_gateways_port_is_taken() -> None:
    """The fleet runs without a gateway then."""
    async with serve_tracker() as served:
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            async with _gateway(served.address, port) as sentence:
                assert sentence.startswith("no gateway for stock TVM clients: ")
                assert f"cannot listen on 127.0.0.1:{port}" in sentence


async def test_a_wait_for_a_tracker_is_shown() -> None:
    """Before, ten seconds of silence preceded the error that no tracker answers."""
    words = ("devices", "--tracker", "127.0.0.1:9", "--connect-timeout", "4")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "fleet", *words), stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL
    )

    _, stderr = await process.communicate()

    lines = stderr.decode().splitlines()
    assert lines[0] == "connecting to the tracker at 127.0.0.1:9"
    assert lines[-1].startswith("error: no tracker answers at 127.0.0.1:9")
