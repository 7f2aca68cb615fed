"""Waiting for a device to cool down."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from device_agents.measuring.cooldown import Rest, cool_down
from fleet.domain.measuring import Disturbance, DisturbanceKind, Evaluator


class Board:
    """Cools by a degree in half a second of pretended time, down to `coolest_c`."""

    def __init__(self, temp_c: float, coolest_c: float = 20.0) -> None:
        self.temp_c = temp_c
        self.coolest_c = coolest_c
        self.now_sec = 0.0

    async def read_temp_c(self) -> float | None:
        return self.temp_c

    async def read_nothing(self) -> None:
        return None

    async def sleep(self, sec: float) -> None:
        self.now_sec += sec
        self.temp_c = max(self.coolest_c, self.temp_c - 2 * sec)

    async def rest(
        self, evaluator: Evaluator, read_temp_c: Callable[[], Awaitable[float | None]] | None = None
    ) -> Rest:
        return await cool_down(evaluator, read_temp_c or self.read_temp_c, sleep=self.sleep, clock=lambda: self.now_sec)


async def test_there_is_no_cooldown_without_a_limit() -> None:
    """Without a limit a hot board is measured at once."""
    assert await Board(90).rest(Evaluator(cooldown_interval_ms=500)) == Rest()


async def test_a_cool_device_is_measured_at_once() -> None:
    """The limit is met already."""
    assert await Board(40).rest(Evaluator(cool_below_c=50)) == Rest()


async def test_a_warm_device_rests_until_it_is_cool() -> None:
    """It rests as long as it takes and not much longer."""
    board = Board(60)

    rest = await board.rest(Evaluator(cool_below_c=50))

    assert rest.waited_sec == pytest.approx(5, abs=0.3)
    assert rest.disturbance is None


async def test_one_that_stays_warm_is_measured_and_marked() -> None:
    """It is measured after the time that the client gave it, or after half a minute."""
    board = Board(80, coolest_c=71)

    rest = await board.rest(Evaluator(cool_below_c=50, cool_timeout_ms=8000))

    warm = Disturbance(DisturbanceKind.STILL_WARM, "still 71 C after 8 s, above 50 C")
    assert rest == Rest(waited_sec=pytest.approx(8), disturbance=warm)
    assert (await board.rest(Evaluator(cool_below_c=50))).waited_sec == pytest.approx(30)


async def test_without_a_sensor_it_rests_by_time() -> None:
    """It rests for the evaluator's interval, and no disturbance is reported."""
    board = Board(80)

    rest = await board.rest(Evaluator(cool_below_c=50, cooldown_interval_ms=700), board.read_nothing)

    assert rest == Rest(waited_sec=pytest.approx(0.7))
