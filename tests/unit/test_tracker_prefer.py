"""Preferences for devices, and the label that follows a fabric's bitstream."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleet.domain.leases import LeaseTerms
from fleet.domain.selectors import device_labels, parse_selector
from fleet.errors import InvalidRequest
from fleet.tracker.core import events as ev
from fleet.tracker.core.invariants import validate
from fleet.tracker.core.records import TrackerLimits, with_bitstream
from fleet.tracker.core.state import TrackerState
from fleet.tracker.messages import device_to_proto

ONE, TWO = "sha256:" + "1" * 64, "sha256:" + "2" * 64


class Bench:
    """A state with boards a, b and c, all free, a the longest, and a client."""

    def __init__(self) -> None:
        self.state = TrackerState(boot=7, limits=TrackerLimits())
        boards = tuple(offer(name) for name in "abc")
        self.apply(ev.AgentAttached("agent", "host:1", boards))
        self.apply(ev.ClientConnected("alice", "alice@host"))

    def apply(self, event: ev.Event) -> list[ev.Effect]:
        effects = self.state.apply(event, 1_000.0)
        validate(self.state)
        return effects

    def acquire(self, request_id: str, selector: str = "zynq", prefer: str = "") -> ev.Effect:
        (effect,) = self.apply(ev.Acquire("alice", request_id, LeaseTerms(selector=selector, prefer=prefer)))
        return effect

    def granted_to(self, request_id: str, selector: str = "zynq", prefer: str = "") -> str:
        effect = self.acquire(request_id, selector, prefer)
        assert isinstance(effect, ev.Granted)
        return effect.lease.device_name

    def program(self, name: str, digest: str) -> list[ev.Effect]:
        return self.apply(ev.DeviceReported("agent", f"devices/{name}", True, "", digest))


def offer(name: str, digest: str = "") -> ev.OfferedDevice:
    name = f"devices/{name}"
    labels = with_bitstream(device_labels(name, "zynq", {"part": "xc7z020"}), digest)
    return ev.OfferedDevice(name=name, kind="zynq", labels=labels, description=b"")


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    validate(bench.state)


def test_the_board_that_holds_the_bitstream_is_chosen(bench: Bench) -> None:
    """A free device that matches the preference goes first, however long others were free."""
    bench.program("b", ONE)

    assert bench.granted_to("r1", prefer=f"bitstream={ONE}") == "devices/b"


def test_an_unmet_preference_does_not_delay_a_grant(bench: Bench) -> None:
    """If no preferred device is free, any matching one is granted at once."""
    bench.program("b", ONE)
    bench.granted_to("r1", prefer=f"bitstream={ONE}")

    assert bench.granted_to("r2", prefer=f"bitstream={ONE}") == "devices/a"
    assert bench.granted_to("r3", prefer="bitstream=never-seen") == "devices/c"


def test_a_preference_chooses_only_among_devices_that_will_do(bench: Bench) -> None:
    """The selector binds, the preference does not."""
    bench.program("b", ONE)

    assert bench.granted_to("r1", "zynq,name!=b", f"bitstream={ONE}") == "devices/a"


def test_the_label_follows_the_fabric(bench: Bench) -> None:
    """Selectors and wildcards see the bitstream of now, and the snapshot shows it."""
    bench.program("a", ONE)
    bench.program("a", TWO)
    bench.program("c", ONE)

    assert bench.granted_to("r1", "bitstream=sha256:2*") == "devices/a"
    assert bench.granted_to("r2", f"bitstream={ONE}") == "devices/c"
    assert [device_to_proto(bench.state.devices[f"devices/{n}"]).bitstream_digest for n in "abc"] == [TWO, "", ONE]


def test_a_bitstream_that_no_board_holds_is_refused_with_advice(bench: Bench) -> None:
    """No device would ever be programmed for a waiting request, so the refusal names "--prefer"."""
    effect = bench.acquire("r1", f"zynq,bitstream={ONE}")

    assert isinstance(effect, ev.Refused)
    assert "--prefer" in effect.message


def test_programming_a_leased_board_changes_its_next_grant(bench: Bench) -> None:
    """A request that waits for a bitstream is served by the board that got it, once that is free."""
    bench.program("a", ONE)
    leases = [bench.state.leases[bench.acquire(f"r{i}").lease.name] for i in range(3)]  # type: ignore[union-attr]
    assert isinstance(bench.acquire("r3", f"bitstream={ONE}"), ev.Queued)
    bench.program("b", ONE)
    held = {lease.device_name: lease for lease in leases}

    effects = bench.apply(ev.Release("alice", held["devices/b"].name))

    granted = [effect.lease.device_name for effect in effects if isinstance(effect, ev.Granted)]
    assert granted == ["devices/b"]


def test_a_new_bitstream_label_grants_a_waiting_request(bench: Bench) -> None:
    """A change of the label alone is enough to be granted."""
    bench.program("a", ONE)
    bench.granted_to("r1", f"bitstream={ONE}")
    assert isinstance(bench.acquire("r2", f"bitstream={ONE}"), ev.Queued)

    effects = bench.program("c", ONE)

    assert [effect.lease.device_name for effect in effects if isinstance(effect, ev.Granted)] == ["devices/c"]


def test_the_label_comes_back_with_the_agent(bench: Bench) -> None:
    """An agent's report when it attaches replaces the tracker's record of its boards."""
    bench.program("a", ONE)
    bench.apply(ev.AgentDetached("agent"))

    bench.apply(ev.AgentAttached("agent", "host:1", (offer("a"), offer("b", ONE))))

    assert bench.granted_to("r1", prefer=f"bitstream={ONE}") == "devices/b"


def test_preference_survives_a_restart_with_the_client_that_repeats_it(bench: Bench) -> None:
    """The client repeats its preference, and it counts again."""
    for number in range(3):
        bench.acquire(f"r{number}")
    bench.acquire("r3", prefer=f"bitstream={ONE}")
    durable = bench.state.durable()
    durable.boot += 1
    for device in durable.devices:
        device.lease = None
    bench.state = TrackerState.restore(durable, 1_000.0)
    bench.apply(ev.ClientConnected("alice", "alice@host"))
    bench.apply(ev.AgentAttached("agent", "host:1", (offer("a"), offer("b", ONE), offer("c"))))

    assert bench.granted_to("r3", prefer=f"bitstream={ONE}") == "devices/b"


def test_a_preference_that_comes_again_is_bounded_like_the_first(bench: Bench) -> None:
    """A preference that a client repeats after a restart is ignored if it is too long; its request goes on
    without it.
    """
    for number in range(3):
        bench.acquire(f"r{number}")
    bench.acquire("r3")
    durable = bench.state.durable()
    durable.boot += 1
    for device in durable.devices:
        device.lease = None
    bench.state = TrackerState.restore(durable, 1_000.0)
    bench.apply(ev.ClientConnected("alice", "alice@host"))

    huge = ",".join(f"label{number}=x" for number in range(1_000))

    assert isinstance(bench.acquire("r3", prefer=huge), ev.Queued)
    (request,) = bench.state.clients["alice"].requests.values()
    assert request.terms.prefer == ""


def test_a_preference_that_is_too_long_is_refused(bench: Bench) -> None:
    """It is bounded as selectors are."""
    effect = bench.acquire("r1", prefer="x" * 1_001)

    assert isinstance(effect, ev.Refused)
    assert "says too much" in effect.message


def test_malformed_preference_is_refused(bench: Bench) -> None:
    """A preference that cannot be read is the client's mistake, not ignored."""
    effect = bench.acquire("r1", prefer="bitstream=")

    assert isinstance(effect, ev.Refused)
    assert effect.error_class is InvalidRequest


def test_both_selectors_in_one() -> None:
    """The conjunction holds the conditions of both, once each, and is canonical."""
    both = parse_selector("zynq,part=xc7*") & parse_selector("bitstream=x,kind=zynq")

    assert str(both) == "bitstream=x,kind=zynq,part=xc7*"
