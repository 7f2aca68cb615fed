"""What speaks against a measurement, from the readings before and after it. Pure."""

from __future__ import annotations

from fleet.v1 import device_pb2

_CLOCK_FALL = 0.9
_USUAL_REASONS = frozenset({"power-cap", "current-cap", "sync-boost"})
"""Of a clock below its highest. A GPU under load runs at its power limit by design, the slower the more a kernel takes,
and one that is coupled to others at their clock. They are shown and stored, and speak against nothing."""

_FIXED_GOVERNORS = ("", "performance", "userspace")
"""Under the others a clock that changes is what they are for: an idle core is slow by design. "" is what has no
governor, such as a GPU, whose clock falls only when it has to."""


def find_disturbances(before: device_pb2.Telemetry, after: device_pb2.Telemetry) -> list[str]:
    """Return sentences; nothing where the readings show nothing, or do not tell."""
    found = []
    told = dict.fromkeys([*before.throttle_reasons, *after.throttle_reasons])
    reasons = [reason for reason in told if reason not in _USUAL_REASONS]
    if reasons:
        found.append(f"throttled: {', '.join(reasons)}")
    foreign = max(before.foreign_processes, after.foreign_processes)
    if foreign:
        found.append(f"{foreign} foreign process{'es' if foreign > 1 else ''}")
    if before.governor and after.governor and before.governor != after.governor:
        found.append(f"governor changed from {before.governor} to {after.governor}")
    elif before.governor in _FIXED_GOVERNORS and _has_fallen(before, after):
        found.append(f"clock fell from {before.freq_hz / 1e6:.0f} to {after.freq_hz / 1e6:.0f} MHz")
    return found


def _has_fallen(before: device_pb2.Telemetry, after: device_pb2.Telemetry) -> bool:
    if not _USUAL_REASONS.isdisjoint(after.throttle_reasons):
        return False  # what the kernel itself does to the clock
    return 0 < after.freq_hz < _CLOCK_FALL * before.freq_hz
