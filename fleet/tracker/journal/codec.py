"""Entries of the journal as rows of (key, content, sum).

The key begins with the kind of the entry. The content is a JSON object with named fields. The sum covers both, so that
a flipped bit is detected.

A new field needs a default here, or in its class, for rows that lack it; older trackers of the same version ignore it.
A change that they would misread is a new version with a step in `migrations`.
"""

from __future__ import annotations

import base64
import functools
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any, TypeAlias

from fleet.domain.health import HealthMark, HealthState
from fleet.domain.leases import LeaseClass, LeaseTerms
from fleet.domain.poison import DIGEST, Poison
from fleet.tracker.core.records import (
    BookingEntry,
    Changes,
    DeviceEntry,
    Durable,
    HealthEntry,
    LeaseEntry,
    RequestEntry,
    UseEntry,
)

Row: TypeAlias = tuple[str, str, int]
"""Key, content, checksum."""

UNREADABLE = (ValueError, TypeError, KeyError, OverflowError, RecursionError)
"""Errors raised for rows that no tracker has written."""

_TERMS = tuple(field.name for field in fields(LeaseTerms))
_BOOKING = tuple(field.name for field in fields(BookingEntry) if field.name != "name")
_MARK = tuple(field.name for field in fields(HealthMark))

_encode = json.JSONEncoder(separators=(",", ":")).encode
_quote = json.encoder.encode_basestring_ascii


def sum_of(key: str, content: str) -> int:
    """Return the sum of a row."""
    return zlib.crc32((key + content).encode())


def changed_rows(changes: Changes) -> Iterator[tuple[str, str | None]]:
    """Yield the key of every changed entry and its content, None for a removed entry."""
    for name, device in changes.devices.items():
        yield f"device {name}", _device_content(device) if device else None
    for name, device in changes.leases.items():
        yield f"lease {name}", _lease_content(device) if device else None
    for key, request in changes.requests.items():
        yield f"request {_encode(key)}", _request_content(request) if request else None
    for name, use in changes.uses.items():
        yield f"use {name}", _use_content(use) if use else None
    for name, health in changes.health.items():
        yield f"health {name}", _health_content(health) if health else None
    for digest, found in changes.poison.items():
        yield f"poison {digest}", _poison_content(found) if found else None
    for name, booking in changes.bookings.items():
        yield f"booking {name}", _booking_content(booking) if booking else None


def entries_of(rows: Iterable[tuple[str, str]], boot: int) -> Durable:
    """Return the entries that rows of (key, content) hold, the leases within their devices.

    Raises:
        UNREADABLE: no tracker has written them.
    """
    devices: dict[str, DeviceEntry] = {}
    leases: dict[str, str] = {}
    requests: list[RequestEntry] = []
    uses: list[UseEntry] = []
    health: list[tuple[str, HealthEntry]] = []
    poison: list[Poison] = []
    bookings: list[BookingEntry] = []
    for full_key, content in rows:
        kind, _, key = full_key.partition(" ")
        match kind:
            case "device":
                devices[key] = _device(key, content)
            case "lease":
                leases[key] = content
            case "request":
                requests.append(_request(key, content))
            case "use":
                uses.append(_use(key, content))
            case "health":
                health.append((key, _health(content)))
            case "poison":
                poison.append(_poison(key, content))
            case "booking":
                bookings.append(_booking(key, content))
            case _:
                raise ValueError(f"an entry of the unknown kind {kind!r}")
    for name, content in leases.items():
        if device := devices.get(name):
            device.epoch, device.lease = _lease(name, content)
    health.sort(key=lambda named: named[1].mark.at_sec)
    poison.sort(key=lambda found: (found.at_sec, found.digest))
    bookings.sort(key=lambda booking: (booking.booked_at_sec, booking.name))
    return Durable(
        boot=boot,
        devices=[devices[name] for name in sorted(devices)],
        requests=requests,
        uses=uses,
        health=health,
        poison=poison,
        bookings=bookings,
    )


