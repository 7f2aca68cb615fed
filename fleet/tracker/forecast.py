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
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from itertools import count as count_up
from typing import TypeAlias

from fleet.domain.lease_class import LeaseClass
from fleet.tracker.core.lanes import Place
from fleet.tracker.core.outlook import Board, Key, Lane, Outlook, Span
from fleet.tracker.lengths import Draws, Lengths

SCHEDULINGS = 24
_STEPS = 128
"""Boards or grants between two yields: under 1 ms."""

_End: TypeAlias = tuple[float, int, Board]
"""End of a lease, number for equal ends, and its board."""
_Rank: TypeAlias = tuple[float, str, Place, int]
"""Place of a lane in the order of service: use of its account, account, place of its first request, its number."""


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


class _Plan:
    """State of one scheduling."""

    def __init__(self, outlook: Outlook) -> None:
        self._lanes = outlook.lanes
        self.uses = dict(outlook.uses)
        self.heads = [0] * len(outlook.lanes)
        """First waiting request of each lane."""
        self.orders: dict[int, list[list[_Rank]]] = {}
        """Lanes in the order of service, by pool: a heap for each class."""
        self.assemblies: defaultdict[int, deque[_Assembly]] = defaultdict(deque)
        """Assembling sets, by pool."""
        self.ends: list[_End] = []
        self.grants = 0
        self._pushed = len(outlook.boards)

    def push(self, sec: float, board: Board) -> None:
        """Add the moment at which a board comes free."""
        heapq.heappush(self.ends, (sec, self._pushed, board))
        self._pushed += 1

    def take(self, number: int, board: Board, taker: _Assembly | None) -> tuple[Key, Sequence[Board]] | None:
        """Give a board to a lane; return the request that starts, with its boards; None: a set lacks more.

        Args:
            number: of the lane.
            taker: set that is assembling already, if the lane is one.
        """
        lane, head = self._lanes[number], self.heads[number]
        if taker is None:
            self.heads[number] += 1
            if not lane.members:
                return lane.keys[head], [board]
            taker = _Assembly(number, lane)
            for pool in lane.pools:
                self.assemblies[pool].append(taker)
        taken = taker.take(board)
        return (lane.keys[0], taken) if taken else None


class Schedulings:
    """Schedulings of one outlook."""

    def __init__(self, outlook: Outlook, lengths: Lengths, seed: int, *, most_grants: int = 2_000) -> None:
        """Args:
        most_grants: grants of one scheduling; later requests get no forecast.
        """
        self._outlook = outlook
        self._rng = random.Random(seed)
        self._draws = Draws(lengths, self._rng)
        self._most_grants = most_grants
        self._lanes_of: dict[int, list[list[int]]] = defaultdict(lambda: [[] for _ in LeaseClass])
        """Numbers of the lanes that a pool serves, by class."""
        for number, lane in enumerate(outlook.lanes):
            for pool in lane.pools:
                self._lanes_of[pool][lane.lease_class.rank].append(number)
        self._orders: dict[int, list[list[_Rank]]] = {}
        """Lanes of a pool in the order of service at first, a heap for each class."""
        self.starts_sec: dict[Key, list[float]] = defaultdict(list)
        """Rests of the wait of each request [s], one for each scheduling that served it."""

    @property
    def is_known(self) -> bool:
        """False if a lease was drawn for which no ended one is known."""
        return self._draws.is_known

    def run(self, target: Key | None = None) -> Iterator[None]:
        """Schedule once, and yield after each portion; stop early once the target is served."""
        plan = _Plan(self._outlook)
        yield from self._begin(plan)
        for step in count_up(1):
            if step % _STEPS == 0:
                yield
            if not plan.ends or plan.grants >= self._most_grants:
                return
            now, _, board = heapq.heappop(plan.ends)
            if board.pool not in plan.orders:
                plan.orders[board.pool] = [list(order) for order in self._order(board.pool)]
                yield
            booking = board.next_booking(now) if board.booked else None
            taker = _first_taker(plan.assemblies[board.pool], board) if plan.assemblies else None
            if booking is not None:
                yield  # compares all lanes of the pool
            number = self._next_lane(plan, board, now, booking) if taker is None else taker.number
            if number < 0:
                if booking is not None:  # nobody's lease ends in time
                    plan.push(booking[1], board)
            elif started := plan.take(number, board, taker):
                key, boards = started
                self.starts_sec[key].append(now)
                if key == target:
                    return
                self._grant(plan, self._outlook.lanes[number], boards, now, booking)

    def _begin(self, plan: _Plan) -> Iterator[None]:
        """Draw the ends of live leases; yield after each portion."""
        for count, board in enumerate(self._outlook.boards):
            plan.ends.append((self._rest_sec(board), count, board))
            if count % _STEPS == _STEPS - 1:
                yield
        yield from self._give_way(plan.ends)
        heapq.heapify(plan.ends)
        yield

    def _next_lane(self, plan: _Plan, board: Board, now: float, booking: Span | None) -> int:
        """Return the number of the lane that a free board serves; -1: none."""
        if booking is None:
            return self._next(plan.orders[board.pool], plan.heads, plan.uses)
        return self._next_before(booking[0] - now, board.pool, plan.heads, plan.uses)

    def _grant(self, plan: _Plan, lane: Lane, boards: Sequence[Board], now: float, booking: Span | None) -> None:
        """Lease boards to a request, until the next booking at the latest."""
        for board in boards:
            length_sec = self._draws.length_sec(lane.account, lane.lease_class, board.model)
            plan.uses[lane.account] = plan.uses.get(lane.account, 0.0) + length_sec / lane.weight
            plan.grants += 1
            plan.push(min(now + length_sec, math.inf if booking is None else booking[0]), board)

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
            if (held := board.held) is None or held.lease_class is not LeaseClass.BATCH or held.is_safe:
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
        rest_sec = 0.0 if board.held is None else self._draws.rest_sec(board.held, board.model)
        return min([rest_sec, *(start for start, _ in board.booked if start > 0)]) if board.booked else rest_sec
