"""Schedulings of the queue, for forecasts of the moments at which waiting requests are served. Pure; the randomness is
a seeded generator.

The queue is scheduled 24 times as it is now, without later arrivals. Each time, live and coming leases last as long as
ended leases of the same account, class and board model did. `fleet.tracker.calibration` makes a forecast of the starts.

A forecast binds nobody: no lease ends because it was forecast to.
"""

from __future__ import annotations

import heapq
import math
import random
from bisect import bisect_left, insort
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from itertools import count as count_up
from typing import TypeAlias

from fleet.domain.lease_class import LeaseClass
from fleet.tracker.calibration import quantile
from fleet.tracker.core.lanes import Place
from fleet.tracker.core.outlook import Board, Key, Lane, Outlook

SCHEDULINGS = 24
_REMEMBERED_LENGTHS = 256
_LEAST_LENGTHS = 5
"""A group of ended leases with fewer is too small to draw from."""
_MAX_GROUPS = 8_192
"""Limit of remembered groups of leases, since accounts come and go."""
_STEPS = 128
"""Boards or grants between two yields: under 1 ms."""

_End: TypeAlias = tuple[float, int, Board]
"""End of a lease, number for equal ends, and its board."""
_Rank: TypeAlias = tuple[float, str, Place, int]
"""Place of a lane in the order of service: use of its account, account, place of its first request, its number."""


class Lengths:
    """Lengths of ended leases, by account, class and board model."""

    def __init__(self) -> None:
        self._latest: defaultdict[tuple[str, ...], deque[float]] = defaultdict(deque)
        self._sorted: defaultdict[tuple[str, ...], list[float]] = defaultdict(list)

    def __len__(self) -> int:
        return len(self._latest)

    def add(self, account: str, lease_class: LeaseClass, model: str, sec: float) -> None:
        """Add an ended lease."""
        for key in _groups(account, lease_class, model):
            if key not in self._latest:
                self._make_room()
            latest, ordered = self._latest[key], self._sorted[key]
            latest.append(sec)
            insort(ordered, sec)
            if len(latest) > _REMEMBERED_LENGTHS:
                del ordered[bisect_left(ordered, latest.popleft())]

    def rest_sec(self, account: str, lease_class: LeaseClass, model: str, age_sec: float) -> float | None:
        """Return the expected rest of a live lease [s]: the median of like leases that lasted at least as long.

        None: none is known.
        """
        ordered = self.like(account, lease_class, model)
        first = bisect_left(ordered, age_sec)
        return quantile(ordered[first:], 0.5) - age_sec if first < len(ordered) else None

    def _make_room(self) -> None:
        """Forget the oldest group of an account when there are too many."""
        if len(self._latest) >= _MAX_GROUPS and (oldest := next((key for key in self._latest if key[0]), None)):
            del self._latest[oldest], self._sorted[oldest]

    def like(self, account: str, lease_class: LeaseClass, model: str) -> Sequence[float]:
        """Return sorted lengths of the most similar leases that are known well enough; empty if none are known."""
        found: Sequence[float] = ()
        for key in _groups(account, lease_class, model):
            found = self._sorted.get(key) or found
            if len(found) >= _LEAST_LENGTHS:
                break
        return found


def _groups(account: str, lease_class: LeaseClass, model: str) -> Iterator[tuple[str, ...]]:
    """Yield the groups of a lease, the most similar leases first."""
    yield account, lease_class, model
    yield account, lease_class
    yield "", lease_class, model
    yield "", lease_class


class _Assembly:
    """A set in a scheduling, from its first board until it has all. It goes before all requests without a board, so
    that no two sets wait for each other.
    """

    def __init__(self, number: int, lane: Lane) -> None:
        """Args:
        number: of its lane.
        """
        self.number = number
        self._lacking = sorted(lane.members, key=len)
        self._boards: list[Board] = []

    def wants(self, board: Board) -> bool:
        """Return True if a board suits a member that has none."""
        return any(board.pool in pools for pools in self._lacking)

    def take(self, board: Board) -> list[Board]:
        """Take a board, and return all boards if none is lacking any more."""
        self._lacking.remove(next(pools for pools in self._lacking if board.pool in pools))
        self._boards.append(board)
        return [] if self._lacking else self._boards


