"""Hooks of agent.yaml, run by a real agent process: around leases, after faults, and with bad manners."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import psutil
import pytest

from device_agents.serving.timing import Timing
from fleet.errors import DeviceFaulted, LeaseExpired, LeaseRevoked
from fleet.testing import eventually
from tests.programs import is_alive
from tests.service.agent_bench import DEVICE, Holder, StubTracker, marked_processes, serve_bench
from tests.service.test_agent_process import AgentProcess, running

pytestmark = pytest.mark.slow
MOST_BYTES = 32 * 1024 * 1024


@pytest.fixture
async def tracker() -> AsyncIterator[StubTracker]:
    stub = StubTracker()
    await stub.start()
    yield stub
    await stub.stop()


def script(folder: Path, name: str, text: str) -> str:
    """Write an executable shell script, and return its path."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def yaml_with(hooks: Mapping[str, object], **settings: object) -> str:
    entry = {"driver": "simulated", "name": "sim", "time_scale": 0.0, **settings, **hooks}
    return json.dumps({"devices": [entry]})


async def holder_of(agent: AgentProcess, tracker: StubTracker, epoch: int) -> Holder:
    return Holder(await asyncio.to_thread(agent.port), tracker.token(epoch))


async def faults_with(tmp_path: Path, tracker: StubTracker, hook: Mapping[str, object]) -> str:
    """Open a lease on a device with this hook before it; return the message of its error, which the agent reports."""
    with running(tmp_path / "agent", tracker.address, yaml=yaml_with({"before_lease": hook})) as agent:
        holder = await holder_of(agent, tracker, 1)
        with pytest.raises(DeviceFaulted) as raised:
            await holder.open()
        await eventually(lambda: not tracker.reports[DEVICE].is_healthy)
        assert str(raised.value) == f"{DEVICE}: {tracker.reports[DEVICE].reason}"
        await holder.close()
        return tracker.reports[DEVICE].reason


async def test_a_lease_is_usable_only_after_the_hook_before_it(tmp_path: Path, tracker: StubTracker) -> None:
    """The session opens after the end of the hook, and the hook knows the names of device, lease and holder."""
    log = tmp_path / "log"
    before = script(tmp_path, "before", f'sleep 0.3; env | sort > {log}; echo "$1" >> {log}')
    hooks = {"before_lease": {"command": [before, "a word; with $HOME"]}}
    with running(tmp_path / "agent", tracker.address, yaml=yaml_with(hooks)) as agent:
        holder = await holder_of(agent, tracker, 1)

        assert await holder.open() > 0

        *variables, word = log.read_text().splitlines()
        names = {name: value for name, _, value in (line.partition("=") for line in variables)}
        assert word == "a word; with $HOME"
        assert (names["FLEET_DEVICE"], names["FLEET_LEASE"], names["FLEET_HOLDER"]) == (DEVICE, "leases/1", "me@here")
        assert set(names) <= {
            "FLEET_DEVICE",
            "FLEET_LEASE",
            "FLEET_HOLDER",
            "PATH",
            "HOME",
            "PWD",
            "OLDPWD",
            "SHLVL",
            "_",
        }
        await holder.close()


async def test_a_hook_goes_on_while_its_holder_hangs_up(tmp_path: Path, tracker: StubTracker) -> None:
    """A board is not left half prepared: the next call of the lease finds the hook done once."""
    log, go = tmp_path / "log", tmp_path / "go"
    before = script(
        tmp_path, "before", f"echo begun >> {log}; while [ ! -e {go} ]; do sleep 0.02; done; echo done >> {log}"
    )
    hooks = {"before_lease": {"command": [before]}}
    with running(tmp_path / "agent", tracker.address, yaml=yaml_with(hooks)) as agent:
        holder = await holder_of(agent, tracker, 1)
        opening = asyncio.create_task(holder.open())
        await eventually(log.exists)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        go.touch()

        assert await holder.open() > 0

        assert log.read_text() == "begun\ndone\n"
        await holder.close()


async def test_the_hook_after_a_lease_runs_before_the_next_lease(tmp_path: Path, tracker: StubTracker) -> None:
    """It belongs to the lease that ended."""
    log = tmp_path / "log"
    hooks = {
        name: {"command": [script(tmp_path, name, f"sleep 0.1; echo {name} $FLEET_LEASE >> {log}")]}
        for name in ("before_lease", "after_lease")
    }
    with running(tmp_path / "agent", tracker.address, yaml=yaml_with(hooks)) as agent:
        port = await asyncio.to_thread(agent.port)
        first, second = (Holder(port, tracker.token(epoch)) for epoch in (1, 2))
        await first.open()

        await second.open()

        expected = ["before_lease leases/1", "after_lease leases/1", "before_lease leases/2"]
        assert log.read_text().splitlines() == expected
        await second.close_session()
        await eventually(lambda: log.read_text().splitlines() == [*expected, "after_lease leases/2"])
        await first.close()
        await second.close()


