"""Contract of every observer of the tracker. A new observer joins by one entry in `MEMBERS`.

The observers are a running tracker's own, and the example of docs/how-to/observe-the-tracker.md.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet.domain.health import HealthMark, HealthState
from fleet.domain.leases import LeaseClass
from fleet.errors import ConfigError, QueueFull
from fleet.testing import LeaseStream, ServedTracker, SimulatedAgent, eventually, serve_tracker
from fleet.tracker.core import events as ev
from fleet.tracker.core.records import Changes, LeaseEnd, YieldEntry
from fleet.tracker.observers import Observer, Observers, installed_observers
from fleet.v1 import device_pb2
from tests.contract.installed import install
from tests.system.fleet_processes import Server

MEMBERS = [
    *("LeaseAudit", "OwnAudit", "SpeedWatch"),
    *("FleetView", "History", "LeaseHistory", "Forecaster"),
    *("AgentServicer", "LeaseServicer", "GrantCounter", "TrackerMetrics"),
]
EXAMPLE = Path(__file__).parents[2] / "examples/observer"
DEVICE = "devices/a"


class Recorder(Observer):
    """Log of all calls, each passed on to another observer afterwards."""

    def __init__(self, inner: Observer | None = None) -> None:
        self.inner = inner or Observers()
        self.log: list[str] = []

    def on_change(self, changes: Changes) -> None:
        if changes:
            leases = [name for name, device in changes.leases.items() if device and device.lease]
            self.log.append(f"change {sorted(changes.devices)} {leases}")
        self.inner.on_change(changes)

    def on_effect(self, effect: ev.Effect) -> None:
        self.log.append(type(effect).__name__)
        self.inner.on_effect(effect)

    def on_telemetry(self, device_name: str, telemetry: device_pb2.Telemetry, at_sec: float) -> None:
        self.log.append(f"{device_name} {telemetry.temp_c:g}")
        self.inner.on_telemetry(device_name, telemetry, at_sec)


class Failing(Recorder):
    """An observer that ends every call with an error."""

    def on_change(self, changes: Changes) -> None:
        super().on_change(changes)
        raise RuntimeError("change")

    def on_effect(self, effect: ev.Effect) -> None:
        super().on_effect(effect)
        raise RuntimeError("effect")

    def on_telemetry(self, *values: Any) -> None:
        super().on_telemetry(*values)
        raise RuntimeError("telemetry")


LOG = [
    "change ['devices/a'] []",
    "Attached",
    "Welcomed",
    "change [] ['devices/a']",
    "Granted",
    "devices/a 40",
    "change [] []",
    "Fence",
    "LeaseEnded",
]
"""Calls that follow from `use`, until the agent leaves."""


async def use(served: ServedTracker) -> list[str]:
    """Attach a device, lease it, report its temperature, and give it back. Return the log of a last observer."""
    engine, last = served.tracker.engine, Recorder()
    engine.observers = Observers((*engine.observers.members, last))
    async with SimulatedAgent(served.address, [DEVICE]) as agent, LeaseStream(served.address, "c") as client:
        granted = await client.grant("r", "simulated")
        agent.report(DEVICE, is_healthy=True, temp_c=40.0)
        await eventually(lambda: "devices/a 40" in last.log)
        client.release(granted.lease.name)
        await eventually(lambda: client.ended)
    return last.log[: len(LOG)]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The example as an installed package; the folder of its metadata."""
    install(EXAMPLE, tmp_path / "site", monkeypatch)
    yield tmp_path / "site"
    sys.modules.pop("grant_counter", None)


@pytest.fixture
async def served(installed: Path) -> AsyncIterator[ServedTracker]:
    async with serve_tracker(observers=installed_observers(), metrics="127.0.0.1:0") as served:
        yield served


@pytest.fixture(params=MEMBERS)
def member(request: pytest.FixtureRequest, served: ServedTracker) -> Observer:
    return named(request.param, served)


def named(name: str, served: ServedTracker) -> Observer:
    """Return the observer of a class."""
    return next(each for each in served.tracker.engine.observers.members if type(each).__name__ == name)


def replace(served: ServedTracker, member: Observer, by: Observer) -> None:
    """Put an observer in the place of another one."""
    members = served.tracker.engine.observers.members
    served.tracker.engine.observers = Observers(by if each is member else each for each in members)


