"""An agent's devices come and go a portion at a time, and it makes no difference."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.domain.leases import LeaseTerms
from fleet.testing import Ledger
from fleet.tracker.core import events as ev
from fleet.tracker.core.invariants import validate
from fleet.tracker.core.records import TrackerLimits
from fleet.tracker.core.state import TrackerState
from tests.unit.tracker_bench import T0, Bench, checked_bench, granted, offer

MANY = 120
"""Devices; more than go offline at once."""


@pytest.fixture
def bench() -> Iterator[Bench]:
    yield from checked_bench()


def portions(devices: Sequence[ev.OfferedDevice], size: int, *, stream: int = 1) -> list[ev.AgentAttached]:
    """The events of one hello."""
    parts = [tuple(devices[start : start + size]) for start in range(0, len(devices), size)] or [()]
    first = ev.AgentAttached("agent", "host:1", parts[0], stream=stream)
    later_names = tuple(device.name for part in parts[1:] for device in part)
    return [
        replace(first, later_names=later_names),
        *(replace(first, devices=part, is_first=False) for part in parts[1:]),
    ]


def state_with(formerly: Sequence[ev.OfferedDevice], held: int, waiting: Sequence[str]) -> TrackerState:
    """A tracker to which the agent comes back: it served some devices, some are held, and others are waited for."""
    state = TrackerState(boot=7, limits=TrackerLimits(max_waiting=20))
    state.apply(ev.AgentAttached("agent", "host:1", tuple(formerly)), T0)
    state.apply(ev.ClientConnected("alice", "alice@host"), T0)
    for number in range(held):
        state.apply(ev.Acquire("alice", f"held{number}", LeaseTerms(selector="cpu")), T0)
    state.apply(ev.AgentDetached("agent"), T0)
    for number, selector in enumerate(waiting):
        state.apply(ev.Acquire("alice", f"r{number}", LeaseTerms(selector=selector)), T0)
    return state


def shown(state: TrackerState, effects: Sequence[ev.Effect]) -> object:
    """Return a hello's changes to the state, and its effects on other peers.

    Fences, and epochs of devices without a lease, are left out: they grow with the time of the report.
    """
    devices = {name: replace(device, epoch=0, lease=None) for name, device in state.devices.items()}
    told = [effect for effect in effects if not isinstance(effect, ev.Attached | ev.Fence)]
    return (
        {name: dataclasses.astuple(device) for name, device in devices.items()},
        {
            name: dataclasses.astuple(dataclasses.replace(lease, charged_sec=0.0))
            for name, lease in state.leases.items()
        },
        [request.key for request in state.waiting.first(100)],
        state.matching.free_devices(),
        {agent: set(names) for agent, names in state.devices_by_agent.items()},
        sorted((type(effect).__name__, getattr(effect, "lease_name", "")) for effect in told),
    )


def settle(bench: Bench) -> None:
    """Fire everything that is due now."""
    while (next_sec := bench.state.next_timer_sec()) is not None and next_sec <= bench.now:
        bench.tick(0)


NAMES = [f"d{number}" for number in range(9)]
OFFERED = st.builds(
    lambda name, is_healthy, epochs: replace(
        offer(name), is_healthy=is_healthy, highest_epoch=max(epochs), fenced_epoch=min(epochs)
    ),
    st.sampled_from(NAMES),
    st.booleans(),
    st.tuples(*[st.sampled_from([0, 3, (7 << 20) + 2, 8 << 20])] * 2),
)


def hellos() -> st.SearchStrategy[list[ev.OfferedDevice]]:
    return st.lists(OFFERED, max_size=9, unique_by=lambda device: device.name)


@settings(max_examples=60)
@given(
    hellos(), hellos(), st.integers(0, 3), st.lists(st.sampled_from(["cpu", "name=d1"]), max_size=5), st.integers(1, 4)
)
def test_a_hello_in_parts_equals_a_whole_one(
    formerly: list[ev.OfferedDevice], devices: list[ev.OfferedDevice], held: int, waiting: list[str], size: int
) -> None:
    """A hello in parts has the same devices, leases, grants and refusals as a whole one, and each part leaves a valid
    state.
    """
    in_one, in_parts = (state_with(formerly, held, waiting) for _ in range(2))

    (event,) = portions(devices, 100)
    expected = in_one.apply(event, T0)
    effects: list[ev.Effect] = []
    for part in portions(devices, size):
        effects += in_parts.apply(part, T0)
        validate(in_parts)

    assert shown(in_one, expected) == shown(in_parts, effects)
    fences = [fence for effect in effects if isinstance(effect, ev.Attached) for fence in effect.fences]
    assert [device.name for device in devices] == [fence.device_name for fence in fences]


@settings(max_examples=60)
@given(hellos(), st.integers(0, 5), st.integers(1, 3), st.integers(0, 4), st.booleans())
def test_a_stream_that_ends_between_two_parts_leaves_no_device(
    devices: list[ev.OfferedDevice], waiting: int, size: int, heard: int, is_kill: bool
) -> None:
    """All devices are offline, even if parts of that hello arrive late. Leases granted meanwhile have epochs above all
    that the agent has seen, and last until they expire. The same holds if the tracker is killed at that point.
    """
    state, ledger = state_with((), 0, ()), Ledger()
    ledger.open(T0)
    state.apply(ev.AgentAttached("other", "host:2", (offer("busy"),)), T0)
    for number in range(waiting + 1):
        state.apply(ev.Acquire("alice", f"r{number}", LeaseTerms(selector="cpu")), T0)
    parts = portions(devices, size)
    effects = []
    for part in parts[:heard]:
        effects += state.apply(part, T0)
        ledger.write(state.take_changes())

    if is_kill:
        state = TrackerState.restore(ledger.open(T0), T0, state.limits)
    for part in [ev.AgentDetached("agent", 1), *parts[max(heard, 1) :]]:
        state.apply(part, T0)
    validate(state)

    seen = {device.name: device.highest_epoch for device in devices}
    leases = [effect.lease for effect in effects if isinstance(effect, ev.Granted)]
    assert all(lease.epoch > seen[lease.device_name] for lease in leases)
    assert {lease.name for lease in leases} <= set(state.leases)
    assert not [name for name in seen if name in state.devices and state.devices[name].is_attached]
    assert "agent" not in state.devices_by_agent
    assert not state.matching.free_devices()


def test_a_part_of_an_older_stream_has_no_effect(bench: Bench) -> None:
    """A returning agent reports all of its devices; the rest of its former stream's hello is out of date."""
    old = portions([offer("a"), offer("b"), offer("c")], 1, stream=1)
    bench.apply(old[0])
    bench.apply(ev.AgentAttached("agent", "host:1", (offer("a"),), stream=2))

    late = [bench.apply(event) for event in (*old[1:], ev.AgentDetached("agent", 1))]

    assert [[], [], []] == late
    assert ["devices/a"] == list(bench.state.devices)
    assert bench.state.devices["devices/a"].is_attached


