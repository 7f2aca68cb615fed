"""Bookings, and the devices that are planned for them. Pure.

Every device of a booking has a slot. A slot is planned on one device for the whole booking, and no two slots on a
device overlap. So the plan itself proves that all bookings can be kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from fleet.tracker.core.groups import Group
from fleet.tracker.core.lanes import Key
from fleet.tracker.core.matching import Matching
from fleet.tracker.core.records import BookingEntry, LeaseEntry, RequestEntry


@dataclass(slots=True, eq=False)
class Slot:
    """One device of a booking."""

    booking: PlannedBooking
    device_name: str = ""
    """Planned device; empty: none can be had."""
    planned_at_sec: float = 0.0
    """Moment of the plan: leases granted before may outlast the start, later ones do not."""
    is_lost: bool = False
    """True if the device cannot be had now. It stays planned, in case it comes back, until another one is found."""
    lease_name: str = ""
    """Live lease of the booking on the device."""
    unused_since_sec: float = 0.0
    """Moment of the plan, or end of the latest lease."""

    def overlaps(self, other: Slot) -> bool:
        """Return True if two slots cannot share a device."""
        own, others = self.booking.entry, other.booking.entry
        return own.starts_at_sec < others.ends_at_sec and others.starts_at_sec < own.ends_at_sec


@dataclass(slots=True, eq=False)
class PlannedBooking:
    """A booking with its slots and the requests that wait for it."""

    entry: BookingEntry
    group: Group
    slots: list[Slot] = field(default_factory=list)
    requests: dict[Key, RequestEntry] = field(default_factory=dict)
    """Waiting requests, oldest first."""
    search_sec: float = -math.inf
    """Next search for missing devices."""
    told: tuple[int, tuple[str, ...]] = (0, ())
    """Missing devices that were reported, as `lacking`."""
    offered: int = 0
    """Number of offers of its devices to others, for a fair order."""

    @property
    def name(self) -> str:
        """Name of the booking."""
        return self.entry.name

    @property
    def missing_count(self) -> int:
        """Number of slots without a device that can be had."""
        return len(self.slots) - len(self.kept_names)

    @property
    def kept_names(self) -> tuple[str, ...]:
        """Planned devices that can be had."""
        return tuple(slot.device_name for slot in self.slots if slot.device_name and not slot.is_lost)

    @property
    def lost_names(self) -> tuple[str, ...]:
        """Planned devices that cannot be had."""
        return tuple(slot.device_name for slot in self.slots if slot.device_name and slot.is_lost)

    @property
    def lacking(self) -> tuple[int, tuple[str, ...]]:
        """Number of missing devices, and the known names."""
        return self.missing_count, self.lost_names

    def note_slots(self) -> None:
        """Copy the slots to the entry, which the journal keeps."""
        self.entry.device_names = tuple(slot.device_name for slot in self.slots)
        self.entry.unused_since_sec = tuple(slot.unused_since_sec for slot in self.slots)

    def is_active(self, now: float) -> bool:
        """Return True between its start and its end."""
        return self.entry.starts_at_sec <= now < self.entry.ends_at_sec


class BookingTable:
    """All bookings."""

    def __init__(self, matching: Matching) -> None:
        self._matching = matching
        self.entries: dict[str, PlannedBooking] = {}
        self.by_device: dict[str, list[Slot]] = {}
        """Slots by planned device, earliest first; no list is empty."""
        self.held: dict[str, None] = {}
        """Devices that are left out of the free ones: their next booking starts before a longest lease would end."""
        self.unvisited: list[str] = []
        """Bookings still to be visited in the current round, in reverse order."""
        self.moments: list[tuple[float, str]] = []
        """Heap of the next moment of each booking: notice, grace, start, end. Ended ones are skipped."""
        self.look_sec = -math.inf
        """Start of the next round."""
        self.last_number = 0

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, entry: BookingEntry) -> PlannedBooking:
        """Add a booking without devices."""
        group = self._matching.group(entry.selector)
        self._matching.keep(group)
        booking = self.entries[entry.name] = PlannedBooking(entry, group)
        booking.slots = [Slot(booking) for _ in entry.device_names]
        return booking

    def remove(self, booking: PlannedBooking) -> None:
        """Remove a booking after the release of its devices."""
        del self.entries[booking.name]
        self._matching.release(booking.group)

    def plan(self, slot: Slot, device_name: str, now: float) -> None:
        """Plan a slot on a device; empty: on none."""
        if slot.device_name:
            own = self.by_device[slot.device_name]
            own.remove(slot)
            if not own:
                del self.by_device[slot.device_name]
        slot.device_name, slot.planned_at_sec, slot.is_lost = device_name, now, False
        slot.unused_since_sec = now
        if device_name:
            own = self.by_device.setdefault(device_name, [])
            own.append(slot)
            own.sort(key=_start)
        slot.booking.note_slots()

    def release(self, slot: Slot) -> None:
        """Remove a slot from its booking."""
        self.plan(slot, "", 0.0)
        slot.booking.slots.remove(slot)
        slot.booking.note_slots()

    def limit_sec(self, device_name: str) -> float:
        """Return the start of the next or current booking of a device; infinite without one [s since 1970]."""
        slots = self.by_device.get(device_name)
        return slots[0].booking.entry.starts_at_sec if slots else math.inf

    def visit_next(self, device_name: str) -> None:
        """Have the bookings of a device visited next, before the round goes on."""
        self.unvisited += [slot.booking.name for slot in self.by_device.get(device_name, ())]

    def hold(self, device_name: str) -> None:
        """Exclude a device from the free ones. Idempotent."""
        self.held[device_name] = None
        self._matching.set_busy(device_name)

    def active_on(self, device_name: str, now: float) -> Slot | None:
        """Return the slot of the current booking of a device."""
        slots = self.by_device.get(device_name)
        return slots[0] if slots and slots[0].booking.is_active(now) else None

    def discard(self, request: RequestEntry) -> None:
        """Remove a waiting request. Idempotent."""
        if (booking := self.entries.get(request.terms.booking)) is not None:
            booking.requests.pop(request.key, None)

    def note_grant(self, lease: LeaseEntry) -> None:
        """Note that a device of a booking is used."""
        if (slot := self._slot_of(lease)) is not None:
            slot.lease_name = lease.name

    def note_end(self, lease: LeaseEntry, now: float) -> BookingEntry | None:
        """Note that a device of a booking is unused again; return the changed booking."""
        slot = self._slot_of(lease)
        if slot is None or slot.lease_name != lease.name:
            return None
        slot.lease_name, slot.unused_since_sec = "", now
        slot.booking.note_slots()
        return slot.booking.entry

    def _slot_of(self, lease: LeaseEntry) -> Slot | None:
        if not lease.terms.booking:
            return None
        slots = self.by_device.get(lease.device_name, ())
        return next((slot for slot in slots if slot.booking.name == lease.terms.booking), None)

    def validate(self, leases: Mapping[str, LeaseEntry]) -> None:
        """Compare the indexes with the bookings.

        Raises:
            RuntimeError: they differ.
        """
        by_device: dict[str, set[int]] = {}
        for booking in self.entries.values():
            _require(bool(booking.slots), f"{booking.name} has devices")
            names = tuple(slot.device_name for slot in booking.slots)
            _require(booking.entry.device_names == names, f"the entry of {booking.name} names its devices")
            for slot in booking.slots:
                if slot.device_name:
                    by_device.setdefault(slot.device_name, set()).add(id(slot))
                lease = leases.get(slot.lease_name)
                is_own = lease is not None and lease.terms.booking == booking.name
                _require(not slot.lease_name or is_own, f"{booking.name} knows its leases")
        indexed = {name: {id(slot) for slot in slots} for name, slots in self.by_device.items()}
        _require(indexed == by_device, "slots of devices")
        for name, slots in self.by_device.items():
            _require(
                not any(one.overlaps(other) for one, other in pairwise(slots)), f"bookings of {name} do not overlap"
            )
        _require(self.held.keys() <= self.by_device.keys(), "held devices are booked")


def _start(slot: Slot) -> float:
    return slot.booking.entry.starts_at_sec


def _require(holds: bool, index: str) -> None:
    if not holds:
        raise RuntimeError(f"index of bookings is wrong: {index}")