def calls() -> list[tuple[str, tuple[object, ...]]]:
    """Return every kind of call, with names that the tracker does not have."""
    wanted = YieldEntry(
        lease_name="leases/none", request_key=("none", "r"), lease_class=LeaseClass.NORMAL, until_sec=1_000.0
    )
    effects: list[ev.Effect] = [
        ev.Attached("none", (ev.Fence("none", "devices/none", 7),)),
        ev.AttachRefused("none", "devices/none", "taken"),
        ev.Fence("none", "devices/none", 7),
        ev.Welcomed("none", (), "none", may_ask_for_others=False),
        ev.YieldWanted("none", wanted),
        ev.HealthMarked("devices/none", HealthMark(state=HealthState.RETIRED, by="root", at_sec=7.0)),
        ev.Refused("none", "r", QueueFull, "full"),
        ev.LeaseEnded("none", "leases/none", LeaseEnd.EXPIRED, "late"),
    ]
    gone = Changes(devices={"devices/none": None}, leases={"devices/none": None}, requests={("none", "r"): None})
    readings = device_pb2.Telemetry(temp_c=1.0)
    return [
        ("on_change", (Changes(),)),
        ("on_telemetry", ("devices/none", readings, 1e6)),
        ("on_change", (gone,)),
        *(("on_effect", (effect,)) for effect in effects),
    ]


def test_every_observer_of_a_tracker_is_here(served: ServedTracker) -> None:
    """An observer that is added to the tracker passes the contract, too."""
    assert [type(each).__name__ for each in served.tracker.engine.observers.members] == MEMBERS


async def test_it_sees_each_change_once_and_in_order(served: ServedTracker, member: Observer) -> None:
    """Changes come before the effects that they cause."""
    recorder = Recorder(member)
    replace(served, member, recorder)

    assert await use(served) == LOG
    assert recorder.log[: len(LOG)] == LOG


async def test_its_failures_stop_neither_engine_nor_other_observers(
    served: ServedTracker, member: Observer, caplog: pytest.LogCaptureFixture
) -> None:
    """Each failure is logged with the call that failed, and the next call comes as usual."""
    failing = Failing(member)
    replace(served, member, failing)

    assert await use(served) == LOG
    assert failing.log[: len(LOG)] == LOG
    failed = {getattr(record, "call", "") for record in caplog.records if record.message == "observer failed"}
    assert {"Failing.on_change", "Failing.on_effect", "Failing.on_telemetry"} == failed


async def test_unknown_names_are_ignored(member: Observer) -> None:
    """After a restart, events may name devices, leases and clients that an observer has never seen."""
    for name, values in calls():
        getattr(member, name)(*values)


async def test_it_returns_at_once(member: Observer) -> None:
    """Every client waits meanwhile. The shortest of several runs counts, since the machine may be busy."""
    for name, values in calls():
        took_sec = []
        for _ in range(20):
            started_sec = time.perf_counter()
            getattr(member, name)(*values)
            took_sec.append(time.perf_counter() - started_sec)
        assert min(took_sec) < 0.001, name


async def test_the_example_counts_grants_and_forgets_devices(served: ServedTracker) -> None:
    """An agent that returns without a device drops the count with it."""
    counter: Any = named("GrantCounter", served)

    async with SimulatedAgent(served.address, [DEVICE]), LeaseStream(served.address, "c") as client:
        client.release((await client.grant("r", "simulated")).lease.name)
        await eventually(lambda: client.ended)
        assert counter.grants == {DEVICE: 1}
        async with SimulatedAgent(served.address, ["devices/b"]):
            assert counter.grants == {}


@pytest.mark.slow
async def test_a_served_tracker_calls_installed_observers(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`fleet tracker serve` finds the example by its entry point."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(installed), str(EXAMPLE)]))
    command = ["-m", "fleet", "tracker", "serve", "--no-discovery", "--state-dir", str(tmp_path / "tracker")]
    server = Server(command, "tracker", tmp_path / "log").start()
    try:
        async with SimulatedAgent(server.address, [DEVICE]), LeaseStream(server.address, "c") as client:
            await client.grant("r", "simulated")
            await eventually(lambda: re.search(r"grant counted.*devices/a", server.log.read_text()))
    finally:
        server.stop()


def test_an_observer_that_cannot_be_loaded_is_named(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tracker does not start without an observer that its owner expects."""
    import grant_counter  # type: ignore[import-not-found]

    monkeypatch.delattr(grant_counter, "GrantCounter")

    with pytest.raises(ConfigError, match=r"the observer 'grant_counter' .* cannot be loaded: AttributeError: .*"):
        installed_observers()
