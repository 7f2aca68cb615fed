"""Forecasts out of schedulings, corrected by the waits that followed. Pure.

Schedulings leave out later arrivals, which matter more the longer the wait and the higher the account's use. A linear
regression over the latest waits of the class corrects their median. It predicts the logarithm of the wait from that of
the median, the age of the oldest request in the lane, and the rank of the account's use.

The interval comes from the ratios of actual to corrected waits, the latest ones of the class: four of five waits lie in
it whatever the regression leaves out (split conformal prediction: Lei et al., JASA 2018). The expected wait is the most
likely one: as many of the similar waits as possible lie within 40 % of it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from sortedcontainers import SortedList

from fleet.domain.lease_class import LeaseClass
from fleet.domain.waits import Forecast

_INTERVAL_WAITS = 150
_REMEMBERED_WAITS = 1000
_SIMILAR_WAITS = 150
_LEAST_WAITS = 8
"""Fewer waits of a class calibrate nothing."""
_LEAST_FITTED = 30
"""Fewer waits of a class give no regression."""
_RIDGE = 0.1
"""Added to the diagonal of the normal equations, so that constant features do no harm."""
_TOLERANCE = 0.4
"""Error, as a share of the wait, up to which an expected wait is right."""

_LONGEST_LOG = 20.0
"""Logarithm of 15 years [s]: a regression may go wrong far from all earlier waits."""

_Features: TypeAlias = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Said:
    """A forecast as it was made, to be compared with the wait that follows."""

    kind: tuple[LeaseClass, bool]
    """Class of the request, and True for a set."""
    features: _Features
    log_sec: float
    """Logarithm of the corrected wait."""
    forecast: Forecast


class Calibration:
    """The latest waits of each class, with their forecasts."""

    def __init__(self) -> None:
        self._waits = {(each, is_set): _Waits() for each in LeaseClass for is_set in (False, True)}

    def add(self, said: Said, actual_sec: float) -> None:
        """Add the wait of a served request."""
        self._waits[said.kind].add(said, _log(actual_sec))

    def forecast(
        self,
        lease_class: LeaseClass,
        starts_sec: Iterable[float],
        *,
        is_set: bool = False,
        lane_age_sec: float = 0.0,
        use_rank: float = 0.0,
        now: float = 0.0,
    ) -> Said | None:
        """Return the forecast of a request; None without schedulings.

        Args:
            starts_sec: rest of its wait in each scheduling [s].
            lane_age_sec: age of the oldest request with its account, class and selector [s].
            use_rank: share of all accounts that have had less, 0 to 1.
            now: added to the times of the forecast.
        """
        starts = sorted(starts_sec)
        if not starts:
            return None
        kind, median = (lease_class, is_set), _log(quantile(starts, 0.5))
        waits = self._waits[kind]
        features = (1.0, median, _log(lane_age_sec), use_rank)
        log_sec = median + waits.correction(features)
        if waits.count < _LEAST_WAITS:
            low, middle, high = (quantile(starts, share) for share in (0.1, 0.5, 0.9))
        else:
            low, high = (_sec(log_sec + error) for error in waits.interval())
            middle = min(max(_sec(log_sec + waits.likely_error(log_sec)), low), high)
        return Said(kind, features, log_sec, Forecast(from_sec=now + low, expected_sec=now + middle, by_sec=now + high))


class _Waits:
    """The latest waits of one class. Errors are logarithms of the ratio of the actual to the corrected wait."""

    def __init__(self) -> None:
        self._latest: deque[tuple[Said, float]] = deque()
        """Forecasts with the logarithm of the wait."""
        self._by_said = SortedList()
        """Logarithm of the corrected wait, and its error."""
        self._sums = [[0.0] * 5 for _ in range(4)]
        """Normal equations of the regression: products of features, and of features with the correction."""
        self._weights: Sequence[float] | None = None
        self._interval: tuple[float, float] | None = None

    @property
    def count(self) -> int:
        """Number of waits."""
        return len(self._latest)

    def add(self, said: Said, log_wait: float) -> None:
        """Add a wait, and forget the oldest one if there are too many."""
        self._latest.append((said, log_wait))
        self._by_said.add((said.log_sec, log_wait - said.log_sec))
        self._count(said.features, log_wait, 1.0)
        if len(self._latest) > _REMEMBERED_WAITS:
            oldest, former = self._latest.popleft()
            self._by_said.remove((oldest.log_sec, former - oldest.log_sec))
            self._count(oldest.features, former, -1.0)
        self._weights = self._interval = None

    def correction(self, features: _Features) -> float:
        """Return the logarithm of the expected ratio of the wait to the median of its schedulings."""
        if len(self._latest) < _LEAST_FITTED:
            return 0.0
        if self._weights is None:
            self._weights = _solved(self._sums)
        return sum(map(float.__mul__, self._weights, features))

    def interval(self) -> tuple[float, float]:
        """Return the errors that one wait in ten is below, and one in ten above."""
        if self._interval is None:
            latest = (self._latest[-1 - index] for index in range(min(len(self._latest), _INTERVAL_WAITS)))
            errors = sorted(log_wait - said.log_sec for said, log_wait in latest)
            self._interval = quantile(errors, 0.1), quantile(errors, 0.9)
        return self._interval

    def likely_error(self, log_sec: float) -> float:
        """Return the most likely error of the forecasts that are most similar to one."""
        first = self._by_said.bisect_left((log_sec, 0.0)) - _SIMILAR_WAITS // 2
        first = max(min(first, len(self._by_said) - _SIMILAR_WAITS), 0)
        return most_likely(sorted(error for _, error in self._by_said[first : first + _SIMILAR_WAITS]))

    def _count(self, features: _Features, log_wait: float, sign: float) -> None:
        values = (*features, log_wait - features[1])
        for row, feature in zip(self._sums, features, strict=True):
            for column, value in enumerate(values):
                row[column] += sign * feature * value


def most_likely(ordered: Sequence[float]) -> float:
    """Return the logarithm of the forecast that is right for the most waits, within 40 % of the wait.

    Args:
        ordered: sorted logarithms of waits, at least one.
    """
    low_side, high_side = math.log(1 - _TOLERANCE), math.log(1 + _TOLERANCE)
    end, most, middle = 0, 0, 0.0
    for start, lowest in enumerate(ordered):
        while end < len(ordered) and ordered[end] <= lowest + high_side - low_side:
            end += 1
        if end - start >= most:  # at equal counts the longer one
            most, middle = end - start, (lowest + ordered[end - 1]) / 2
    return middle + (high_side + low_side) / 2


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile of sorted numbers, at least one, by linear interpolation."""
    place = share * (len(ordered) - 1)
    index = int(place)
    following = ordered[min(index + 1, len(ordered) - 1)]
    return ordered[index] + (place - index) * (following - ordered[index])


def _solved(sums: Sequence[Sequence[float]]) -> list[float]:
    """Return the weights of a ridge regression by Gauss-Jordan elimination of its normal equations."""
    rows = [[value + _RIDGE * (at == number) for at, value in enumerate(row)] for number, row in enumerate(sums)]
    for number, pivot in enumerate(rows):
        rows[number] = pivot = [value / pivot[number] for value in pivot]
        for other, row in enumerate(rows):
            if other != number:
                rows[other] = [value - row[number] * each for value, each in zip(row, pivot, strict=True)]
    return [row[-1] for row in rows]


def _log(sec: float) -> float:
    """Return the logarithm of a wait, with a second added so that errors of a second are small."""
    return math.log1p(sec)


def _sec(log_sec: float) -> float:
    return max(math.expm1(min(log_sec, _LONGEST_LOG)), 0.0)