def _device_content(device: DeviceEntry) -> str:
    return _encode(
        {
            "kind": device.kind,
            "labels": device.labels,
            "description": base64.b64encode(device.description).decode(),
            "address": device.address,
            "agent_id": device.agent_id,
            "attached_at_sec": device.attached_at_sec,
            "detached_at_sec": device.detached_at_sec,
            "relay_address": device.relay_address,
        }
    )


def _device(name: str, content: str) -> DeviceEntry:
    found = _named(json.loads(content))
    return DeviceEntry(
        name=name,
        kind=found["kind"],
        labels=found["labels"],
        description=base64.b64decode(found["description"]),
        address=found["address"],
        agent_id=found["agent_id"],
        attached_at_sec=found["attached_at_sec"],
        detached_at_sec=found["detached_at_sec"],
        relay_address=found.get("relay_address", ""),
    )


_STARVED = ',"has_starved":true'


def _lease_content(device: DeviceEntry) -> str:
    """Return a device's epoch and lease. Formatted by hand for speed: the encoder takes five times as long."""
    lease = device.lease
    if lease is None:
        return f'{{"epoch":{device.epoch}}}'
    return (
        f'{{"epoch":{device.epoch},"lease":{{"name":{_quote(lease.name)},"epoch":{lease.epoch},'
        f'"client_id":{_quote(lease.client_id)},"request_id":{_quote(lease.request_id)},'
        f'"holder":{_quote(lease.holder)},"terms":{_terms_content(lease.terms)},'
        f'"granted_at_sec":{lease.granted_at_sec!r},"expires_at_sec":{lease.expires_at_sec!r},'
        f'"ends_at_sec":{lease.ends_at_sec!r},"account":{_quote(lease.account)},'
        f'"charged_sec":{lease.charged_sec!r},"charged_at_sec":{lease.charged_at_sec!r}'
        f"{_STARVED if lease.has_starved else ''}}}}}"
    )


def _lease(device_name: str, content: str) -> tuple[int, LeaseEntry | None]:
    """Return the device's epoch and its lease."""
    row = _named(json.loads(content))
    if "lease" not in row:
        return row["epoch"], None
    found = _named(row["lease"])
    lease = LeaseEntry(
        name=found["name"],
        device_name=device_name,
        epoch=found["epoch"],
        client_id=found["client_id"],
        request_id=found["request_id"],
        holder=found["holder"],
        terms=_terms(found["terms"]),
        granted_at_sec=found["granted_at_sec"],
        expires_at_sec=found["expires_at_sec"],
        ends_at_sec=found["ends_at_sec"],
        account=found.get("account", ""),
        charged_sec=found.get("charged_sec", 0.0),
        charged_at_sec=found.get("charged_at_sec", 0.0),
        has_starved=found.get("has_starved", False) is True,
    )
    return row["epoch"], lease


def _request_content(request: RequestEntry) -> str:
    """Return a request, formatted by hand as leases are."""
    deadline = "null" if request.deadline_sec is None else repr(request.deadline_sec)
    return (
        f'{{"holder":{_quote(request.holder)},"terms":{_terms_content(request.terms)},"deadline_sec":{deadline},'
        f'"asked_at_sec":{request.asked_at_sec!r},"arrival":{request.arrival}}}'
    )


def _request(key: str, content: str) -> RequestEntry:
    client_id, request_id = json.loads(key)
    found = _named(json.loads(content))
    return RequestEntry(
        client_id=client_id,
        request_id=request_id,
        holder=found["holder"],
        terms=_terms(found["terms"]),
        deadline_sec=found["deadline_sec"],
        asked_at_sec=found["asked_at_sec"],
        arrival=found["arrival"],
    )


