"""The tracker's state at one moment, and the effects of the current event so far.

The modules beside this one change it, each for its subject: `devices`, `clients`, `requests`, `leases`.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping

from fleet.domain.health import GOOD, HealthMark
from fleet.domain.poison import MAX_POISON, Poison
from fleet.errors import FleetError
from fleet.tracker.core import events as ev
from fleet.tracker.core.accounts import Account, Accounts
from fleet.tracker.core.booking_table import BookingTable
from fleet.tracker.core.matching import Matching
from fleet.tracker.core.positions import Positions
from fleet.tracker.core.records import (
    BOOT_SHIFT,
    Changes,
    ClientEntry,
    DeviceEntry,
    Durable,
    HealthEntry,
    LeaseEnd,
    LeaseEntry,
    RequestEntry,
    TrackerLimits,
    UseEntry,
    YieldEntry,
)
from fleet.tracker.core.set_queue import SetQueue
from fleet.tracker.core.share_policy import SharePolicy
from fleet.tracker.core.timers import Timers
from fleet.tracker.core.waiting import Waiting


class Tables:
    """Devices, leases, requests and clients. `boot` must be larger than at every earlier start on the same journal."""

    def __init__(
        self, *, boot: int, nonce: str = "", limits: TrackerLimits | None = None, policy: SharePolicy | None = None
    ) -> None:
        """Args:
        nonce: random, new with each start; part of tokens and of the names of leases.
        """
        self.limits = limits or TrackerLimits()
        self.devices: dict[str, DeviceEntry] = {}
        self.devices_by_agent: dict[str, dict[str, None]] = {}
        """Names of the devices that each attached agent serves; for a disconnected one, those that are not offline
        yet.
        """

        self.marks: dict[str, HealthMark] = {}
        """Health of devices that were ever marked, gone ones too, oldest mark first."""

        self.poison: dict[str, Poison] = {}
        """Programs that killed a device, by digest, oldest first."""

        self.poison_count = 0
        """Number of additions to them."""

        self.forgotten_poison: deque[tuple[str, float]] = deque(maxlen=MAX_POISON)
        """Programs that an admin had forgotten since the start, each with its time, oldest first."""

        self.forgotten_count = 0
        """Number of these, without the limit."""

        self.streams: dict[str, int] = {}
        """Number of the stream of each attached agent."""

        self.inventory_bytes = 0
        """Labels of all devices."""

        self.leases: dict[str, LeaseEntry] = {}
        """Live leases by name."""

        self.ends: OrderedDict[str, tuple[LeaseEnd, str]] = OrderedDict()
        """End and reason of ended leases, by name."""

        self.batch: dict[str, LeaseEntry] = {}
        """Live leases of the class batch by name, oldest first."""

        self.yields: dict[str, YieldEntry] = {}
        """Leases that were asked to give way, by name."""

        self.unswept: list[str] = []
        """Batch leases still to be compared with the queue in the current sweep."""

        self.swept_at_sec = -math.inf
        """Start of the latest sweep."""

        self.yields_by_request: dict[tuple[str, str], str] = {}
        """The lease that each request asked."""

        self.gave_way: OrderedDict[str, tuple[str, float]] = OrderedDict()
        """Client and time of the request of leases that gave way, by name."""

        self.clients: dict[str, ClientEntry] = {}
        self.matching = Matching()
        self.accounts = Accounts(policy or SharePolicy())
        self.waiting = Waiting(self.matching, self.accounts)
        self.sets = SetQueue(self.matching, self.accounts, self.waiting)
        self.bookings = BookingTable(self.matching)
        self.positions = Positions(self.waiting, self.matching)
        self.waiting_by_account: dict[str, Counter[str]] = {}
        """Number of waiting requests of each account, by selector; "" counts all selectors of a single device."""

        self.parked_by_account: Counter[str] = Counter()
        """Number of requests of each account that are expected to be repeated. They count as waiting."""

        self.boot = boot
        self.nonce = nonce or f"{boot:x}"
        self.last_epoch = boot << BOOT_SHIFT
        self.grant_count = 0
        self.arrivals = 0
        """Requests so far."""

        self.version = 0
        """Grows with every change that a snapshot could show."""

        self.journal_trouble = ""
        """Why no grants are made, or empty."""

        self.now_sec = 0.0
        """The latest time that any event carried."""

        self.timers = Timers()
        self.effects: list[ev.Effect] = []
        self.changes = Changes()
        self.used_accounts: dict[str, None] = {}
        """Accounts with a changed use since the last call of `take_changes`."""

    def take_changes(self) -> Changes:
        """Return the changes since the last call, for the journal."""
        changes, self.changes = self.changes, Changes()
        for name in self.used_accounts:
            account = self.accounts.by_name.get(name)
            changes.uses[name] = self.use_of(account) if account is not None else None
        self.used_accounts.clear()
        return changes

    def next_timer_sec(self) -> float | None:
        """Return the latest moment for the next event, so that nothing happens too late."""
        return self.timers.next_sec()

    def durable(self) -> Durable:
        """Return the expected content of the journal."""
        waiting = [request for client in self.clients.values() for request in client.requests.values()]
        parked = [request for client in self.clients.values() for request in client.parked.values()]
        uses = [self.use_of(account) for account in self.accounts.by_name.values()]
        return Durable(
            boot=self.boot,
            devices=list(self.devices.values()),
            requests=waiting + parked,
            uses=[use for use in uses if use is not None],
            health=[(name, entry) for name in self._judged() if (entry := self.health_of(name)) is not None],
            poison=list(self.poison.values()),
            bookings=[booking.entry for booking in self.bookings.entries.values()],
        )

    def health_of(self, name: str) -> HealthEntry | None:
        """Return a device's health for the journal; None for one without a mark and without faults."""
        device, mark = self.devices.get(name), self.marks.get(name)
        count = device.fault_count if device is not None else 0
        if mark is None and not count:
            return None
        is_used = device is not None and count > 0 and device.is_used
        return HealthEntry(mark=mark or GOOD, fault_count=count, is_used=is_used)

    def _judged(self) -> list[str]:
        """Return the names of devices that may have a mark or faults."""
        return [*self.marks, *(name for name in self.devices if name not in self.marks)]

    def use_of(self, account: Account) -> UseEntry | None:
        """Return an account's use for the journal; None for one without any."""
        return self.accounts.use_of(account, self.now_sec)

    def refuse(self, client_id: str, request_id: str, error_class: type[FleetError], message: str) -> None:
        """Tell a client that its request has ended without a device."""
        self.effects.append(ev.Refused(client_id, request_id, error_class, message))

    def remove_request(self, request: RequestEntry) -> None:
        """Remove a waiting request."""
        client = self.clients[request.client_id]
        if client.requests.pop(request.request_id, None) is not None:
            self.count_waiting([request], -1)
        self.waiting.discard(request)
        self.sets.discard(request)
        self.bookings.discard(request)
        self.forget_yields_for(request)
        self.timers.cancel(("wait", request.key))
        self.changes.requests[request.key] = None

    def forget_yields_for(self, request: RequestEntry) -> None:
        """Forget the demands of a request, which waits no more or holds other devices."""
        if not self.yields_by_request:
            return
        for member_id in request.member_ids:
            if (name := self.yields_by_request.get((request.client_id, member_id))) is not None:
                self.forget_yield(name)

    def forget_yield(self, lease_name: str) -> YieldEntry | None:
        """Forget that a lease shall give way; return the former demand. Idempotent."""
        wanted = self.yields.pop(lease_name, None)
        if wanted is not None:
            if wanted.request_key is not None:
                del self.yields_by_request[wanted.request_key]
            self.timers.cancel(("yield", lease_name))
        return wanted

    def count_waiting(self, requests: Iterable[RequestEntry], more: int) -> None:
        """Count waiting requests (`more` is 1), or their end while they are still queued (-1)."""
        for request in requests:
            counts = self.waiting_by_account.get(request.account)
            if counts is None:
                counts = self.waiting_by_account[request.account] = Counter()
            for general in map(self.matching.general, request.terms.selectors):
                counts[general] += more
                if not counts[general]:
                    del counts[general]
            if not counts:
                del self.waiting_by_account[request.account]

    def forget_client(self, client: ClientEntry) -> None:
        """Forget a client without leases and requests. Idempotent."""
        if self.clients.pop(client.client_id, None) is not None:
            self.timers.cancel(("grace", client.client_id))

    def park(self, client: ClientEntry, requests: Mapping[str, RequestEntry]) -> None:
        """Park requests, by id, that a client is expected to repeat."""
        client.parked |= requests
        self.count_parked(requests.values(), 1)

    def unpark(self, request: RequestEntry) -> None:
        """Unpark a request that a client is no longer expected to repeat."""
        client = self.clients[request.client_id]
        del client.parked[request.request_id]
        self.count_parked([request], -1)
        self.timers.cancel(("wait", request.key))
        self.changes.requests[request.key] = None

    def count_parked(self, requests: Iterable[RequestEntry], more: int) -> None:
        """Count parked requests (`more` is 1), or their end (-1)."""
        for request in requests:
            self.parked_by_account[request.account] += more
            if not self.parked_by_account[request.account]:
                del self.parked_by_account[request.account]