def _first_taker(assemblies: deque[_Assembly], board: Board) -> _Assembly | None:
    """Return the first assembling set that lacks a board of this pool. Drop sets from the front that do not."""
    while assemblies and not assemblies[0].wants(board):
        assemblies.popleft()
    return assemblies[0] if assemblies and not board.booked else None


class Schedulings:
    """Schedulings of one outlook."""

    def __init__(self, outlook: Outlook, lengths: Lengths, seed: int, *, most_grants: int = 2_000) -> None:
        """Args:
        most_grants: grants of one scheduling; later requests get no forecast.
        """
        self._outlook = outlook
        self._lengths = lengths
        self._rng = random.Random(seed)
        self._most_grants = most_grants
        self._samples: dict[tuple[str, LeaseClass, str], Sequence[float]] = {}
        self._lanes_of: dict[int, list[list[int]]] = defaultdict(lambda: [[] for _ in LeaseClass])
        """Numbers of the lanes that a pool serves, by class."""
        for number, lane in enumerate(outlook.lanes):
            for pool in lane.pools:
                self._lanes_of[pool][lane.lease_class.rank].append(number)
        self._orders: dict[int, list[list[_Rank]]] = {}
        """Lanes of a pool in the order of service at first, a heap for each class."""
        self.starts_sec: dict[Key, list[float]] = defaultdict(list)
        """Rests of the wait of each request [s], one for each scheduling that served it."""
        self.is_known = True
        """False if a lease was drawn for which no ended one is known."""

    def run(self, target: Key | None = None) -> Iterator[None]:
        """Schedule once, and yield after each portion; stop early once the target is served."""
        lanes, uses, heads = self._outlook.lanes, dict(self._outlook.uses), [0] * len(self._outlook.lanes)
        orders: dict[int, list[list[_Rank]]] = {}
        assemblies: defaultdict[int, deque[_Assembly]] = defaultdict(deque)  # by pool
        ends: list[_End] = []
        for count, board in enumerate(self._outlook.boards):
            ends.append((self._rest_sec(board), count, board))
            if count % _STEPS == _STEPS - 1:
                yield
        yield from self._give_way(ends)
        heapq.heapify(ends)
        yield
        count, grants = len(ends), 0
        for step in count_up(1):
            if step % _STEPS == 0:
                yield
            if not ends or grants >= self._most_grants:
                return
            now, _, board = heapq.heappop(ends)
            if board.pool not in orders:
                orders[board.pool] = [list(order) for order in self._order(board.pool)]
                yield
            booking = board.next_booking(now) if board.booked else None
            taker = _first_taker(assemblies[board.pool], board) if assemblies else None
            if taker is not None:
                number = taker.number
            elif booking is None:
                number = self._next(orders[board.pool], heads, uses)
            else:
                yield  # compares all lanes of the pool
                number = self._next_before(booking[0] - now, board.pool, heads, uses)
            count += 1
            if number < 0:
                if booking is not None:
                    heapq.heappush(ends, (booking[1], count, board))
                continue  # nobody waits for the board any more, or nobody whose lease ends in time
            lane, head, taken = lanes[number], heads[number], [board]
            if taker is None:
                heads[number] += 1
                if lane.members:
                    taker = _Assembly(number, lane)
                    for pool in lane.pools:
                        assemblies[pool].append(taker)
            if taker is not None:
                head, taken = 0, taker.take(board)
                if not taken:
                    continue
            self.starts_sec[lane.keys[head]].append(now)
            if lane.keys[head] == target:
                return
            limit_sec = math.inf if booking is None else booking[0]
            for each in taken:
                grants += 1
                length_sec = self._draw(lane.account, lane.lease_class, each.model)
                uses[lane.account] = uses.get(lane.account, 0.0) + length_sec / lane.weight
                count += 1
                heapq.heappush(ends, (min(now + length_sec, limit_sec), count, each))

    def _order(self, pool: int) -> list[list[_Rank]]:
        """Return the lanes that a pool serves, before any grant: a heap for each class."""
        found = self._orders.get(pool)
        if found is None:
            lanes, uses = self._outlook.lanes, self._outlook.uses
            found = self._orders[pool] = [
                [
                    (uses.get(lanes[number].account, 0.0), lanes[number].account, lanes[number].places[0], number)
                    for number in numbers
                ]
                for numbers in self._lanes_of.get(pool, ())
            ]
            for order in found:
                heapq.heapify(order)
        return found

    def _next(self, orders: list[list[_Rank]], heads: Sequence[int], uses: Mapping[str, float]) -> int:
        """Return the number of the lane that a board serves next: by class, use, and place; -1: none.

        Grants only move a lane back in the order, so that an outdated rank is found at the front of its heap.
        """
        lanes = self._outlook.lanes
        for order in orders:
            while order:
                number = order[0][-1]
                lane, head = lanes[number], heads[number]
                if head >= len(lane.keys):
                    heapq.heappop(order)
                    continue
                rank = uses.get(lane.account, 0.0), lane.account, lane.places[head], number
                if rank == order[0]:
                    return number
                heapq.heapreplace(order, rank)
        return -1

    def _next_before(self, left_sec: float, pool: int, heads: Sequence[int], uses: Mapping[str, float]) -> int:
        """Return the number of the first lane, in order, whose next lease ends before a booking; -1: none."""
        for numbers in self._lanes_of[pool] if left_sec > 0 else ():
            fitting = [
                (uses.get(lane.account, 0.0), lane.account, lane.places[heads[number]], number)
                for number in numbers
                if heads[number] < len((lane := self._outlook.lanes[number]).keys)
                and lane.leaves_alone(heads[number], left_sec, self._outlook.yield_sec)
            ]
            if fitting:
                return min(fitting)[-1]
        return -1

    def _give_way(self, ends: list[_End]) -> Iterator[None]:
        """Let batch leases end soon, one for each request of a higher class; yield after each portion."""
        lanes = self._outlook.lanes
        left = [0 if lane.lease_class is LeaseClass.BATCH else len(lane.members or lane.keys) for lane in lanes]
        if not any(left):
            return
        waiting: dict[int, list[int]] = {}
        for index, (end_sec, count, board) in enumerate(ends):
            if index % _STEPS == 0:
                yield
            if board.held is None or board.held.lease_class is not LeaseClass.BATCH:
                continue
            if board.pool not in waiting:
                waiting[board.pool] = sorted(chain.from_iterable(self._lanes_of.get(board.pool, ())), reverse=True)
            numbers = waiting[board.pool]
            while numbers and not left[numbers[-1]]:
                numbers.pop()
            if numbers and self._may_begin(numbers[-1], board):
                left[numbers[-1]] -= 1
                ends[index] = min(end_sec, self._rng.random() * self._outlook.yield_sec), count, board

    def _may_begin(self, number: int, board: Board) -> bool:
        """Return True if the next booking of a board leaves room for the first request of a lane."""
        lane = self._outlook.lanes[number]
        return not board.booked or lane.leaves_alone(0, board.booked[0][0], self._outlook.yield_sec)

    def _rest_sec(self, board: Board) -> float:
        """Draw the rest of a live lease, which ends at the start of the next booking at the latest."""
        rest_sec = self._lasting_sec(board)
        return min([rest_sec, *(start for start, _ in board.booked if start > 0)]) if board.booked else rest_sec

    def _lasting_sec(self, board: Board) -> float:
        """Draw the rest of a live lease from those that lasted at least as long."""
        held = board.held
        if held is None:
            return 0.0
        sample = self._sample(held.account, held.lease_class, board.model)
        first = bisect_left(sample, held.age_sec)
        if first < len(sample):
            return sample[first + int(self._rng.random() * (len(sample) - first))] - held.age_sec
        return held.age_sec * self._rng.random() + 1.0  # none lasted as long: up to twice its age

    def _draw(self, account: str, lease_class: LeaseClass, model: str) -> float:
        sample = self._sample(account, lease_class, model)
        return sample[int(self._rng.random() * len(sample))] if sample else 0.0

    def _sample(self, account: str, lease_class: LeaseClass, model: str) -> Sequence[float]:
        key = account, lease_class, model
        found = self._samples.get(key)
        if found is None:
            found = self._samples[key] = tuple(self._lengths.like(*key))
            self.is_known = self.is_known and bool(found)
        return found
