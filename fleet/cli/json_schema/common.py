"""Common parts of the schemas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

Moment = str
"""RFC 3339 in UTC: "2026-11-22T20:00:38.947621Z"."""

Free = dict[str, Any]
"""An object whose keys are not part of the schema."""


@dataclass(frozen=True, slots=True)
class Message:
    """All fields of a message of protos/fleet/v1; unknown values are null."""

    name: str


Booking = Annotated[Free, Message("Booking")]
Device = Annotated[Free, Message("Device")]
Lease = Annotated[Free, Message("Lease")]
Telemetry = Annotated[Free, Message("Telemetry")]
Job = Annotated[Free, Message("Job")]
ConnectedOptimizer = Annotated[Free, Message("Optimizer")]
QuotaUse = Annotated[Free, Message("QuotaUse")]
Candidate = Annotated[Free, Message("Candidate")]
ClauseOmission = Annotated[Free, Message("ClauseOmission")]
PoisonedProgram = Annotated[Free, Message("PoisonedProgram")]
PendingRequest = Annotated[Free, Message("PendingRequest")]
