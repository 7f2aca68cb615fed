"""Choice of the devices of bookings: a bipartite matching of slots and devices, bounded in time. Pure.

A slot takes a device that no overlapping booking needs. If there is none, it takes one and moves the bookings there to
other devices, these likewise (Kuhn's algorithm). Where a device has several overlapping bookings, all of them have to
move. Such a search may overlook a plan, but each plan that it finds is valid.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from fleet.domain.bookings import NOTICE_SEC
from fleet.tracker.core.booking_table import PlannedBooking, Slot
from fleet.tracker.core.tables import Tables

MOST_EXAMINED = 1_000
"""Number of devices that one search examines: this many take under 2 ms."""


class Search:
    """A search for devices. It changes nothing: `moves` has the device of each slot that would move."""

    def __init__(
        self, tables: Tables, *, avoided: Collection[str] = (), is_gentle: bool = False, most: int = MOST_EXAMINED
    ) -> None:
        """Args:
        avoided: devices that are not taken.
        is_gentle: take only devices that serve well, with leases that end before the booking or give way.
        most: number of devices that are examined.
        """
        self.moves: dict[Slot, str] = {}
        self.is_exhausted = False
        """True if more devices would have had to be examined."""
        self._moved_to: dict[str, list[Slot]] = {}
        """Slots by the device that they would move to."""
        self._trail: list[tuple[Slot, str | None]] = []
        """Moves in order, each with the slot's former move."""
        self._tables = tables
        self._avoided = avoided
        self._is_gentle = is_gentle
        self._left = most
        self._scans: dict[PlannedBooking, _Scan] = {}

    def place(self, slots: Sequence[Slot]) -> bool:
        """Find a device for each slot; return False at the first that has none."""
        return all(self._assign(slot, set()) for slot in slots)

    def _assign(self, slot: Slot, seen: set[str]) -> bool:
        scan = self._scans.setdefault(slot.booking, _Scan(iter(slot.booking.group.devices)))
        while (name := scan.next_name()) is not None:
            if not self._may_examine():
                return False
            rank = None if name in self._avoided else rank_of(self._tables, slot, name)
            if rank is None or (rank and self._is_gentle):
                continue
            if self._others_on(name, slot):
                scan.crowded.append(name)
            elif rank:
                scan.second.append(name)
            elif name not in seen:
                self._move(slot, name)
                return True
        for name in scan.second:
            if not self._may_examine():
                return False
            if name not in seen and not self._others_on(name, slot):
                self._move(slot, name)
                return True
        return self._make_room(slot, scan.crowded, seen)

    def _make_room(self, slot: Slot, crowded: Sequence[str], seen: set[str]) -> bool:
        """Take a device, and move its bookings to others."""
        for name in crowded:
            if not self._may_examine():
                return False
            if name in seen:
                continue
            seen.add(name)
            others = self._others_on(name, slot)
            if any(other.lease_name for other in others):
                continue
            move_count = len(self._trail)
            self._move(slot, name)
            if all(self._assign(other, seen) for other in others):
                return True
            self._take_back(move_count)
            if len(others) > 1:  # devices that a failed branch took are free again
                self._scans.clear()
        return False

    def _others_on(self, name: str, slot: Slot) -> list[Slot]:
        """Return the overlapping slots on a device after the moves so far."""
        there, moved = self._tables.bookings.by_device.get(name), self._moved_to.get(name)
        if there is None and moved is None:
            return []
        found = [each for each in there or () if each not in self.moves or self.moves[each] == name]
        found += moved or ()
        return [each for each in found if each is not slot and each.overlaps(slot)]

    def _move(self, slot: Slot, name: str) -> None:
        self._trail.append((slot, self.moves.get(slot)))
        self._set(slot, name)

    def _take_back(self, move_count: int) -> None:
        """Take back all but the first moves."""
        while len(self._trail) > move_count:
            self._set(*self._trail.pop())

    def _set(self, slot: Slot, name: str | None) -> None:
        if (former := self.moves.pop(slot, None)) is not None and former != slot.device_name:
            self._moved_to[former].remove(slot)
        if name is not None:
            self.moves[slot] = name
            if name != slot.device_name:
                self._moved_to.setdefault(name, []).append(slot)

    def _may_examine(self) -> bool:
        self._left -= 1
        self.is_exhausted = self.is_exhausted or self._left < 0
        return not self.is_exhausted


class _Scan:
    """Progress of one booking through the devices of its selector."""

    def __init__(self, names: Iterator[str]) -> None:
        self._names = names
        self.second: list[str] = []
        """Devices that another lease outlasts, or that are away."""
        self.crowded: list[str] = []
        """Devices with overlapping bookings."""

    def next_name(self) -> str | None:
        """Return the next device that was not examined."""
        return next(self._names, None)


def rank_of(tables: Tables, slot: Slot, name: str) -> int | None:
    """Return 0 for a well suited device, 1 for one of second choice, None for an unsuitable one.

    Second choices are devices that are away, for a booking in the distant future, and those with an interactive or
    normal lease that outlasts the start, as long as its holder can be asked with notice.
    """
    device, now = tables.devices.get(name), tables.now_sec
    if device is None or not device.mark.state.is_open:
        return None
    starts_at_sec = slot.booking.entry.starts_at_sec
    is_near, is_well = starts_at_sec - now < NOTICE_SEC, device.is_attached and device.is_healthy
    if is_near and not is_well:
        return None
    lease = device.lease
    if lease is None or lease.ends_at_sec <= starts_at_sec or lease.name in tables.batch:
        return 0 if is_well else 1
    wanted = tables.yields.get(lease.name)
    if lease.terms.booking == slot.booking.name or (wanted is not None and wanted.until_sec <= starts_at_sec):
        return 0
    return None if is_near else 1
