"""Runs the state: applies the events of one turn of the loop, writes the changes, then releases the effects.

Nothing leaves the tracker before the journal has it, and many events share one commit. A turn ends after a few
milliseconds, so that messages are read between two: the rest waits for the next. After a stall of the loop, timers fire
only when the messages that have arrived meanwhile are read: a live lease does not expire because the tracker was slow
to read its renewal. While the journal begins its log anew, turns wait and messages are read on.

When the journal cannot be written, grants are taken back before anyone hears of them, and refused from then on;
everything else goes on, since fencing makes it safe to forget a renewal or a release.

While a standby follows the journal, grants and the answers to calls also wait until it has their commit, see
`replica.gate`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from fleet.base.clock import Clock
from fleet.errors import DiskFull
from fleet.tracker.core import events as ev
from fleet.tracker.core.queries import Queries
from fleet.tracker.core.records import Changes
from fleet.tracker.core.state import TrackerState
from fleet.tracker.journal.file import Journal
from fleet.tracker.observers import Observers
from fleet.tracker.replica.gate import Gate
from fleet.tracker.replica.untold import Untold

logger = logging.getLogger(__name__)

_RETRY_SEC = 1.0
"""Retry interval of a journal that could not be written."""
_LONGEST_WAIT_SEC = 3600.0
_SLOW_TURN_SEC = 0.1
_BUSY_LOOK_SEC = 0.001
"""Interval of checks whether a busy journal is free again."""
_TURN_SEC = 0.001
"""Time for applying events in a turn; their commit and the answers take two or three times as long."""
_TURN_EFFECTS = 24
"""Number of effects that ends a turn: a grant's token takes 0.1 ms to sign."""
_TURN_CHANGES = 64
"""Number of changes that ends a turn: each is a row of the journal, which takes 8 us."""
_BEAT_SEC = 0.25
"""Heartbeat interval of the loop."""
_STALL_SEC = 0.1
"""A beat with this delay shows that the loop was stalled."""
_SHOWN_STALL_SEC = 1.0
"""A shorter one is a busy machine's."""
_LONGEST_LISTENING_SEC = 2.0
"""Limit on reading the messages that arrived during a stall, before timers fire."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Effects and answers of one turn."""

    effects: list[ev.Effect]
    answers: list[tuple[asyncio.Future[list[ev.Effect]], list[ev.Effect]]]


