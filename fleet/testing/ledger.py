"""In-memory journal: the reference model for the real one."""

from __future__ import annotations

import copy
from typing import TypeVar

from fleet.domain.poison import Poison
from fleet.tracker.core.records import (
    BookingEntry,
    Changes,
    DeviceEntry,
    Durable,
    HealthEntry,
    RequestEntry,
    UseEntry,
)

K = TypeVar("K")
V = TypeVar("V")


class Ledger:
    """Keeps the newest version of every record, as `fleet.tracker.journal.file.Journal` does on disk."""

    def __init__(self) -> None:
        self.is_busy = False
        """True if nothing may be written now."""
        self._boot = 0
        self._devices: dict[str, DeviceEntry] = {}
        self._leases: dict[str, DeviceEntry] = {}
        self._requests: dict[tuple[str, str], RequestEntry] = {}
        self._uses: dict[str, UseEntry] = {}
        self._health: dict[str, HealthEntry] = {}
        self._poison: dict[str, Poison] = {}
        self._bookings: dict[str, BookingEntry] = {}

    def open(self, _: float) -> Durable:
        """Count a start and return copies of all records."""
        self._boot += 1
        devices = [copy.deepcopy(device) for device in self._devices.values()]
        for device in devices:
            last = copy.deepcopy(self._leases[device.name])
            device.epoch, device.lease = last.epoch, last.lease
        requests = copy.deepcopy(list(self._requests.values()))
        uses, health = list(self._uses.values()), list(self._health.items())
        poison = list(self._poison.values())
        bookings = copy.deepcopy(list(self._bookings.values()))
        return Durable(
            boot=self._boot,
            devices=devices,
            requests=requests,
            uses=uses,
            health=health,
            poison=poison,
            bookings=bookings,
        )

    def write(self, changes: Changes) -> None:
        """Store copies of changed records."""
        _merge(self._devices, changes.devices)
        _merge(self._leases, changes.leases)
        _merge(self._requests, changes.requests)
        _merge(self._uses, changes.uses)
        _merge(self._health, changes.health)
        _merge(self._poison, changes.poison)
        _merge(self._bookings, changes.bookings)

    def wait_until_free(self) -> None:
        """Become writable at once."""
        self.is_busy = False

    def close(self) -> None:
        """Do nothing: memory needs no closing."""


def _merge(kept: dict[K, V], changed: dict[K, V | None]) -> None:
    for key, value in changed.items():
        if value is None:
            kept.pop(key, None)
        else:
            kept[key] = copy.deepcopy(value)
