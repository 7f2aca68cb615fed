"""Leases under a stock runner: kept while busy, released when idle, replaced when lost. Real tracker and agents."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet.artifacts.artifact import Artifact
from fleet.domain.leases import make_terms
from fleet.domain.measuring import ErrorKind, Evaluator, Measurement, Trial
from fleet.errors import DeviceClosed
from fleet.metaschedule.lanes import LanePlan, Lanes
from fleet.testing import eventually_sync
from tests.system.fleet_processes import Server, connect

pytestmark = pytest.mark.slow

StartAgent = Callable[..., Server]


def start(stack: ExitStack, folder: Path, ready: str, *words: str) -> Server:
    """Run a server until the stack is left."""
    server = Server(["-m", *words, "--state-dir", str(folder)], ready, folder.with_suffix(".log")).start()
    stack.callback(server.stop)
    return server


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def tracker(stack: ExitStack, tmp_path: Path) -> str:
    return start(stack, tmp_path / "tracker", "tracker", "fleet.tracker", "--no-discovery").address


@pytest.fixture
def start_agent(stack: ExitStack, tmp_path: Path, tracker: str) -> StartAgent:
    """Start an agent with a simulated device that has these settings."""

    def start_one(name: str, **settings: Any) -> Server:
        config = tmp_path / f"{name}.yaml"
        config.write_text(yaml.safe_dump({"devices": [{"driver": "simulated", "name": name, **settings}]}))
        words = ("--tracker", tracker, "--config", str(config))
        return start(stack, tmp_path / name, "agent", "device_agents", *words)

    return start_one


@pytest.fixture
def lanes_on(stack: ExitStack, tracker: str) -> Callable[..., Lanes]:
    def make(**settings: Any) -> Lanes:
        lanes = Lanes(LanePlan(address=tracker, terms=make_terms("simulated"), **settings))
        stack.callback(lanes.close)
        return lanes

    return make


def submit(lanes: Lanes, directory: Path, content: str, count: int = 1) -> list[Future[Measurement]]:
    """Queue trials of one pretend artifact."""
    path = directory / f"{content.replace(' ', '-')}.so"
    path.write_text(content)
    artifact = Artifact.of_file(path)
    trial = Trial(candidate_id=content, artifact_digest=artifact.digest, evaluator=Evaluator(), timeout_sec=60.0)
    return [lanes.submit(artifact, trial) for _ in range(count)]


def results(futures: list[Future[Measurement]]) -> list[ErrorKind | None]:
    return [future.result(60).error for future in futures]


def lease_names(address: str) -> list[str]:
    with connect(address) as client:
        return [lease.name for lease in client.snapshot().leases]


def test_one_lease_serves_rounds(
    tracker: str, start_agent: StartAgent, lanes_on: Callable[..., Lanes], tmp_path: Path
) -> None:
    """Rounds within the idle time share it."""
    start_agent("sim")
    lanes = lanes_on(idle_sec=600.0)

    assert results(submit(lanes, tmp_path, "latency_us:100", 8)) == [None] * 8
    first = lease_names(tracker)
    assert results(submit(lanes, tmp_path, "latency_us:200", 8)) == [None] * 8

    assert lease_names(tracker) == first
    assert len(first) == 1


def test_a_lease_goes_when_idle(
    tracker: str, start_agent: StartAgent, lanes_on: Callable[..., Lanes], tmp_path: Path
) -> None:
    """The device is free for others then, and the next round leases it again."""
    start_agent("sim")
    lanes = lanes_on(idle_sec=0.2)

    assert results(submit(lanes, tmp_path, "latency_us:100", 8)) == [None] * 8
    eventually_sync(lambda: lease_names(tracker) == [])
    assert results(submit(lanes, tmp_path, "latency_us:200")) == [None]


def test_results_keep_their_order_around_failures(
    start_agent: StartAgent, lanes_on: Callable[..., Lanes], tmp_path: Path
) -> None:
    """Each future has its own candidate's result, also when neighbours crash."""
    start_agent("sim")
    lanes = lanes_on()
    contents = ["latency_us:100", "crash 1", "latency_us:200", "exit 1", "latency_us:300"]

    futures = [submit(lanes, tmp_path, content)[0] for content in contents]

    assert [future.result(60).candidate_id for future in futures] == contents
    assert results(futures) == [None, ErrorKind.CRASHED, None, ErrorKind.CRASHED, None]


def test_an_agent_that_dies_costs_the_candidate_that_ran(
    start_agent: StartAgent, lanes_on: Callable[..., Lanes], tmp_path: Path
) -> None:
    """After kill -9 of the agent, the running candidate is the suspect, and all later ones are measured on the next
    device.
    """
    victim = start_agent("sim-a")
    lanes = lanes_on()
    futures = submit(lanes, tmp_path, "sleep:0.2", 20)
    futures[0].result(60)
    victim.kill()

    start_agent("sim-b")

    found = results(futures)
    suspect = found.index(ErrorKind.DEVICE_FAULTED)
    assert suspect > 0
    assert [*found[:suspect], *found[suspect + 1 :]] == [None] * 19


def test_several_devices_share_the_work(
    tracker: str, start_agent: StartAgent, lanes_on: Callable[..., Lanes], tmp_path: Path
) -> None:
    """With two devices both are leased, and neither hoards work that the other could do."""
    start_agent("sim", count=2)
    lanes = lanes_on(devices=2, idle_sec=600.0)

    futures = submit(lanes, tmp_path, "sleep:0.1", 40)
    eventually_sync(lambda: len(lease_names(tracker)) == 2)

    assert results(futures) == [None] * 40


def test_close_gives_back_at_once_and_fails_the_rest(
    tracker: str, start_agent: StartAgent, lanes_on: Callable[..., Lanes], tmp_path: Path
) -> None:
    """Pending results of a closed runner fail at once, and others get the device."""
    start_agent("sim")
    lanes = lanes_on()
    futures = submit(lanes, tmp_path, "sleep:0.3", 20)
    futures[0].result(60)

    lanes.close()

    assert lease_names(tracker) == []
    with pytest.raises(DeviceClosed, match="closed before this was measured"):
        futures[-1].result(1)
    with pytest.raises(DeviceClosed):
        submit(lanes, tmp_path, "sleep:0.3")
    assert "fleet-runner" not in [thread.name for thread in threading.enumerate()]


def test_a_script_that_just_ends_leaves_no_lease(tracker: str, start_agent: StartAgent, tmp_path: Path) -> None:
    """Without a call to close, the end of the process releases the device, long before the lease would expire."""
    start_agent("sim")
    (tmp_path / "x.so").write_text("latency_us:100")
    script = f"""
from fleet.metaschedule import FleetRunner
from fleet.artifacts.artifact import Artifact
from fleet.domain.measuring import Trial
from tvm.s_tir.meta_schedule.runner import RunnerInput
runner = FleetRunner({tracker!r}, "simulated", idle_sec=600.0)
[future] = runner.run([RunnerInput({str(tmp_path / "x.so")!r}, "cpu", [])])
assert future.result().error_msg is None
print("done", flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "done\n"

    assert process.wait(60) == 0
    process.stdout.close()
    eventually_sync(lambda: lease_names(tracker) == [], 20.0)