def test_very_many_devices_go_offline_in_portions(bench: Bench) -> None:
    """Each event takes some of them, so that other events need not wait; at the end no device is online."""
    bench.attach(*map(str, range(MANY)))

    bench.apply(ev.AgentDetached("agent"))
    online = [sum(device.is_attached for device in bench.state.devices.values())]
    while online[-1]:
        bench.tick(0)
        online.append(sum(device.is_attached for device in bench.state.devices.values()))

    assert online[0] > MANY / 3
    assert {} == bench.state.devices_by_agent
    assert bench.state.next_timer_sec() == bench.now + bench.state.limits.forget_device_sec


def test_very_many_devices_that_are_offered_no_more_go_in_portions(bench: Bench) -> None:
    """Such devices are forgotten unless leased; if the agent leaves meanwhile, all of them go offline."""
    names = list(map(str, range(MANY)))
    bench.attach(*names)
    bench.connect("alice")
    lease = bench.grant("alice", "r1", f"name={MANY - 1}").lease

    bench.attach("0")
    left = [len(bench.state.devices)]
    while left[-1] > 2:
        bench.tick(0)
        left.append(len(bench.state.devices))

    assert left[0] > MANY / 3
    assert {"devices/0", lease.device_name} == set(bench.state.devices)
    assert not bench.state.devices[lease.device_name].is_attached

    bench.attach(*names)
    bench.attach("0")
    bench.apply(ev.AgentDetached("agent"))
    settle(bench)
    assert not any(device.is_attached for device in bench.state.devices.values())


def test_a_new_process_has_the_devices_of_one_that_is_about_to_leave(bench: Bench) -> None:
    """An agent that was killed and is back at once is not refused for the sake of its former self."""
    names = list(map(str, range(MANY)))
    bench.attach(*names)
    bench.apply(ev.AgentDetached("agent"))

    effects = bench.attach(*names, agent="agent-2")
    settle(bench)

    assert [ev.Attached] == [type(effect) for effect in effects]
    assert all(device.is_attached and device.agent_id == "agent-2" for device in bench.state.devices.values())


def test_a_returning_agent_keeps_its_devices_during_departure(bench: Bench) -> None:
    """Devices that it offers no more are gone, and no portion of its former departure follows."""
    bench.attach(*map(str, range(MANY)))
    bench.apply(ev.AgentDetached("agent"))

    bench.attach(*map(str, range(MANY - 10)))
    settle(bench)

    attached = [name for name, device in bench.state.devices.items() if device.is_attached]
    assert [f"devices/{number}" for number in range(MANY - 10)] == sorted(attached, key=lambda name: int(name[8:]))


def test_the_leases_of_many_lost_clients_end_in_portions(bench: Bench) -> None:
    """After a restart their grace periods end at the same moment; each device may go to the next in line."""
    bench.state.limits = bench.limits(max_waiting=100)
    names = [f"lost{number}" for number in range(20)]
    bench.attach(*map(str, range(40)))
    bench.connect(*names, "alice")
    for name in names:
        bench.grant(name, "r1")
        bench.grant(name, "r2")
    for number in range(40):
        bench.acquire("alice", f"r{number}")
    for name in names:
        bench.apply(ev.ClientLost(name))

    bench.now += bench.state.limits.grace_sec
    served: list[int] = []
    while len(bench.state.clients["alice"].requests):
        served.append(len(granted(bench.state.apply(ev.Tick(), bench.now))))

    assert 40 == sum(served)
    assert max(served) <= 8
