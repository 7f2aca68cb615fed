"""Finds disturbances of a measurement in the readings before and after it. Pure."""

from __future__ import annotations

from fleet.domain.devices import Telemetry
from fleet.domain.measuring import Disturbance, DisturbanceKind

_CLOCK_FALL = 0.9
_USUAL_REASONS = frozenset({"power-cap", "current-cap", "sync-boost"})
"""Normal reasons for a clock below its highest. A GPU under load runs at its power limit by design, the slower the more
a kernel draws, and one that is coupled to others runs at their clock. They are shown and stored, but are no
disturbance."""

_FIXED_GOVERNORS = ("", "performance", "userspace")
"""The others change the clock by design: an idle core is slow. "" stands for a device without a governor, such as a
GPU, with a clock that falls only when it has to."""


def find_disturbances(before: Telemetry, after: Telemetry) -> list[Disturbance]:
    """Return the disturbances in the readings, none if readings are missing."""
    found = []
    throttling = dict.fromkeys([*before.throttle_reasons, *after.throttle_reasons])
    reasons = [reason for reason in throttling if reason not in _USUAL_REASONS]
    if reasons:
        found.append(Disturbance(DisturbanceKind.THROTTLED, f"throttled: {', '.join(reasons)}"))
    foreign = max(before.foreign_processes or 0, after.foreign_processes or 0)
    if foreign:
        text = f"{foreign} foreign process{'es' if foreign > 1 else ''}"
        found.append(Disturbance(DisturbanceKind.FOREIGN_PROCESSES, text))
    if before.governor and after.governor and before.governor != after.governor:
        text = f"governor changed from {before.governor} to {after.governor}"
        found.append(Disturbance(DisturbanceKind.GOVERNOR_CHANGED, text))
    elif (before.governor or "") in _FIXED_GOVERNORS:
        found += _fall_of_clock(before, after)
    return found


def _fall_of_clock(before: Telemetry, after: Telemetry) -> list[Disturbance]:
    if not _USUAL_REASONS.isdisjoint(after.throttle_reasons):
        return []  # the kernel itself causes this clock
    was_hz, is_hz = before.freq_hz or 0.0, after.freq_hz or 0.0
    if not 0 < is_hz < _CLOCK_FALL * was_hz:
        return []
    text = f"clock fell from {was_hz / 1e6:.0f} to {is_hz / 1e6:.0f} MHz"
    return [Disturbance(DisturbanceKind.CLOCK_FELL, text)]
