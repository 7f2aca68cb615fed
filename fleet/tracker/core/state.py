"""The tracker's state: `apply(event, now)` changes it and returns the effects. No I/O, no clock, no randomness.

The rules that hold after every event (`fleet.tracker.core.invariants` checks them):

- A device has at most one live lease, and its epoch is larger than that of every earlier lease, also over restarts.
- An ended lease never comes back: renewing it says how it ended.
- A request leaves the queue by grant, cancel, deadline or loss of its client; nothing else.
- No device is free while a request that it could serve waits, unless a quota of the request's account is used up, the
  journal cannot be written, or free devices are being offered in portions.
- No lease is granted on a booked device that would reach into the booking, except batch leases, which give way in time.
"""

from __future__ import annotations

from functools import partial
from typing import assert_never

from fleet.errors import DiskFull
from fleet.tracker.core import bookings, clients, devices, epochs, leases, marking, poisons, requests, sets, yielding
from fleet.tracker.core import events as ev
from fleet.tracker.core.accounts import DAY_SEC
from fleet.tracker.core.records import Durable, LeaseEnd, TrackerLimits
from fleet.tracker.core.restart import restore
from fleet.tracker.core.share_policy import SharePolicy
from fleet.tracker.core.tables import Tables

_MOST_DUE = 4
"""Number of due timers that fire at once; each lease may be granted again. The rest follows with the next event."""
_MOST_EFFECTS = 8
_MOST_CHANGES = 64
"""Limits of effects of due timers, and of changes since the last commit, after which no more timers run."""
_LOOKED_AT = 64
"""Number of free devices examined at once for requests."""
_FEW_ACCOUNTS = 4
"""A device that is left free counts once more for each so many waiting accounts: that search takes 0.4 ms for 300."""


class TrackerState(Tables):
    """The tracker's tables with the events that change them."""

    @classmethod
    def restore(
        cls,
        durable: Durable,
        now: float,
        limits: TrackerLimits | None = None,
        *,
        nonce: str = "",
        policy: SharePolicy | None = None,
        grace_sec: float | None = None,
    ) -> TrackerState:
        """Restore the state for a start on this journal: no agent or client is connected yet.

        Args:
            grace_sec: time that clients have to come back; the usual one if None.
        """
        state = cls(boot=durable.boot, nonce=nonce, limits=limits, policy=policy)
        state.now_sec = now
        _follow_days(state)
        restore(state, durable, grace_sec)
        return state

    def apply(self, event: ev.Event, now: float, *, ends_what_is_due: bool = True) -> list[ev.Effect]:
        """Change the state by one event and return the effects, in order.

        Args:
            ends_what_is_due: whether expired leases and requests end first, a portion at a time. Not while messages
                that came in time may be unread.
        """
        self.now_sec = max(self.now_sec, now)
        next_sec = self.timers.next_sec()
        if ends_what_is_due and next_sec is not None and next_sec <= self.now_sec:
            for due in self.timers.pop_due(self.now_sec, _MOST_DUE):
                due()
                if len(self.effects) >= _MOST_EFFECTS or len(self.changes) >= _MOST_CHANGES:
                    break
        _apply(self, event)
        yielding.sweep(self)
        bookings.advance(self)
        sets.advance(self)
        effects, self.effects = self.effects, []
        if effects:
            self.version += 1
        return effects


def _apply(tables: Tables, event: ev.Event) -> None:
    match event:  # the most frequent first
        case ev.Acquire():
            requests.acquire(tables, event)
        case ev.Release():
            leases.release(tables, event)
        case ev.Renew():
            leases.renew(tables, event)
        case ev.Tick():
            pass
        case ev.DeviceReported():
            devices.report(tables, event)
        case ev.Cancel():
            requests.cancel(tables, event)
        case ev.Revoke():
            leases.revoke(tables, event)
        case ev.ResetEpochs():
            epochs.reset(tables, event)
        case ev.MarkHealth():
            marking.mark(tables, event)
        case ev.PoisonFound():
            poisons.find(tables, event)
        case ev.ForgetPoison():
            poisons.forget(tables, event)
        case ev.Book():
            bookings.book(tables, event)
        case ev.CancelBooking():
            bookings.cancel(tables, event)
        case ev.PolicyChanged():
            _change_policy(tables, event)
        case ev.ClientConnected():
            clients.connect(tables, event)
        case ev.ClientLost():
            clients.lose(tables, event)
        case ev.AgentAttached():
            devices.attach(tables, event)
        case ev.AgentDetached():
            devices.detach(tables, event)
        case ev.JournalFailed():
            _fail_journal(tables, event)
        case ev.JournalRecovered():
            _recover_journal(tables)
        case _:
            assert_never(event)


def _fail_journal(tables: Tables, event: ev.JournalFailed) -> None:
    tables.journal_trouble = event.message
    for lease in event.grants:
        if tables.leases.get(lease.name) is lease:
            leases.end(tables, lease, LeaseEnd.REVOKED, event.message, is_told=False)
            leases.serve(tables, tables.devices[lease.device_name])
        tables.refuse(lease.client_id, lease.request_id, DiskFull, event.message)


def _recover_journal(tables: Tables) -> None:
    tables.journal_trouble = ""
    _serve_free(tables, tables.matching.free_devices())


def _change_policy(tables: Tables, event: ev.PolicyChanged) -> None:
    tables.accounts.set_policy(event.policy, tables.now_sec)
    _follow_days(tables)
    _begin_again(tables)


def _follow_days(tables: Tables) -> None:
    """Begin a day at midnight. Days count without a daily quota too: the next policy may have one."""
    if tables.accounts.begin_day(tables.now_sec) and tables.accounts.policy.has_daily_quota:
        _begin_again(tables)
    next_sec = (tables.accounts.day + 1) * DAY_SEC
    tables.timers.set(("day",), next_sec, partial(_follow_days, tables))


def _begin_again(tables: Tables) -> None:
    """Serve requests that a changed quota held back."""
    tables.waiting.note_all()
    if not tables.journal_trouble:
        _serve_free(tables, tables.matching.free_devices())


def _serve_free(tables: Tables, names: list[str]) -> None:
    """Grant devices that became free meanwhile to waiting requests, in portions."""
    room, fruitless = _LOOKED_AT, 1 + tables.waiting.account_count // _FEW_ACCOUNTS
    for count, name in enumerate(names):
        if room <= 0 or len(tables.effects) >= _MOST_EFFECTS:
            tables.timers.set(("serve",), tables.now_sec, partial(_serve_free, tables, names[count:]))
            return
        if (device := tables.devices.get(name)) is not None:
            leases.serve(tables, device)
            room -= fruitless if device.lease is None else 1
