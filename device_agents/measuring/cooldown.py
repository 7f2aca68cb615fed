"""Waits before a measurement until the device is cool: by its sensor if it has one, else by time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fleet.domain.measuring import Disturbance, DisturbanceKind, Evaluator

_POLL_SEC = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """Result of waiting for a cool device."""

    waited_sec: float = 0.0
    disturbance: Disturbance | None = None
    """Set if the device did not become cool in time."""


async def cool_down(
    evaluator: Evaluator,
    read_temp_c: Callable[[], Awaitable[float | None]],
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Rest:
    """Wait as set by `cool_below_c` and `cool_timeout_ms` of the evaluator.

    Args:
        read_temp_c: reads the hottest sensor; where it returns None, `cooldown_interval_ms` is waited instead.
    """
    limit_c = evaluator.cool_below_c
    if limit_c <= 0:
        return Rest()
    started = clock()
    timeout_sec = evaluator.cool_timeout_ms / 1000
    temp_c = await read_temp_c()
    if temp_c is None:
        await sleep(min(evaluator.cooldown_interval_ms / 1000, timeout_sec))
        return Rest(waited_sec=clock() - started)
    while temp_c is not None and temp_c > limit_c:
        left_sec = timeout_sec - (clock() - started)
        if left_sec <= 0:
            return Rest(
                waited_sec=clock() - started,
                disturbance=Disturbance(
                    DisturbanceKind.STILL_WARM, f"still {temp_c:.0f} C after {timeout_sec:g} s, above {limit_c:g} C"
                ),
            )
        await sleep(min(_POLL_SEC, left_sec))
        temp_c = await read_temp_c()
    return Rest(waited_sec=clock() - started)