def _use_content(use: UseEntry) -> str:
    """Return an account's use, formatted by hand as leases are."""
    day_sec = ",".join(f'"{lease_class}":{sec!r}' for lease_class, sec in use.day_sec.items())
    return f'{{"used_sec":{use.used_sec!r},"at_sec":{use.at_sec!r},"day":{use.day},"day_sec":{{{day_sec}}}}}'


def _use(account: str, content: str) -> UseEntry:
    found = _named(json.loads(content))
    return UseEntry(
        account=account,
        used_sec=float(found["used_sec"]),
        at_sec=float(found["at_sec"]),
        day=int(found["day"]),
        day_sec={LeaseClass(name): float(sec) for name, sec in _named(found["day_sec"]).items()},
    )


def _health_content(health: HealthEntry) -> str:
    mark = {name: getattr(health.mark, name) for name in _MARK}
    return _encode({**mark, "fault_count": health.fault_count, "is_used": health.is_used})


def _health(content: str) -> HealthEntry:
    found = _named(json.loads(content))
    until_sec = found["until_sec"]
    mark = HealthMark(
        state=HealthState(found["state"]),
        by=str(found["by"]),
        at_sec=float(found["at_sec"]),
        reason=str(found["reason"]),
        until_sec=None if until_sec is None else float(until_sec),
    )
    return HealthEntry(mark=mark, fault_count=int(found.get("fault_count", 0)), is_used=bool(found.get("is_used")))


def _poison_content(found: Poison) -> str:
    return _encode({"device_name": found.device_name, "at_sec": found.at_sec, "reported_by": found.reported_by})


def _poison(digest: str, content: str) -> Poison:
    found = _named(json.loads(content))
    at_sec = float(found["at_sec"])
    if not (DIGEST.fullmatch(digest) and math.isfinite(at_sec)):
        raise ValueError(f"no program that killed a device: {digest!r}")
    reported_by = str(found.get("reported_by", ""))
    return Poison(digest=digest, device_name=str(found["device_name"]), at_sec=at_sec, reported_by=reported_by)


def _booking_content(booking: BookingEntry) -> str:
    return _encode({name: getattr(booking, name) for name in _BOOKING})


def _booking(name: str, content: str) -> BookingEntry:
    found = _named(json.loads(content))
    names = found["device_names"]
    if not isinstance(names, list):
        raise TypeError("a booking has a list of devices")
    unused_since_sec = tuple(map(float, found.get("unused_since_sec", ())))
    if not all(map(math.isfinite, unused_since_sec)):
        raise ValueError("a booking has devices that are unused since no moment")
    return BookingEntry(
        name=name,
        selector=str(found["selector"]),
        starts_at_sec=float(found["starts_at_sec"]),
        ends_at_sec=float(found["ends_at_sec"]),
        booked_at_sec=float(found["booked_at_sec"]),
        holder=str(found["holder"]),
        account=str(found["account"]),
        key_id=str(found["key_id"]),
        request_id=str(found["request_id"]),
        device_names=tuple(map(str, names)),
        unused_since_sec=unused_since_sec,
    )


@functools.lru_cache(maxsize=1024)
def _terms_content(terms: LeaseTerms) -> str:
    """Return terms with all their fields: a default may change, an admitted request keeps its terms."""
    return _encode({name: getattr(terms, name) for name in _TERMS})


def _terms(content: object) -> LeaseTerms:
    found = _named(content)
    values = {name: found[name] for name in _TERMS if name in found}
    lease_class, also = LeaseClass(values.get("lease_class", LeaseClass.NORMAL)), tuple(values.get("also", ()))
    even_if = None if (named := values.get("even_if")) is None else HealthState(named)
    return LeaseTerms(**values | {"lease_class": lease_class, "also": also, "even_if": even_if})


def _named(content: object) -> Mapping[str, Any]:
    if not isinstance(content, dict):
        raise TypeError(f"named fields expected, not {type(content).__name__}")
    return content