async def test_a_hook_that_hangs_is_killed_and_faults_the_device(tmp_path: Path, tracker: StubTracker) -> None:
    """Its children are killed, too."""
    hang = script(tmp_path, "hang", "echo waiting for the relay; sleep 86399 & sleep 86398")

    reason = await faults_with(tmp_path, tracker, {"command": [hang], "timeout_sec": 2})

    assert reason == "before_lease: no end within 2 s: waiting for the relay"
    assert not [*marked_processes("86399"), *marked_processes("86398")]


async def test_a_hook_that_stops_its_keeper_is_killed(tmp_path: Path, tracker: StubTracker) -> None:
    """The agent kills what the keeper cannot."""
    stop = script(tmp_path, "stop", "kill -STOP $PPID; sleep 86397")

    reason = await faults_with(tmp_path, tracker, {"command": [stop], "timeout_sec": 0.3})

    assert reason == "before_lease: no end within 0.3 s"
    assert not marked_processes("86397")


async def test_a_hook_that_prints_without_end_takes_no_memory(tmp_path: Path, tracker: StubTracker) -> None:
    """Only the last line is kept."""
    hook = {"command": ["yes", "y" * 500], "timeout_sec": 2}
    with running(tmp_path / "agent", tracker.address, yaml=yaml_with({"before_lease": hook})) as agent:
        holder = await holder_of(agent, tracker, 1)
        process = psutil.Process(agent.process.pid)
        before_bytes = process.memory_info().rss

        with pytest.raises(DeviceFaulted, match=r"no end within 2 s: y{100}"):
            await holder.open()

        assert process.memory_info().rss < before_bytes + MOST_BYTES
        await holder.close()


async def test_children_that_a_hook_leaves_are_killed(tmp_path: Path, tracker: StubTracker) -> None:
    """One with a session of its own as well; the hook itself did well."""
    pids = tmp_path / "pids"
    fork = script(tmp_path, "fork", f"sleep 86396 & echo $! > {pids}; setsid -f sleep 86395; sleep 0.1")
    hooks = {"before_lease": {"command": [fork]}}
    with running(tmp_path / "agent", tracker.address, yaml=yaml_with(hooks)) as agent:
        holder = await holder_of(agent, tracker, 1)

        assert await holder.open() > 0

        assert not is_alive(int(pids.read_text()))
        assert not [*marked_processes("86396"), *marked_processes("86395")]
        await holder.close()


async def test_a_missing_hook_faults_the_device(tmp_path: Path, tracker: StubTracker) -> None:
    """The reason names the program."""
    reason = await faults_with(tmp_path, tracker, {"command": ["/nowhere/prepare"]})

    assert reason == "before_lease: cannot run /nowhere/prepare: No such file or directory"


async def test_a_hook_that_is_not_executable_faults_the_device(tmp_path: Path, tracker: StubTracker) -> None:
    """As above."""
    plain = tmp_path / "plain"
    plain.write_text("#!/bin/sh\n")

    reason = await faults_with(tmp_path, tracker, {"command": [str(plain)]})

    assert reason == f"before_lease: cannot run {plain}: Permission denied"


async def test_the_last_line_of_a_failed_hook_is_the_reason(tmp_path: Path, tracker: StubTracker) -> None:
    """Without its control characters."""
    fail = script(tmp_path, "fail", r"echo first; printf 'relay \033[31m7\007 is stuck\n\n' >&2; exit 3")

    assert await faults_with(tmp_path, tracker, {"command": [fail]}) == "before_lease: relay [31m7 is stuck"


async def test_a_silent_hook_that_fails_tells_its_exit_code(tmp_path: Path, tracker: StubTracker) -> None:
    """There is no line."""
    assert await faults_with(tmp_path, tracker, {"command": ["false"]}) == "before_lease: exit code 1"


async def test_a_power_cycle_mends_a_device(tmp_path: Path, tracker: StubTracker) -> None:
    """The agent tries it by itself after a fault."""
    mended = tmp_path / "mended"
    hooks = {
        "before_lease": {"command": ["test", "-e", str(mended)]},
        "power_cycle": {"command": ["touch", str(mended)]},
    }
    with running(tmp_path / "agent", tracker.address, yaml=yaml_with(hooks)) as agent:
        holder = await holder_of(agent, tracker, 1)
        with pytest.raises(DeviceFaulted):
            await holder.open()
        await eventually(mended.exists)
        await eventually(lambda: tracker.reports[DEVICE].is_healthy)

        assert await holder.open() > 0

        await holder.close()


