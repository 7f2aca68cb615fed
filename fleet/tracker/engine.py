"""Runs the state: applies the events of one turn of the loop, writes what changed, then lets the effects out.

Nothing leaves the tracker before the journal has it, and many events share one commit. When the journal cannot be
written, grants are taken back before anyone hears of them, and refused from then on; everything else goes on, since
fencing makes it safe to forget a renewal or a release.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from fleet.base.clock import Clock
from fleet.errors import DiskFull
from fleet.tracker.core import events as ev
from fleet.tracker.core.entries import Changes
from fleet.tracker.core.state import TrackerState
from fleet.tracker.journal.file import Journal

logger = logging.getLogger(__name__)

_RETRY_SEC = 1.0
"""How often a journal that could not be written is tried again."""
_LONGEST_WAIT_SEC = 3600.0
_SLOW_TURN_SEC = 0.1


class Engine:
    """Owns the state and its journal. Use from one event loop."""

    def __init__(self, state: TrackerState, journal: Journal, clock: Clock) -> None:
        self.state = state
        self.clock = clock
        self.deliver: Callable[[ev.Effect], None] = lambda effect: None
        """Takes each effect once the journal has what caused it."""
        self.changed: Callable[[Changes], None] = lambda changes: None
        """Called with what changed, before any effect is delivered."""
        self._journal = journal
        self._pending: list[tuple[ev.Event, asyncio.Future[list[ev.Effect]] | None]] = []
        self._unwritten = Changes()
        self._is_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = False

    def submit(self, event: ev.Event) -> None:
        """Apply an event in this turn of the loop."""
        self._enqueue(event, None)

    async def ask(self, event: ev.Event) -> list[ev.Effect]:
        """Apply an event and return its effects, once the journal has them."""
        answer: asyncio.Future[list[ev.Effect]] = asyncio.get_running_loop().create_future()
        self._enqueue(event, answer)
        return await answer

    def stop(self) -> None:
        """Apply and write what was submitted, then accept nothing more."""
        self._turn()
        self._is_stopped = True
        if self._timer:
            self._timer.cancel()

    def _enqueue(self, event: ev.Event, answer: asyncio.Future[list[ev.Effect]] | None) -> None:
        if self._is_stopped:
            if answer:
                answer.cancel()
            return
        self._pending.append((event, answer))
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._is_scheduled = False
        if self._is_stopped:
            return
        started_sec = self.clock.monotonic_sec()
        pending, self._pending = self._pending, []
        now = self.clock.now_sec()
        answers = []
        effects: list[ev.Effect] = []
        for event, answer in pending:
            try:
                caused = self.state.apply(event, now)
            except Exception as error:
                # One event that the state rejects must not cost the others of this turn their answers.
                logger.exception("event failed", extra={"kind": type(event).__name__})
                if answer:
                    answer.set_exception(error)
                continue
            effects += caused
            if answer:
                answers.append((answer, caused))
        if not pending:
            effects += self.state.apply(ev.Tick(), now)
        for effect in self._commit(effects, now):
            try:
                self.deliver(effect)
            except Exception:
                # One failed delivery must not cost the others of this turn their answers.
                logger.exception("effect not delivered", extra={"kind": type(effect).__name__})
        for answer, caused in answers:
            if not answer.done():
                answer.set_result(caused)
        self._set_timer(now)
        took_sec = self.clock.monotonic_sec() - started_sec
        if took_sec > _SLOW_TURN_SEC:
            logger.warning("slow turn", extra={"took_sec": round(took_sec, 3), "events": len(pending)})

    def _commit(self, effects: list[ev.Effect], now: float) -> list[ev.Effect]:
        """Write what changed and return the effects that may leave."""
        self._collect()
        try:
            self._journal.write(self._unwritten)
        except DiskFull as error:
            return self._without_grants(effects, str(error), now)
        self._unwritten = Changes()
        if not self.state.journal_trouble:
            return effects
        logger.info("journal can be written again")
        effects += self.state.apply(ev.JournalRecovered(), now)
        return self._commit(effects, now)

    def _without_grants(self, effects: list[ev.Effect], message: str, now: float) -> list[ev.Effect]:
        if not self.state.journal_trouble:
            logger.error("journal cannot be written, no grants until it can", extra={"reason": message})
        untold = [effect for effect in effects if isinstance(effect, ev.Granted) and not effect.is_repeat]
        others = [effect for effect in effects if not isinstance(effect, ev.Granted) or effect.is_repeat]
        others += self.state.apply(ev.JournalFailed(tuple(effect.lease for effect in untold), message), now)
        self._collect()
        return others

    def _collect(self) -> None:
        changes = self.state.take_changes()
        self.changed(changes)
        self._unwritten.devices |= changes.devices
        self._unwritten.leases |= changes.leases
        self._unwritten.requests |= changes.requests

    def _set_timer(self, now: float) -> None:
        if self._timer:
            self._timer.cancel()
        next_sec = self.state.next_timer_sec()
        wait_sec = _LONGEST_WAIT_SEC if next_sec is None else min(max(next_sec - now, 0.001), _LONGEST_WAIT_SEC)
        if self.state.journal_trouble:
            wait_sec = min(wait_sec, _RETRY_SEC)
        self._timer = asyncio.get_running_loop().call_later(wait_sec, self._turn)
