"""The tracker's state: `apply(event, now)` changes it and returns what follows. No I/O, no clock, no randomness.

The rules that hold after every event (`fleet.tracker.core.invariants` checks them):

- A device has at most one live lease, and its epoch is larger than that of every earlier lease, also over restarts.
- An ended lease never comes back: renewing it says how it ended.
- A request leaves the queue by grant, cancel, deadline or loss of its client; nothing else.
- No device is free while a request that it could serve waits, unless the journal cannot be written.
"""

from __future__ import annotations

from functools import partial
from typing import assert_never

from fleet.errors import DiskFull
from fleet.tracker.core import clients, devices, epochs, leases, requests
from fleet.tracker.core import events as ev
from fleet.tracker.core.book import Book
from fleet.tracker.core.entries import Durable, LeaseEnd, TrackerLimits
from fleet.tracker.core.restart import restore

_MOST_DUE = 4
"""So much that is due ends at once; each lease may go to the next in line. The rest follows with the next event."""
_MOST_EFFECTS = 8
_MOST_CHANGES = 64
"""Nothing more ends when what was due has had so many effects, or so much has changed since the last commit."""
_LOOKED_AT = 64
"""So many free devices are looked at in one go for one that somebody waits for."""


class TrackerState(Book):
    """A book that events change."""

    @classmethod
    def restore(
        cls, durable: Durable, now: float, limits: TrackerLimits | None = None, *, nonce: str = ""
    ) -> TrackerState:
        """Make the state that follows a start on this journal: no agent and no client is there yet."""
        state = cls(boot=durable.boot, nonce=nonce, limits=limits)
        state.now_sec = now
        restore(state, durable)
        return state

    def apply(self, event: ev.Event, now: float, *, ends_what_is_due: bool = True) -> list[ev.Effect]:
        """Change the state by one event and return what follows, in order.

        Args:
            ends_what_is_due: whether what has run out by now ends first, a portion of it at a time. Not while messages
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
        effects, self.effects = self.effects, []
        if effects:
            self.version += 1
        return effects


def _apply(book: Book, event: ev.Event) -> None:
    match event:  # the most frequent first
        case ev.Acquire():
            requests.acquire(book, event)
        case ev.Release():
            leases.release(book, event)
        case ev.Renew():
            leases.renew(book, event)
        case ev.Tick():
            pass
        case ev.DeviceReported():
            devices.report(book, event)
        case ev.Cancel():
            requests.cancel(book, event)
        case ev.Revoke():
            leases.revoke(book, event)
        case ev.ResetEpochs():
            epochs.reset(book, event)
        case ev.ClientConnected():
            clients.connect(book, event)
        case ev.ClientLost():
            clients.lose(book, event)
        case ev.AgentAttached():
            devices.attach(book, event)
        case ev.AgentDetached():
            devices.detach(book, event)
        case ev.JournalFailed():
            _fail_journal(book, event)
        case ev.JournalRecovered():
            _recover_journal(book)
        case _:
            assert_never(event)


def _fail_journal(book: Book, event: ev.JournalFailed) -> None:
    book.journal_trouble = event.message
    for lease in event.grants:
        if book.leases.get(lease.name) is lease:
            leases.end(book, lease, LeaseEnd.REVOKED, event.message, is_told=False)
            leases.serve(book, book.devices[lease.device_name])
        book.refuse(lease.client_id, lease.request_id, DiskFull, event.message)


def _recover_journal(book: Book) -> None:
    book.journal_trouble = ""
    _serve_free(book, book.queue.free_devices())


def _serve_free(book: Book, names: list[str]) -> None:
    """Give devices that came free meanwhile to those who wait, a portion at a time."""
    for count, name in enumerate(names):
        if count == _LOOKED_AT or len(book.effects) >= _MOST_EFFECTS:
            book.timers.set(("serve",), book.now_sec, partial(_serve_free, book, names[count:]))
            return
        if (device := book.devices.get(name)) is not None:
            leases.serve(book, device)