async def test_a_device_is_power_cycled_three_times_a_day(tmp_path: Path) -> None:
    """Not more often, however long it is faulted, and whatever the hook's result."""
    log = tmp_path / "log"
    cycle = script(tmp_path, "cycle", f"echo cycled >> {log}; exit 1")
    device = {"driver": "simulated", "name": "sim", "time_scale": 0.0, "disconnect_after": 1, "reconnect_sec": 3600}
    config = {"devices": [{**device, "power_cycle": {"command": [cycle]}}]}
    async with serve_bench(tmp_path / "agent", config, timing=Timing(health_sec=0.05, settle_sec=0.05)) as bench:
        await bench.holding(1).run(b"")
        await eventually(lambda: log.exists() and len(log.read_text().splitlines()) == 3)
        notes = json.loads((tmp_path / "agent/private/hooks.json").read_text())
        await asyncio.gather(*(bench.agent._roster.devices[0].report() for _ in range(50)))  # noqa: SLF001

        assert len(notes[DEVICE]["cycled_at_sec"]) == 3
        assert log.read_text() == "cycled\n" * 3


async def test_power_cycles_count_over_a_restart_of_the_agent(tmp_path: Path, tracker: StubTracker) -> None:
    """Two times today were noted by an agent that was killed: one is left."""
    log, private = tmp_path / "log", tmp_path / "agent/state/private"
    private.mkdir(parents=True)
    now_sec = time.time()
    note = {"cycled_at_sec": [now_sec - 90_000, now_sec - 600, now_sec - 60], "lease_name": "", "holder": ""}
    (private / "hooks.json").write_text(json.dumps({DEVICE: note}))
    hooks = {
        "before_lease": {"command": ["false"]},
        "power_cycle": {"command": [script(tmp_path, "cycle", f"echo cycled >> {log}; kill -9 $(cat {tmp_path}/pid)")]},
    }
    with running(tmp_path / "agent", tracker.address, yaml=yaml_with(hooks)) as agent:
        (tmp_path / "pid").write_text(str(agent.process.pid))
        holder = await holder_of(agent, tracker, 1)
        with pytest.raises(DeviceFaulted):
            await holder.open()
        await asyncio.to_thread(agent.process.wait, 60)
        await holder.close()
    with running(tmp_path / "agent", tracker.address, yaml=yaml_with(hooks)) as agent:
        holder = await holder_of(agent, tracker, 2)
        with pytest.raises(DeviceFaulted):
            await holder.open()
        await eventually(lambda: not tracker.reports[DEVICE].is_healthy)
        await holder.close()

    assert log.read_text() == "cycled\n"


async def test_a_hook_ends_with_its_agent(tmp_path: Path, tracker: StubTracker) -> None:
    """kill -9 of the agent leaves no hook; the next agent cleans up after the lease."""
    log, begun = tmp_path / "log", tmp_path / "begun"
    hooks = {
        "before_lease": {"command": [script(tmp_path, "before", f"touch {begun}; sleep 86394")]},
        "after_lease": {"command": [script(tmp_path, "after", f"echo $FLEET_LEASE of $FLEET_HOLDER >> {log}")]},
    }
    with running(tmp_path / "agent", tracker.address, yaml=yaml_with(hooks)) as agent:
        holder = await holder_of(agent, tracker, 1)
        opening = asyncio.create_task(holder.open())
        await eventually(begun.exists)
        os.kill(agent.process.pid, signal.SIGKILL)
        await asyncio.gather(opening, return_exceptions=True)
        await eventually(lambda: not marked_processes("86394"))
        await holder.close()
    assert not log.exists()
    with running(tmp_path / "agent", tracker.address, yaml=yaml_with(hooks)) as agent:
        await asyncio.to_thread(agent.port)

        await eventually(log.exists)

        await eventually(lambda: log.read_text() == "leases/1 of me@here\n")


async def test_a_signal_ends_an_agent_with_a_hook(tmp_path: Path, tracker: StubTracker) -> None:
    """It leaves no process."""
    begun = tmp_path / "begun"
    hooks = {"before_lease": {"command": [script(tmp_path, "before", f"touch {begun}; sleep 86393")]}}
    with running(tmp_path / "agent", tracker.address, yaml=yaml_with(hooks)) as agent:
        holder = await holder_of(agent, tracker, 1)
        opening = asyncio.create_task(holder.open())
        await eventually(begun.exists)

        agent.process.send_signal(signal.SIGTERM)
        code, _, err = await asyncio.to_thread(agent.finish)

        assert (code, marked_processes("86393")) == (0, [])
        assert "Traceback" not in err
        await asyncio.gather(opening, return_exceptions=True)
        await holder.close()


