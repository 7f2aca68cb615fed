"""Records become equal messages; every enum value has a counterpart."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fleet.domain.leases import LeaseTerms
from fleet.domain.selectors import device_labels
from fleet.domain.tokens import TokenSigner, TokenVerifier
from fleet.domain.waits import WaitReason, wait_text
from fleet.errors import InvalidRequest
from fleet.tracker.agent_messages import checked_relay
from fleet.tracker.core import events as ev
from fleet.tracker.core.queries import Queries
from fleet.tracker.core.records import LeaseEnd
from fleet.tracker.core.standing import Standing
from fleet.tracker.core.state import TrackerState
from fleet.tracker.messages import LEASE_ENDS, client_event, device_state, device_to_proto, effect_to_proto, wait_of
from fleet.v1 import device_pb2, lease_pb2, lease_service_pb2
from fleet.wire.times import duration, timestamp
from fleet.wire.tokens import verify_token

T0 = 1_000_000.0


def make_state() -> TrackerState:
    state = TrackerState(boot=1)
    labels = device_labels("devices/a", "cpu", {})
    description = device_pb2.Inventory(kind="cpu", core_count=4).SerializeToString()
    offered = ev.OfferedDevice(name="devices/a", kind="cpu", labels=labels, description=description)
    state.apply(ev.AgentAttached("agent", "host:1", (offered,)), T0)
    state.apply(ev.ClientConnected("c", "alice@lab"), T0)
    return state


def test_every_lease_end_has_its_word_on_the_wire() -> None:
    """A new way to end a lease cannot be forgotten here."""
    assert set(LEASE_ENDS) == set(LeaseEnd)
    names = {lease_service_pb2.LeaseEnd.Name(value): end for end, value in LEASE_ENDS.items()}
    assert names == {f"LEASE_END_{end.value}": end for end in LeaseEnd}


def test_a_grant_has_lease_device_and_proof() -> None:
    """All that a client needs to go to the device."""
    state, signer = make_state(), TokenSigner(Ed25519PrivateKey.generate())
    (effect,) = state.apply(ev.Acquire("c", "r1", LeaseTerms(selector="cpu", purpose="tune")), T0)
    assert isinstance(effect, ev.Granted)

    granted = effect_to_proto(effect, Queries(state), signer).granted

    claims = verify_token(granted.token.SerializeToString(), TokenVerifier(signer.public_key))
    assert (granted.request_id, granted.lease.purpose, granted.lease.holder) == ("r1", "tune", "alice@lab")
    assert granted.device.inventory.core_count == 4
    assert granted.device.address == "host:1"
    assert claims.lease_name == granted.lease.name
    assert timestamp(claims.expires_at_sec) == granted.lease.expires_at == timestamp(T0 + 30)


def test_states_of_a_device() -> None:
    """Offline beats faulted beats leased."""
    state = make_state()
    device = state.devices["devices/a"]
    seen = [device_state(device)]
    for event in (
        ev.Acquire("c", "r1", LeaseTerms(selector="cpu")),
        ev.DeviceReported("agent", "devices/a", False, "hot"),
        ev.AgentDetached("agent"),
    ):
        state.apply(event, T0)
        seen.append(device_state(device))

    names = [device_pb2.DeviceState.Name(value).removeprefix("DEVICE_STATE_") for value in seen]
    assert names == ["AVAILABLE", "LEASED", "FAULTED", "OFFLINE"]


def test_a_waiting_request_has_a_reason() -> None:
    """Each obstacle is a value of the core, and a sentence on the wire."""
    state = make_state()
    queries = Queries(state)
    state.apply(ev.Acquire("c", "r1", LeaseTerms(selector="cpu")), T0)
    state.apply(ev.Acquire("c", "r2", LeaseTerms(selector="kind=cpu")), T0)
    (lease,) = state.leases.values()
    (request,) = queries.requests_of("c", 8)
    events: list[ev.Event] = [
        ev.Tick(),
        ev.DeviceReported("agent", "devices/a", False, "fan broken"),
        ev.Release("c", lease.name),
        ev.AgentAttached("agent", "host:1", ()),
        ev.JournalFailed((), "no space in /x"),
    ]
    found: list[tuple[WaitReason, str]] = []
    for event in events:
        state.apply(event, T0 + 12)
        standing = queries.standing(request)
        found.append((standing.reason, wait_text(wait_of(standing))))

    assert found == [
        (WaitReason.LEASED, "devices/a is held by alice@lab for 12 s"),
        (WaitReason.LEASED, "devices/a is held by alice@lab for 12 s"),
        (WaitReason.FAULTED, "devices/a is faulted: fan broken"),
        (WaitReason.NO_DEVICE, "no device matches any more: kind=cpu: none"),
        (WaitReason.JOURNAL_FAILED, "no space in /x"),
    ]


def test_a_device_with_an_unreadable_inventory_is_shown_without_it() -> None:
    """One row of an older journal does not hide all other devices."""
    device = make_state().devices["devices/a"]
    device.description = bytes(range(64))
    shown = device_to_proto(device)
    assert (shown.name, shown.address, shown.inventory.kind) == ("devices/a", "host:1", "")


def test_devices_of_an_absent_agent_are_offline() -> None:
    """If several devices are offline, the reason names the first."""
    state = make_state()
    queries = Queries(state)
    labels = device_labels("devices/b", "cpu", {})
    offered = ev.OfferedDevice(name="devices/b", kind="cpu", labels=labels, description=b"")
    state.apply(ev.AgentAttached("other", "host:2", (offered,)), T0)
    for agent_id in ("agent", "other"):
        state.apply(ev.AgentDetached(agent_id), T0)
    state.apply(ev.Acquire("c", "r", LeaseTerms(selector="kind=cpu")), T0)
    (request,) = queries.requests_of("c", 8)

    standing = queries.standing(request)

    expected = Standing(position=0, reason=WaitReason.OFFLINE, at_sec=T0, match_count=2, device_name="devices/a")
    assert standing == expected
    text = "none of 2 matching devices is free: devices/a is offline, its agent is not attached"
    assert wait_text(wait_of(standing)) == text


def test_events_of_a_client_are_read() -> None:
    """Each kind becomes its event; a job and an unknown event become none."""
    acquire = lease_pb2.Acquire(
        request_id="r", selector="cpu", priority=2, ttl=duration(3), max_duration=duration(4), wait_timeout=duration(5)
    )
    events = [
        lease_service_pb2.ClientEvent(acquire=acquire),
        lease_service_pb2.ClientEvent(cancel=lease_service_pb2.Cancel(request_id="r")),
        lease_service_pb2.ClientEvent(renew=lease_service_pb2.Renew(lease_name="leases/1")),
        lease_service_pb2.ClientEvent(release=lease_service_pb2.Release(lease_name="leases/1")),
        lease_service_pb2.ClientEvent(),
    ]

    assert [client_event("c", event) for event in events] == [
        ev.Acquire("c", "r", LeaseTerms(selector="cpu", priority=2, ttl_sec=3.0, max_sec=4.0, wait_timeout_sec=5.0)),
        ev.Cancel("c", "r"),
        ev.Renew("c", "leases/1"),
        ev.Release("c", "leases/1"),
        None,
    ]


def test_a_relays_address_is_plain_text_with_a_port() -> None:
    """It is shown and dialled by everybody; an agent without a relay names none."""
    for address in ("", "relay.example.org:9292", "10.0.0.5:1", "[fd00::5]:65535"):
        assert checked_relay(address) == address
    for address in ("relay", "relay:0", "relay:65536", "re\x1b[31mlay:1", "a b:1", "x" * 300 + ":1", "relay:\u0661"):
        with pytest.raises(InvalidRequest):
            checked_relay(address)
