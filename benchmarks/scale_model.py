"""A model of a fleet: boards that measure, builders that search and build for them, and the waits of both.

Each board has its own batches: one is searched on one core, its candidates are built on as many as are free, and the
batch waits until the board has measured those before. A board never waits longer than it must: while it measures, the
next batch is made. Builders take tasks in order, each machine its own, as Dask does without work stealing. Numbers in,
numbers out; time is simulated.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Size and costs of a fleet. Processor times are those of one core [s]."""

    boards: int
    builders: int
    cores: int
    """Of each builder."""

    search_sec: float
    """Per candidate."""

    build_sec: float
    """Per candidate."""

    device_sec: float
    """Per trial, on the board."""

    turn_sec: float
    """Between two batches on a board: a lease, an upload, the first answer."""

    batch: int = 8
    ahead: int = 1
    """Batches that are made while one is measured."""

    steals: bool = False
    """Builders share one queue instead: the most that work stealing could bring."""

    deaths: int = 0
    """Builders that are killed half-way, all at once; their tasks begin anew elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Results, in the steady part of the simulation."""

    share: float
    """Of the boards' time in which they measured."""

    core_share: float
    """Of the living builders' time in which they worked."""

    trials_per_sec: float
    turns_per_sec: float
    """Batches measured: each takes a lease."""

    tasks_per_sec: float
    """Searches, builds and deliveries."""


def simulate(site: Site, *, batches: int = 12, seed: int = 0) -> Outcome:
    """Run until boards that never wait would have measured so many batches; count from a third of that on.

    Times vary by a half around their mean.
    """
    run = _Run(site, seed)
    ends_at = batches * (site.turn_sec + site.batch * site.device_sec)
    run.run(starts_at=ends_at / 3, ends_at=ends_at)
    window = ends_at * 2 / 3
    return Outcome(
        share=run.measured_sec / (window * site.boards),
        core_share=run.worked_sec / (window * site.cores * (site.builders - site.deaths)),
        trials_per_sec=run.turns * site.batch / window,
        turns_per_sec=run.turns / window,
        tasks_per_sec=(run.tasks + run.turns) / window,
    )


@dataclass(slots=True)
class _Task:
    sec: float
    done: Callable[[], None]


@dataclass(slots=True)
class _Queue:
    """One machine's cores, or all machines' if they share a queue."""

    cores: int
    waiting: deque[_Task] = field(default_factory=deque)
    running: dict[int, tuple[_Task, float]] = field(default_factory=dict)
    """Tasks by number, with their start times."""

    @property
    def occupancy(self) -> float:
        return (len(self.waiting) + len(self.running)) / self.cores


@dataclass(slots=True)
class _Board:
    home: _Queue
    ready: int = 0
    is_making: bool = False
    measures_from: float | None = None
    """None: it measures nothing."""

    left: int = 0


class _Run:
    def __init__(self, site: Site, seed: int) -> None:
        self._site = site
        self._chance = random.Random(seed)
        self._numbers = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._now = self._starts_at = self._ends_at = 0.0
        count, cores = (1, site.builders * site.cores) if site.steals else (site.builders, site.cores)
        self._queues = [_Queue(cores) for _ in range(count)]
        self._boards = [_Board(self._queues[number % count]) for number in range(site.boards)]
        self.measured_sec = self.worked_sec = 0.0
        self.turns = self.tasks = 0

    def run(self, *, starts_at: float, ends_at: float) -> None:
        self._starts_at, self._ends_at = starts_at, ends_at
        for board in self._boards:
            self._make(board)
        if self._site.deaths:
            self._at(ends_at / 2, self._kill)
        while self._events and self._events[0][0] <= ends_at:
            self._now, _, act = heapq.heappop(self._events)
            act()
        self._now = ends_at
        self.measured_sec += sum(self._counted(board.measures_from) for board in self._boards)
        self.worked_sec += sum(self._counted(at) for queue in self._queues for _, at in queue.running.values())

    def _make(self, board: _Board) -> None:
        """Search for a board's next batch, unless it has enough."""
        if board.is_making or board.ready >= self._site.ahead:
            return
        board.is_making = True
        if board.home not in self._queues:
            board.home = self._idlest()
        self._submit(board.home, self._site.search_sec * self._site.batch, lambda: self._build(board))

    def _build(self, board: _Board) -> None:
        board.left = self._site.batch
        for _ in range(self._site.batch):
            self._submit(self._idlest(), self._site.build_sec, lambda: self._built(board))

    def _built(self, board: _Board) -> None:
        board.left -= 1
        if board.left == 0:
            board.is_making = False
            board.ready += 1
            self._measure(board)
            self._make(board)

    def _measure(self, board: _Board) -> None:
        if board.measures_from is not None or not board.ready:
            return
        board.measures_from, board.ready = self._now + self._site.turn_sec, board.ready - 1
        measuring_sec = self._around(self._site.batch * self._site.device_sec)
        self._at(board.measures_from + measuring_sec, lambda: self._measured(board))
        self._make(board)

    def _measured(self, board: _Board) -> None:
        self.measured_sec += self._counted(board.measures_from)
        board.measures_from = None
        self.turns += self._now > self._starts_at
        self._measure(board)

    def _submit(self, queue: _Queue, sec: float, done: Callable[[], None]) -> None:
        queue.waiting.append(_Task(self._around(sec), done))
        self._fill(queue)

    def _fill(self, queue: _Queue) -> None:
        while queue.waiting and len(queue.running) < queue.cores:
            task, number = queue.waiting.popleft(), next(self._numbers)
            queue.running[number] = task, self._now
            self._at(self._now + task.sec, partial(self._end, queue, number))

    def _end(self, queue: _Queue, number: int) -> None:
        if number not in queue.running:  # its builder was killed
            return
        task, begun_at = queue.running.pop(number)
        self.worked_sec += self._counted(begun_at)
        self.tasks += self._now > self._starts_at
        task.done()
        self._fill(queue)

    def _kill(self) -> None:
        dead, self._queues = self._queues[: self._site.deaths], self._queues[self._site.deaths :]
        for queue in dead:
            lost = [*(task for task, _ in queue.running.values()), *queue.waiting]
            queue.running.clear()
            queue.waiting.clear()
            for task in lost:
                self._submit(self._idlest(), task.sec, task.done)

    def _idlest(self) -> _Queue:
        """Return the less busy of two at random: as good as the least busy of all, and as quick with a thousand."""
        return min(
            self._chance.choice(self._queues), self._chance.choice(self._queues), key=lambda queue: queue.occupancy
        )

    def _around(self, sec: float) -> float:
        return sec * self._chance.uniform(0.5, 1.5)

    def _counted(self, begun_at: float | None) -> float:
        """Return the share of the time since then."""
        return 0.0 if begun_at is None else max(0.0, self._now - max(begun_at, self._starts_at))

    def _at(self, sec: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (sec, next(self._numbers), act))
