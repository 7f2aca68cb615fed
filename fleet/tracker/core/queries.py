"""Read-only queries of the tracker's state, for the modules around the core."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from itertools import chain, islice

from fleet.domain.explanation import Omission
from fleet.domain.leases import LeaseClass
from fleet.domain.poison import Poison
from fleet.domain.selectors import parse_selector
from fleet.domain.waits import QuotaUse
from fleet.tracker.core import explaining
from fleet.tracker.core.admission import checked_selector, no_match_error
from fleet.tracker.core.epochs import nonce_of
from fleet.tracker.core.outlook import Outlook, make_outlook
from fleet.tracker.core.records import BookingEntry, DeviceEntry, LeaseEntry, RequestEntry, TrackerLimits
from fleet.tracker.core.share_policy import SharePolicy
from fleet.tracker.core.standing import Standing, next_booking, standing_of
from fleet.tracker.core.tables import Tables


class Queries:
    """Queries of one state. Callers must not modify the returned entries."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    @property
    def limits(self) -> TrackerLimits:
        """Limits of everything that peers send."""
        return self._tables.limits

    @property
    def policy(self) -> SharePolicy:
        """Shares and quotas in force."""
        return self._tables.accounts.policy

    @property
    def tracker_id(self) -> str:
        """Random id of this start."""
        return self._tables.nonce

    @property
    def now_sec(self) -> float:
        """Time of the latest event."""
        return self._tables.now_sec

    @property
    def version(self) -> int:
        """Number that grows with every change that a snapshot could show."""
        return self._tables.version

    @property
    def grant_count(self) -> int:
        """Number of grants since the start."""
        return self._tables.grant_count

    @property
    def journal_trouble(self) -> str:
        """Error of a journal that cannot be written; empty: it can."""
        return self._tables.journal_trouble

    @property
    def poison_count(self) -> int:
        """Number of programs that were ever found to be poison, since the start."""
        return self._tables.poison_count

    def is_poison(self, digest: str) -> bool:
        """Tell whether a program is known to have killed a device."""
        return digest in self._tables.poison

    def newest_poison(self, count: int) -> list[Poison]:
        """Return the newest programs that killed a device, at most `count`."""
        return list(islice(reversed(self._tables.poison.values()), count))

    @property
    def forgotten_poison_count(self) -> int:
        """Number of programs that an admin had forgotten, since the start."""
        return self._tables.forgotten_count

    def newest_forgotten_poison(self, count: int) -> list[str]:
        """Return the digests that were forgotten last, at most `count`."""
        return [digest for digest, _ in islice(reversed(self._tables.forgotten_poison), count)]

    # devices

    @property
    def device_count(self) -> int:
        """Number of known devices, attached or not."""
        return len(self._tables.devices)

    @property
    def inventory_bytes(self) -> int:
        """Size of all devices' descriptions."""
        return self._tables.inventory_bytes

    def device_names(self) -> list[str]:
        """Return the names of all known devices."""
        return list(self._tables.devices)

    def device(self, name: str) -> DeviceEntry | None:
        """Return a device by its name."""
        return self._tables.devices.get(name)

    def leased_device(self, lease: LeaseEntry) -> DeviceEntry:
        """Return the device of a lease that is live, or ended in this turn."""
        return self._tables.devices[lease.device_name]

    def token_nonce(self, device: DeviceEntry) -> str:
        """Return the nonce of tokens for a device."""
        return nonce_of(self._tables, device)

    def is_ahead(self, device: DeviceEntry, epoch: int) -> bool:
        """Return True if an epoch of a device's agent exceeds all epochs that the tracker granted."""
        return epoch > max(device.epoch, self._tables.last_epoch)

    def match_count(self, selector: str) -> int:
        """Return the number of devices that match a selector, attached or not.

        Raises:
            InvalidRequest: it is malformed, or compares a label with a limit of another unit.
            NoMatchingDevice: there are none; the message counts the devices that each clause leaves.
        """
        count = self._tables.matching.count(checked_selector(selector))
        if not count:
            raise no_match_error(selector, self._tables.devices, self._tables.matching)
        return count

    def markable_names(self, selector: str) -> list[str]:
        """Return the names of devices that a selector matches, or the name of a marked device that is gone.

        Raises:
            InvalidRequest: it is malformed, or compares a label with a limit of another unit.
            NoMatchingDevice: there are none.
        """
        tables, checked = self._tables, checked_selector(selector)
        if count := tables.matching.count(checked):
            return tables.matching.names(checked, count)
        name = f"devices/{parse_selector(checked).exact_value('name')}"
        if name in tables.marks:
            return [name]
        raise no_match_error(selector, tables.devices, tables.matching)

    # leases

    def lease(self, name: str) -> LeaseEntry | None:
        """Return a live lease by its name."""
        return self._tables.leases.get(name)

    def leases(self) -> list[LeaseEntry]:
        """Return all live leases."""
        return list(self._tables.leases.values())

    # bookings

    def bookings(self) -> list[BookingEntry]:
        """Return all bookings, earliest start first."""
        entries = (booking.entry for booking in self._tables.bookings.entries.values())
        return sorted(entries, key=lambda entry: (entry.starts_at_sec, entry.name))

    def bookings_of(self, account: str) -> list[BookingEntry]:
        """Return the bookings of one account."""
        entries = (booking.entry for booking in self._tables.bookings.entries.values())
        return [entry for entry in entries if entry.account == account]

    def booking(self, name: str) -> BookingEntry | None:
        """Return a booking by its name."""
        booking = self._tables.bookings.entries.get(name)
        return booking.entry if booking else None

    def kept_devices(self, name: str) -> tuple[str, ...]:
        """Return the planned devices of a booking that can be had."""
        booking = self._tables.bookings.entries.get(name)
        return booking.kept_names if booking else ()

    def lost_devices(self, name: str) -> tuple[str, ...]:
        """Return the planned devices of a booking that cannot be had."""
        booking = self._tables.bookings.entries.get(name)
        return booking.lost_names if booking else ()

    def booked_lease_count(self, name: str) -> int:
        """Return the number of a booking's devices that are leased to its account."""
        booking = self._tables.bookings.entries.get(name)
        return sum(1 for slot in booking.slots if slot.lease_name) if booking else 0

    def next_booking(self, device: DeviceEntry) -> BookingEntry | None:
        """Return the next or current booking of a device."""
        return next_booking(self._tables, device)

    # requests

    @property
    def request_count(self) -> int:
        """Number of waiting requests, including parked ones."""
        booked = sum(len(booking.requests) for booking in self._tables.bookings.entries.values())
        return len(self._tables.waiting) + len(self._tables.sets) + booked + self._tables.parked_by_account.total()

    def waiting_counts(self) -> Counter[LeaseClass]:
        """Count the waiting requests of each class, without parked ones."""
        counts = self._tables.waiting.counts()
        counts.update(entry.request.terms.lease_class for entry in self._tables.sets.entries.values())
        booked = (booking.requests.values() for booking in self._tables.bookings.entries.values())
        counts.update(request.terms.lease_class for request in chain.from_iterable(booked))
        return counts

    def first_requests(self, limit: int) -> list[RequestEntry]:
        """Return the first requests in the order of service: those for bookings, then sets, then the others."""
        booked = [each for booking in self._tables.bookings.entries.values() for each in booking.requests.values()]
        sets = [entry.request for entry in self._tables.sets.in_order(self._tables.now_sec)]
        return list(islice(chain(booked, sets, self._tables.waiting.first(limit)), limit))

    def is_waiting(self, request: RequestEntry) -> bool:
        """Return True if a request still waits."""
        client = self._tables.clients.get(request.client_id)
        return client is not None and client.requests.get(request.request_id) is request

    def requests_of(self, client_id: str, limit: int) -> list[RequestEntry]:
        """Return the oldest requests of one client."""
        client = self._tables.clients.get(client_id)
        return list(islice(client.requests.values(), limit)) if client else []

    def requests_named(self, request_id: str) -> list[RequestEntry]:
        """Return the requests with an id chosen by a client: one, unless another client chose the same."""
        return [
            request
            for client in self._tables.clients.values()
            if (request := client.requests.get(request_id) or client.parked.get(request_id)) is not None
        ]

    def explained(
        self, request: RequestEntry
    ) -> Generator[None, None, tuple[tuple[float, float, float], list[Omission]]]:
        """Return the shares of a request's account, and the gain from leaving out each clause, in portions."""
        shares = yield from explaining.shares(self._tables, request.account)
        return shares, (yield from explaining.omissions(self._tables, request))

    def count(self, selector: str) -> int:
        """Return the number of devices that match the selector of a request."""
        return self._tables.matching.count(selector)

    def outlook(self, model_of: Callable[[DeviceEntry], str]) -> Generator[None, None, Outlook]:
        """Collect the input of a forecast in portions: devices, leases and waiting requests."""
        return make_outlook(self._tables, model_of)

    def candidates(self, request: RequestEntry) -> list[DeviceEntry]:
        """Return the first devices that match the selector of a request."""
        return explaining.candidates(self._tables, request)

    def quota_of(self, request: RequestEntry) -> QuotaUse | None:
        """Return the use of a request's quota; None if it has none."""
        return explaining.quota_of(self._tables, request)

    def weight_of(self, account: str) -> float:
        """Return the weight of an account."""
        return self._tables.accounts.policy.weight(account)

    def standing(self, request: RequestEntry) -> Standing:
        """Return the position of a request and the reason why it waits."""
        return standing_of(self._tables, request)
