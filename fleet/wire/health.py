"""Health marks of devices on the wire."""

from __future__ import annotations

from collections.abc import Mapping

from fleet.base.text import sendable
from fleet.domain.health import GOOD, HealthMark, HealthState
from fleet.errors import InvalidRequest
from fleet.v1 import device_pb2, lease_service_pb2
from fleet.wire.times import optional_timestamp, timestamp_sec

HEALTH_STATES: Mapping[HealthState, device_pb2.HealthState] = {
    HealthState.GOOD: device_pb2.HEALTH_STATE_GOOD,
    HealthState.SUSPECT: device_pb2.HEALTH_STATE_SUSPECT,
    HealthState.DRAINING: device_pb2.HEALTH_STATE_DRAINING,
    HealthState.QUARANTINED: device_pb2.HEALTH_STATE_QUARANTINED,
    HealthState.MAINTENANCE: device_pb2.HEALTH_STATE_MAINTENANCE,
    HealthState.RETIRED: device_pb2.HEALTH_STATE_RETIRED,
}
_BY_NUMBER: Mapping[int, HealthState] = {number: state for state, number in HEALTH_STATES.items()}


def state_from_proto(value: int) -> HealthState | None:
    """Read a state; None for none, and for one that only newer versions know."""
    return _BY_NUMBER.get(value)


def asked_mark(request: lease_service_pb2.SetHealthRequest, by: str, at_sec: float) -> HealthMark:
    """Read the mark that a caller asks for, unchecked but for its state.

    Raises:
        InvalidRequest: a state that this version does not know.
    """
    state = state_from_proto(request.state)
    if state is None:
        raise InvalidRequest(f"state {request.state} of a device is unknown here; upgrade the tracker, or set another")
    until_sec = timestamp_sec(request.until) if request.HasField("until") else None
    return HealthMark(state=state, by=by, at_sec=at_sec, reason=request.reason, until_sec=until_sec)


def mark_to_proto(mark: HealthMark) -> device_pb2.HealthMark | None:
    """Return a mark; None, which leaves a field unset, for a device that was never judged."""
    if not mark.at_sec:
        return None
    return device_pb2.HealthMark(
        state=HEALTH_STATES[mark.state],
        by=sendable(mark.by),
        at=optional_timestamp(mark.at_sec),
        reason=sendable(mark.reason),
        until=optional_timestamp(mark.until_sec),
    )


def mark_from_proto(message: device_pb2.HealthMark) -> HealthMark:
    """Read a mark. A state that only newer versions know becomes quarantined, since the device may serve nobody."""
    if not message.HasField("at"):
        return GOOD
    return HealthMark(
        state=_BY_NUMBER.get(message.state, HealthState.QUARANTINED),
        by=message.by,
        at_sec=timestamp_sec(message.at),
        reason=message.reason,
        until_sec=timestamp_sec(message.until) if message.HasField("until") else None,
    )
