"""Sanitizes workers' responses, which a candidate may have forged entirely or in an error message.

Removes control characters from texts, and provenance fields that only the agent may set.
"""

from __future__ import annotations

from fleet.base.text import sanitize, sanitize_lines
from fleet.v1 import measurement_pb2, session_service_pb2

_MOST_WORD_CHARS = 100
"""Longest text of a time source or of the flushed caches."""


def cleaned_measurement(measurement: measurement_pb2.Measurement) -> measurement_pb2.Measurement:
    """Sanitize a worker's measurement in place and return it."""
    flushed = measurement.provenance.flushed
    measurement.ClearField("provenance")
    measurement.provenance.flushed = sanitize(flushed, _MOST_WORD_CHARS)
    measurement.error_message = sanitize_lines(measurement.error_message)
    measurement.time_source = sanitize(measurement.time_source, _MOST_WORD_CHARS)
    for call in measurement.operators.calls if measurement.HasField("operators") else ():
        call.function = sanitize(call.function)
    return measurement


def cleaned_call(response: session_service_pb2.CallResponse) -> session_service_pb2.CallResponse:
    """Sanitize a worker's response to a call in place and return it. Outputs are numbers and stay as they are."""
    response.error_message = sanitize_lines(response.error_message)
    return response