async def test_an_agent_that_ends_cleans_up_after_its_lease(tmp_path: Path, tracker: StubTracker) -> None:
    """Before it exits."""
    log = tmp_path / "log"
    after = script(tmp_path, "after", f"sleep 0.3; echo $FLEET_LEASE >> {log}")
    hooks = {"after_lease": {"command": [after]}}
    with running(tmp_path / "agent", tracker.address, yaml=yaml_with(hooks)) as agent:
        holder = await holder_of(agent, tracker, 1)
        await holder.open()

        agent.process.send_signal(signal.SIGTERM)
        code, _, _ = await asyncio.to_thread(agent.finish)

        assert (code, log.read_text()) == (0, "leases/1\n")
        await holder.close()


async def test_a_lease_that_ends_during_its_hook_opens_no_session(tmp_path: Path, tracker: StubTracker) -> None:
    """The board is cleaned up all the same."""
    log, go, begun = tmp_path / "log", tmp_path / "go", tmp_path / "begun"
    before = script(tmp_path, "before", f"touch {begun}; while [ ! -e {go} ]; do sleep 0.02; done")
    after = script(tmp_path, "after", f"echo $FLEET_LEASE >> {log}")
    hooks = {"before_lease": {"command": [before]}, "after_lease": {"command": [after]}}
    with running(tmp_path / "agent", tracker.address, yaml=yaml_with(hooks)) as agent:
        holder = await holder_of(agent, tracker, 1)
        opening = asyncio.create_task(holder.open())
        await eventually(begun.exists)
        tracker.fence(DEVICE, 1)
        await eventually(lambda: tracker.reports[DEVICE].fenced_epoch == 1, timeout_sec=20.0)
        go.touch()

        with pytest.raises(LeaseRevoked):
            await opening
        await eventually(lambda: log.exists() and log.read_text() == "leases/1\n")
        await holder.close()


async def test_a_hook_may_outlast_the_token_of_a_renewed_lease(tmp_path: Path, tracker: StubTracker) -> None:
    """The client sends a newer token meanwhile; the hook runs once."""
    log, go = tmp_path / "log", tmp_path / "go"
    before = script(tmp_path, "before", f"echo begun >> {log}; while [ ! -e {go} ]; do sleep 0.02; done")
    hooks = {"before_lease": {"command": [before]}}
    with running(tmp_path / "agent", tracker.address, yaml=yaml_with(hooks)) as agent:
        holder = await holder_of(agent, tracker, 1)
        ends_sec = time.time() + 8.0
        holder.token = tracker.token(1, ttl_sec=8.0)
        opening = asyncio.create_task(holder.open())
        await eventually(log.exists)
        holder.token = tracker.token(1)
        extending = asyncio.create_task(holder.open())
        await eventually(lambda: time.time() > ends_sec, timeout_sec=30.0)
        go.touch()

        assert await opening == await extending > 0

        assert log.read_text() == "begun\n"
        await holder.close()


async def test_a_lease_that_is_not_renewed_during_its_hook_opens_no_session(
    tmp_path: Path, tracker: StubTracker
) -> None:
    """It has expired."""
    hooks = {"before_lease": {"command": ["sleep", "3"]}}
    with running(tmp_path / "agent", tracker.address, yaml=yaml_with(hooks)) as agent:
        port = await asyncio.to_thread(agent.port)
        holder = Holder(port, tracker.token(1, ttl_sec=2.0))

        with pytest.raises(LeaseExpired):
            await holder.open()

        await holder.close()


async def test_a_lease_gets_another_worker_after_a_power_cycle(tmp_path: Path) -> None:
    """The former one knew the board as it was before."""
    device = {"driver": "simulated", "name": "sim", "time_scale": 0.0, "disconnect_after": 1, "reconnect_sec": 0.5}
    config = {"devices": [{**device, "power_cycle": {"command": ["true"]}}]}
    async with serve_bench(tmp_path / "agent", config, timing=Timing(health_sec=0.05)) as bench:
        holder = bench.holding(1)
        first = await holder.run(b"good")
        served = bench.agent._roster.devices[0]  # noqa: SLF001
        await eventually(lambda: served.upkeep.cycles == 1 and served.is_well)

        second = await holder.run(b"good")

        assert second.run_secs
        assert second.provenance.worker_pid != first.provenance.worker_pid


async def test_damaged_notes_of_hooks_count_as_none(tmp_path: Path, tracker: StubTracker) -> None:
    """The agent starts, and says so in its log."""
    private = tmp_path / "agent/state/private"
    private.mkdir(parents=True)
    (private / "hooks.json").write_text("[" * 100_000)
    hooks = {"before_lease": {"command": ["true"]}}
    with running(tmp_path / "agent", tracker.address, yaml=yaml_with(hooks)) as agent:
        holder = await holder_of(agent, tracker, 1)

        assert await holder.open() > 0

        await holder.close()