class Engine:
    """Owns the state and its journal. Use from one event loop."""

    def __init__(self, state: TrackerState, journal: Journal, clock: Clock) -> None:
        self.queries = Queries(state)
        self._state = state
        self.clock = clock
        self.observers = Observers()
        self._journal = journal
        self._pending: deque[tuple[ev.Event, asyncio.Future[list[ev.Effect]] | None]] = deque()
        self._unwritten = Changes()
        self._is_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._beat: asyncio.TimerHandle | None = None
        self._listens_until_sec = 0.0
        """On the loop's clock: until then nothing that has run out ends."""
        self._is_stopped = False
        self.gate: Gate[Turn] = Gate()
        self._gate_timer: asyncio.TimerHandle | None = None
        self._untold = Untold()
        self.on_hold: Callable[[], None] = lambda: None
        """Called when a turn begins to wait for the standby."""

    def submit(self, event: ev.Event) -> None:
        """Apply an event in this turn of the loop."""
        self._enqueue(event, None)

    async def ask(self, event: ev.Event) -> list[ev.Effect]:
        """Apply an event and return its effects, once the journal has them."""
        answer: asyncio.Future[list[ev.Effect]] = asyncio.get_running_loop().create_future()
        self._enqueue(event, answer)
        return await answer

    def stop(self) -> None:
        """Apply and write the submitted events, then accept nothing more."""
        self._journal.wait_until_free()
        self._turn()
        while self._pending:
            self._journal.wait_until_free()
            self._turn()
        self._is_stopped = True
        self.release(self.gate.open())
        for timer in (self._timer, self._beat, self._gate_timer):
            if timer:
                timer.cancel()

    def halt(self) -> None:
        """Grant nothing more, at once: another tracker has taken over."""
        self._is_stopped = True
        untold = [answer for turn in self.gate.open() for answer, _ in turn.answers]
        for answer in (*untold, *(answer for _, answer in self._pending)):
            if answer:
                answer.cancel()
        self._pending.clear()

    def release(self, turns: list[Turn]) -> None:
        """Pass on held turns: the standby has their commits, or counts as away."""
        for turn in turns:
            self._untold.forget(turn.effects)
            self._pass_on(turn)

    def _pass_on(self, turn: Turn) -> None:
        for effect in turn.effects:
            self.observers.on_effect(effect)
        for answer, caused in turn.answers:
            if not answer.done():
                answer.set_result(caused)

    def _pass_on_or_hold(self, turn: Turn) -> None:
        """Pass a turn on, but hold its grants and answers until the standby has their cause."""
        if not self.gate.is_closed:
            self._pass_on(turn)
            return
        free, held = self._untold.split(turn.effects)
        self._pass_on(Turn(free, []))
        if not held and not turn.answers:
            return
        self.gate.hold(Turn(held, turn.answers))
        self.on_hold()
        if self._gate_timer is None:
            self._watch_gate()

    def _watch_gate(self) -> None:
        """Call again when waiting for the standby ends."""
        loop = asyncio.get_running_loop()
        self.release(self.gate.give_up_late(loop.time()))
        due_sec = self.gate.due_sec()
        self._gate_timer = None if due_sec is None else loop.call_at(due_sec, self._watch_gate)

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
        if self._journal.is_busy:
            self._is_scheduled = True
            asyncio.get_running_loop().call_later(_BUSY_LOOK_SEC, self._turn)
            return
        started_sec = time.perf_counter()
        is_listening = self._is_listening()
        now = self.clock.now_sec()
        answers = []
        effects: list[ev.Effect] = []
        count = 0
        while self._pending and not self._is_enough(effects, started_sec):
            event, answer = self._pending.popleft()
            count += 1
            try:
                caused = self._state.apply(event, now, ends_what_is_due=not is_listening)
            except Exception as error:
                # One event that the state rejects must not cost the others of this turn their answers.
                logger.exception("event failed", extra={"kind": type(event).__name__})
                if answer:
                    answer.set_exception(error)
                continue
            effects += caused
            if answer:
                answers.append((answer, caused))
        if not count:
            effects += self._state.apply(ev.Tick(), now, ends_what_is_due=not is_listening)
        self._pass_on_or_hold(Turn(self._commit(effects, now), answers))
        self._set_timer(now)
        took_sec = time.perf_counter() - started_sec
        if took_sec > _SLOW_TURN_SEC:
            logger.warning("slow turn", extra={"took_sec": round(took_sec, 3), "events": count})

    def _is_enough(self, effects: list[ev.Effect], started_sec: float) -> bool:
        """Tell whether this turn has done as much as other tasks can wait for."""
        is_much = len(effects) >= _TURN_EFFECTS or len(self._state.changes) >= _TURN_CHANGES
        return is_much or time.perf_counter() - started_sec >= _TURN_SEC

    def _is_listening(self) -> bool:
        """Tell whether timely messages may be unread, because the loop stalled a moment ago."""
        loop = asyncio.get_running_loop()
        now_sec = loop.time()
        late_sec = now_sec - self._beat.when() if self._beat else 0.0
        if late_sec > _STALL_SEC:
            self._listens_until_sec = now_sec + min(late_sec, _LONGEST_LISTENING_SEC)
            level = logging.WARNING if late_sec > _SHOWN_STALL_SEC else logging.DEBUG
            logger.log(level, "the tracker stood still", extra={"late_sec": round(late_sec, 3)})
        if self._beat is None or late_sec >= 0:
            if self._beat:
                self._beat.cancel()
            self._beat = loop.call_later(_BEAT_SEC, self._show_life)
        return now_sec < self._listens_until_sec

    def _show_life(self) -> None:
        self._is_listening()

    def _commit(self, effects: list[ev.Effect], now: float) -> list[ev.Effect]:
        """Write the changes and return the effects that may be sent."""
        self._collect()
        try:
            self._journal.write(self._unwritten)
        except DiskFull as error:
            return self._without_grants(effects, str(error), now)
        self._unwritten = Changes()
        if not self._state.journal_trouble:
            return effects
        logger.info("journal can be written again")
        effects += self._state.apply(ev.JournalRecovered(), now)
        return self._commit(effects, now)

    def _without_grants(self, effects: list[ev.Effect], message: str, now: float) -> list[ev.Effect]:
        if not self._state.journal_trouble:
            logger.error("journal cannot be written, no grants until it can", extra={"reason": message})
        untold = [effect for effect in effects if isinstance(effect, ev.Granted) and not effect.is_repeat]
        others = [effect for effect in effects if not isinstance(effect, ev.Granted) or effect.is_repeat]
        others += self._state.apply(ev.JournalFailed(tuple(effect.lease for effect in untold), message), now)
        self._collect()
        return others

    def _collect(self) -> None:
        changes = self._state.take_changes()
        self.observers.on_change(changes)
        self._unwritten.merge(changes)

    def _set_timer(self, now: float) -> None:
        """Schedule the next turn."""
        loop = asyncio.get_running_loop()
        if self._pending:
            if not self._is_scheduled:
                self._is_scheduled = True
                loop.call_soon(self._turn)
            return
        next_sec = self._state.next_timer_sec()
        wait_sec = _LONGEST_WAIT_SEC if next_sec is None else min(max(next_sec - now, 0.0), _LONGEST_WAIT_SEC)
        wait_sec = max(wait_sec, self._listens_until_sec - loop.time(), 0.001)
        if self._state.journal_trouble:
            wait_sec = min(wait_sec, _RETRY_SEC)
        at_sec = loop.time() + wait_sec
        if self._timer and self._timer.when() <= at_sec:
            return  # an early turn does no harm, and a new timer for each turn takes time
        if self._timer:
            self._timer.cancel()
        self._timer = loop.call_at(at_sec, self._take_timed_turn)

    def _take_timed_turn(self) -> None:
        self._timer = None
        self._turn()
