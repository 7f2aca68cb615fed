"""Forecasts of requests that wait for a booking of their account. Pure; the randomness is a seeded generator.

The first ones start with the booking, one on each of its boards, and the others as leases of the booking end. Nobody
else is served before them, so their forecasts are not calibrated.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence

from fleet.domain.waits import Forecast
from fleet.tracker.calibration import quantile
from fleet.tracker.core.outlook import BookedLane, Key
from fleet.tracker.lengths import Draws, Lengths


def booked_forecasts(
    lanes: Sequence[BookedLane], lengths: Lengths, seed: int, now: float, *, scheduling_count: int
) -> Generator[None, None, dict[Key, Forecast]]:
    """Return forecasts of the requests that are likely to start before their booking ends; yields after each portion.

    A request has none if it depends on leases for which no ended one is known.
    """
    found = {}
    rng = random.Random(seed)
    for lane in lanes:
        starts_sec: dict[Key, list[float]] = defaultdict(list)
        for _ in range(scheduling_count):
            for key, start_sec in _starts(lane, Draws(lengths, rng)):
                starts_sec[key].append(start_sec)
            yield
        for key, starts in starts_sec.items():
            if 2 * len(starts) > scheduling_count:
                low, middle, high = (now + quantile(sorted(starts), share) for share in (0.1, 0.5, 0.9))
                found[key] = Forecast(from_sec=low, expected_sec=middle, by_sec=high)
        yield
    return found


def _starts(lane: BookedLane, draws: Draws) -> Iterator[tuple[Key, float]]:
    """Yield the requests that are served in one scheduling, with their starts."""

    def known(sec: float) -> float:
        return sec if draws.is_known else math.inf

    starts_sec, ends_sec = lane.span
    ends = [(max(starts_sec, 0.0), index) for index, board in enumerate(lane.boards) if board.held is None]
    for index, board in enumerate(lane.boards):
        if board.held is not None:
            ends.append((known(draws.rest_sec(board.held, board.model)), index))
    heapq.heapify(ends)
    for key, lease_class in lane.requests:
        if not ends or ends[0][0] >= ends_sec:
            return
        now, index = ends[0]
        yield key, now
        length_sec = draws.length_sec(lane.account, lease_class, lane.boards[index].model)
        heapq.heapreplace(ends, (known(now + length_sec), index))
