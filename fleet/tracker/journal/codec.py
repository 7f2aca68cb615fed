"""Entries of the journal: what of the tracker's state is kept, as text with a sum.

A row is (key, content, sum). The key begins with the kind of the entry; the sum covers key and content, so that a
flipped bit in any of them is noticed.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from fleet.domain.leases import LeaseTerms
from fleet.tracker.core.records import Changes, DeviceEntry, LeaseEntry, RequestEntry

Row: TypeAlias = tuple[str, str, int]
"""Key, content, sum."""

UNREADABLE = (ValueError, TypeError, KeyError, OverflowError, RecursionError)
"""What reading rows raises that something else has written."""

_encode = json.JSONEncoder(separators=(",", ":")).encode
_quote = json.encoder.encode_basestring_ascii


def sum_of(key: str, content: str) -> int:
    """Return the sum of a row."""
    return zlib.crc32((key + content).encode())


def changed_rows(changes: Changes) -> Iterator[tuple[str, str | None]]:
    """Yield the key of every changed entry and its content; None: it is gone."""
    for name, device in changes.devices.items():
        yield f"device {name}", _device_content(device) if device else None
    for name, device in changes.leases.items():
        yield f"lease {name}", _lease_content(device) if device else None
    for key, request in changes.requests.items():
        yield f"request {_encode(key)}", _request_content(request) if request else None


def entries_of(rows: Iterable[tuple[str, str]]) -> tuple[list[DeviceEntry], list[RequestEntry]]:
    """Return the devices, with their leases, and the requests that rows of (key, content) hold.

    Raises:
        UNREADABLE: they were written by something else.
    """
    devices: dict[str, DeviceEntry] = {}
    leases: dict[str, str] = {}
    requests: list[RequestEntry] = []
    for full_key, content in rows:
        kind, _, key = full_key.partition(" ")
        match kind:
            case "device":
                devices[key] = _device(key, content)
            case "lease":
                leases[key] = content
            case "request":
                requests.append(_request(key, content))
            case _:
                raise ValueError(f"an entry of the unknown kind {kind!r}")
    for name, content in leases.items():
        if device := devices.get(name):
            device.epoch, device.lease = _lease(name, content)
    return [devices[name] for name in sorted(devices)], requests


def _device_content(device: DeviceEntry) -> str:
    return _encode(
        (
            device.kind,
            device.labels,
            base64.b64encode(device.description).decode(),
            device.address,
            device.agent_id,
            device.attached_at_sec,
            device.detached_at_sec,
        )
    )


def _device(name: str, content: str) -> DeviceEntry:
    kind, labels, description, address, agent_id, attached_at_sec, detached_at_sec = json.loads(content)
    return DeviceEntry(
        name=name,
        kind=kind,
        labels=labels,
        description=base64.b64decode(description),
        address=address,
        agent_id=agent_id,
        attached_at_sec=attached_at_sec,
        detached_at_sec=detached_at_sec,
    )


def _lease_content(device: DeviceEntry) -> str:
    """Written by hand, since it is written with every grant: the encoder takes twice as long."""
    lease = device.lease
    if lease is None:
        return f"[{device.epoch}]"
    texts = f"{_quote(lease.name)},{_quote(lease.client_id)},{_quote(lease.request_id)},{_quote(lease.holder)}"
    times = f"{lease.terms.ttl_sec!r},{lease.granted_at_sec!r},{lease.expires_at_sec!r},{lease.ends_at_sec!r}"
    return f"[{device.epoch},{lease.epoch},{texts},{_quote(lease.terms.purpose)},{times}]"


def _lease(device_name: str, content: str) -> tuple[int, LeaseEntry | None]:
    """Return the device's epoch and its lease."""
    device_epoch, *fields = json.loads(content)
    if not fields:
        return device_epoch, None
    epoch, name, client_id, request_id, holder, purpose, ttl_sec, granted_at_sec, expires_at_sec, ends_at_sec = fields
    lease = LeaseEntry(
        name=name,
        device_name=device_name,
        epoch=epoch,
        client_id=client_id,
        request_id=request_id,
        holder=holder,
        terms=LeaseTerms(selector="", purpose=purpose, ttl_sec=ttl_sec),
        granted_at_sec=granted_at_sec,
        expires_at_sec=expires_at_sec,
        ends_at_sec=ends_at_sec,
    )
    return device_epoch, lease


def _request_content(request: RequestEntry) -> str:
    return _encode(
        (
            request.holder,
            request.terms.selector,
            request.terms.priority,
            request.terms.ttl_sec,
            request.terms.max_sec,
            request.deadline_sec,
            request.asked_at_sec,
            request.terms.purpose,
            *request.order,
        )
    )


def _request(key: str, content: str) -> RequestEntry:
    client_id, request_id = json.loads(key)
    holder, selector, priority, ttl_sec, max_sec, deadline_sec, asked_at_sec, purpose, *order = json.loads(content)
    due_sec, arrival = order
    return RequestEntry(
        client_id=client_id,
        request_id=request_id,
        holder=holder,
        terms=LeaseTerms(selector=selector, priority=priority, ttl_sec=ttl_sec, max_sec=max_sec, purpose=purpose),
        deadline_sec=deadline_sec,
        asked_at_sec=asked_at_sec,
        order=(due_sec, arrival),
    )
