"""Cleans what a worker answers: a candidate may have written it, in its worker's place or into an error.

Texts lose what terminals obey, and the provenance what only the agent may say.
"""

from __future__ import annotations

from fleet.base.text import shown, shown_lines
from fleet.v1 import measurement_pb2, session_service_pb2

_MOST_WORD_CHARS = 100
"""Of a time source, or of what was flushed."""


def cleaned_measurement(measurement: measurement_pb2.Measurement) -> measurement_pb2.Measurement:
    """Clean a worker's measurement in place, and return it."""
    flushed = measurement.provenance.flushed
    measurement.ClearField("provenance")
    measurement.provenance.flushed = shown(flushed, _MOST_WORD_CHARS)
    measurement.error_message = shown_lines(measurement.error_message)
    measurement.time_source = shown(measurement.time_source, _MOST_WORD_CHARS)
    for call in measurement.operators.calls if measurement.HasField("operators") else ():
        call.function = shown(call.function)
    return measurement


def cleaned_call(response: session_service_pb2.CallResponse) -> session_service_pb2.CallResponse:
    """Clean a worker's answer to a call in place, and return it. Outputs need none: they are numbers."""
    response.error_message = shown_lines(response.error_message)
    return response
