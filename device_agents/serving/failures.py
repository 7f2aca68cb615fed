"""Answers about candidates that did not run, or that ended their worker."""

from __future__ import annotations

from device_agents.workers.contents import CallAnswer
from fleet.domain.measuring import ErrorKind
from fleet.domain.poison import KEPT_SEC
from fleet.domain.tokens import Claims
from fleet.errors import LeaseRevoked
from fleet.v1 import measurement_pb2, session_service_pb2
from fleet.wire.measurements import error_kind_to_proto


def superseded(claims: Claims) -> LeaseRevoked:
    """Return the error for the holder of a lease that a newer one superseded."""
    return LeaseRevoked(f"{claims.lease_name} of {claims.device_name} was superseded by a newer lease")


def missing(digest: str) -> str:
    """Return the message about an artifact that was not uploaded."""
    return f"{digest} is not on this agent; put it first"


def poisoned(digest: str) -> str:
    """Return the message about a program that is not run."""
    most = f"at most {KEPT_SEC / 86_400:.0f} days ago"
    return (
        f"not run: a device faulted or its agent was lost while {digest} ran, {most}; allow_poison runs it all the same"
    )


def failed_call(kind: ErrorKind, message: str, signal: int = 0) -> CallAnswer:
    """Return the answer to a call without outputs."""
    head = session_service_pb2.CallResponse(error=error_kind_to_proto(kind), error_message=message, signal=signal)
    return CallAnswer(head)


def failed_trial(candidate_id: str, kind: ErrorKind, message: str) -> measurement_pb2.Measurement:
    """Return the answer to a candidate without times."""
    return measurement_pb2.Measurement(
        candidate_id=candidate_id, error=error_kind_to_proto(kind), error_message=message
    )
