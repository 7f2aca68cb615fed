"""Sanitizing responses of workers."""

from __future__ import annotations

from device_agents.serving.cleaning import cleaned_call, cleaned_measurement
from device_agents.workers.handle import WorkerLost
from fleet.domain.measuring import ErrorKind
from fleet.v1 import measurement_pb2, session_service_pb2

HARMFUL, HARMLESS = "\x1b[2Jgone\u202e\nline\x07", "[2Jgone\nline"


def test_forged_fields_of_a_candidate_are_sanitized() -> None:
    """Control characters are removed from texts, and fields of the provenance that only the agent sets."""
    forged = measurement_pb2.Measurement(error_message=HARMFUL, time_source="wall\x1b[31m")
    forged.operators.calls.add(function=HARMFUL)
    forged.provenance.flushed = "cache\x07"
    forged.provenance.disturbances.add(text=HARMFUL)
    forged.provenance.jail = "all of it"

    cleaned = cleaned_measurement(forged)

    assert cleaned.error_message == HARMLESS
    assert (cleaned.time_source, cleaned.operators.calls[0].function) == ("wall[31m", "[2Jgone line")
    assert cleaned.provenance == measurement_pb2.Provenance(flushed="cache")


def test_stderr_of_a_dead_worker_is_sanitized() -> None:
    """The end of its stderr is part of the error."""
    assert str(WorkerLost(ErrorKind.CRASHED, f"it wrote: {HARMFUL}")) == f"it wrote: {HARMLESS}"
    assert cleaned_call(session_service_pb2.CallResponse(error_message=HARMFUL)).error_message == HARMLESS
