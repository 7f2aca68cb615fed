"""History of ended leases: an observer that hands rows to a thread, which writes them to history.sqlite.

Leases under ten seconds are summed by minute. A file that cannot be written costs no lease: rows wait in memory, up to
a limit, and the trouble is logged once.
"""

from __future__ import annotations

import logging
import math
import queue
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from fleet.base.clock import Clock
from fleet.tracker.core import events as ev
from fleet.tracker.core.queries import Queries
from fleet.tracker.core.records import LeaseEntry
from fleet.tracker.history_file import HistoryFile, LeaseRow
from fleet.tracker.messages import board_model
from fleet.tracker.observers import Observer

logger = logging.getLogger(__name__)

SHORT_SEC = 10.0
"""Shorter leases are summed by minute."""
_MINUTE_SEC = 60.0
_MAX_UNWRITTEN = 50_000
"""Leases that wait for a file that cannot be written; later ones are not recorded."""
_WRITE_SEC = 1.0
_CLOSE_SEC = 5.0

_ForecastOf: TypeAlias = Callable[[str], float | None]
_PRUNE_SEC = 3600.0


class LeaseHistory(Observer):
    """Ended leases on their way to the file."""

    def __init__(self, path: Path, queries: Queries, clock: Clock, forecast_of: _ForecastOf = lambda _: None) -> None:
        """Args:
        forecast_of: returns the wait that was forecast for the request of a lease [s].
        """
        self.path = path
        self._forecast_of = forecast_of
        self._queries = queries
        self._clock = clock
        self._ended: queue.SimpleQueue[LeaseRow] = queue.SimpleQueue()
        self._is_closing = threading.Event()
        self._writer = _Writer(path)
        self._thread = threading.Thread(target=self._run, name="lease history", daemon=True)

    def open(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Write everything. Idempotent."""
        self._is_closing.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SEC)

    def on_effect(self, effect: ev.Effect) -> None:
        """Note the end of a lease."""
        if isinstance(effect, ev.LeaseEnded) and effect.lease is not None and self._ended.qsize() < _MAX_UNWRITTEN:
            row = _row(effect, effect.lease, self._queries, self._clock.now_sec())
            row.forecast_sec = self._forecast_of(effect.lease.name)
            self._ended.put(row)

    def _run(self) -> None:
        is_closing = False
        while not is_closing:
            is_closing = self._is_closing.wait(_WRITE_SEC)
            for _ in range(self._ended.qsize()):
                self._writer.add(self._ended.get())
            self._writer.write(self._clock.now_sec(), is_last=is_closing)
        self._writer.close()


class _Writer:
    """Sums of short leases, and rows that are not written yet; used by the thread."""

    def __init__(self, path: Path) -> None:
        self._file = HistoryFile(path)
        self._unwritten: deque[LeaseRow] = deque(maxlen=_MAX_UNWRITTEN)
        self._short: dict[tuple[object, ...], LeaseRow] = {}
        self._pruned_sec = -math.inf
        self._is_broken = False

    def add(self, row: LeaseRow) -> None:
        """Add a lease, or add it to the sum of its minute."""
        if row.length_sec >= SHORT_SEC:
            self._unwritten.append(row)
            return
        row.ended_sec, row.forecast_sec = row.ended_sec // _MINUTE_SEC * _MINUTE_SEC, None
        key = (row.ended_sec, row.account, row.device, row.lease_class, row.end, row.wait_sec is None)
        total = self._short.setdefault(key, row)
        if total is not row:
            total.leases += 1
            total.length_sec += row.length_sec
            total.wait_sec = None if row.wait_sec is None else (total.wait_sec or 0.0) + row.wait_sec

    def write(self, now: float, *, is_last: bool) -> None:
        """Write ended leases, and the sums of past minutes."""
        past = [key for key, row in self._short.items() if is_last or row.ended_sec + _MINUTE_SEC <= now]
        self._unwritten.extend(map(self._short.pop, past))
        try:
            if self._unwritten:
                self._file.write(self._unwritten)
                self._unwritten.clear()
            if not self._pruned_sec <= now < self._pruned_sec + _PRUNE_SEC:
                self._pruned_sec = now
                self._file.prune(now)
        except (sqlite3.Error, OSError) as error:
            self._note_failure(error)
            return
        if self._is_broken:
            logger.info("lease history can be written again", extra={"path": str(self._file.path)})
        self._is_broken = False

    def close(self) -> None:
        self._file.close()

    def _note_failure(self, error: Exception) -> None:
        if not self._is_broken:
            logger.error(
                "lease history cannot be written; leases go on without it",
                extra={"path": str(self._file.path), "error": str(error)},
            )
        self._is_broken = True


def _row(effect: ev.LeaseEnded, lease: LeaseEntry, queries: Queries, now: float) -> LeaseRow:
    device = queries.device(lease.device_name)
    return LeaseRow(
        ended_sec=now,
        account=lease.account,
        holder=lease.holder,
        device=lease.device_name,
        model=board_model(device.description) if device else "",
        lease_class=lease.terms.lease_class.value,
        end=effect.end.name.lower(),
        leases=1,
        length_sec=max(now - lease.granted_at_sec, 0.0),
        wait_sec=max(lease.granted_at_sec - lease.asked_at_sec, 0.0) if lease.asked_at_sec else None,
        forecast_sec=None,
    )
