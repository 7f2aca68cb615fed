"""Checks of the messages of agents, and their conversion to events."""

from __future__ import annotations

import re

from fleet.base.text import sanitize
from fleet.domain.inventory_labels import automatic_labels
from fleet.domain.labels import size_fault
from fleet.domain.selectors import device_labels
from fleet.domain.tokens import EPOCHS_END
from fleet.errors import InvalidRequest
from fleet.tracker.core import events as ev
from fleet.tracker.core.records import with_bitstream
from fleet.v1 import agent_service_pb2, device_pb2
from fleet.wire.devices import inventory_from_proto
from fleet.wire.peers import peer_host
from fleet.wire.sanitize import sanitize_message

_DEVICE_NAME = re.compile(r"devices/[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_LABEL_KEY = re.compile(r"[a-z][a-z0-9_.-]*")
_KIND = re.compile(r"[a-z][a-z0-9_-]*")
_PORT = re.compile(r"[0-9]{1,5}")
_RELAY = re.compile(r"(\[[0-9a-fA-F:]{2,45}\]|[A-Za-z0-9._-]{1,253}):[0-9]{1,5}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MAX_INVENTORY_BYTES = 64 * 1024
_MAX_REASON_CHARS = 1_000
"""Maximum length of agents' texts, which are stored and shown to everyone: no agent may make snapshots too large to
send.
"""
_ANY_HOST = frozenset({"", "0.0.0.0", "::", "[::]"})


def offered_device(device: device_pb2.Device, report: agent_service_pb2.DeviceReport | None) -> ev.OfferedDevice:
    """Check a device of an agent's hello, and return it as the core takes it.

    Args:
        report: the device's latest report, if the hello came with one.

    Raises:
        InvalidRequest: a name, kind or label is malformed, or the inventory is too large.
    """
    inventory = device.inventory
    if not _DEVICE_NAME.fullmatch(device.name):
        raise InvalidRequest(f"device name {device.name!r} is malformed; write it like 'devices/pi4-03'")
    if not _KIND.fullmatch(inventory.kind):
        raise InvalidRequest(f"{device.name} has the kind {inventory.kind!r}; write it like 'cpu'")
    if bad := [key for key in inventory.labels if not _LABEL_KEY.fullmatch(key)]:
        raise InvalidRequest(f"{device.name} has the label {bad[0]!r}; write labels like 'arch'")
    if fault := size_fault(inventory.labels):
        raise InvalidRequest(f"labels of {device.name}: {fault}")
    for key, actual in (("name", device.name.removeprefix("devices/")), ("kind", inventory.kind)):
        if inventory.labels.get(key, actual) != actual:
            raise InvalidRequest(f"{device.name} has a label {key!r} that says otherwise than its {key}; leave it out")
    if inventory.ByteSize() <= _MAX_INVENTORY_BYTES:
        sanitize_message(inventory)
    description = inventory.SerializeToString(deterministic=True)
    if len(description) > _MAX_INVENTORY_BYTES:
        raise InvalidRequest(f"the inventory of {device.name} has more than {_MAX_INVENTORY_BYTES} bytes; say less")
    labels = automatic_labels(inventory_from_proto(inventory))
    # Prefer the report: the hello dates from the start of the stream.
    digest = checked_digest(report.bitstream_digest if report else device.bitstream_digest)
    is_healthy, reason, epochs = condition_of(report) if report else (True, "", (0, 0))
    return ev.OfferedDevice(
        name=device.name,
        kind=inventory.kind,
        labels=with_bitstream(device_labels(device.name, inventory.kind, labels), digest),
        description=description,
        is_healthy=is_healthy,
        reason=reason,
        highest_epoch=epochs[0],
        fenced_epoch=epochs[1],
    )


def condition_of(report: agent_service_pb2.DeviceReport) -> tuple[bool, str, tuple[int, int]]:
    """Return a device's health, the reason if unhealthy, and the highest epochs that its agent has seen and fenced.

    An epoch without a successor is ignored: otherwise the device could never be granted again, even after a reset.
    """
    if report.highest_epoch < EPOCHS_END - 1:
        return (
            report.is_healthy,
            sanitize(report.reason, _MAX_REASON_CHARS),
            (report.highest_epoch, report.fenced_epoch),
        )
    name = report.device_name.removeprefix("devices/")
    reason = (
        f"its agent has seen epoch {report.highest_epoch}, which was forged; run 'fleet devices reset-epochs {name}'"
    )
    return False, reason, (0, 0)


def fence_to_proto(fence: ev.Fence) -> agent_service_pb2.Fence:
    return agent_service_pb2.Fence(
        device_name=fence.device_name,
        epoch=fence.epoch,
        nonce=fence.nonce,
        live_lease_name=fence.live_lease_name,
        is_reset=fence.is_reset,
    )


def checked_digest(text: str) -> str:
    """Return a reported digest; empty, meaning unknown, when it is malformed."""
    return text if _DIGEST.fullmatch(text) else ""


def checked_relay(address: str) -> str:
    """Return the address of an agent's relay; empty: it has none.

    Raises:
        InvalidRequest: it is malformed.
    """
    if address and not (_RELAY.fullmatch(address) and 0 < int(address.rpartition(":")[2]) < 65536):
        raise InvalidRequest(f"relay address {address[:80]!r} is malformed; write it like 'relay.example.org:9292'")
    return address


def reachable_address(address: str, peer: str) -> str:
    """Return "host:port" of an agent. If it named no host, use the address that it called from
    ("ipv4:127.0.0.1:4000").
    """
    host, _, port = address.rpartition(":")
    if not _PORT.fullmatch(port) or not 0 < int(port) < 65536:
        raise InvalidRequest(f"agent address {address!r} is malformed; write it like 'pi4-03:9300' or ':9300'")
    if host in _ANY_HOST:
        host = peer_host(peer) or "127.0.0.1"
    return f"{host}:{port}"
