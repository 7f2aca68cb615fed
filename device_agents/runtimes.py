"""What runs candidates inside a worker process: the seam between the worker's loop and TVM, or the simulation.

Nothing here or in a runtime imports gRPC: the worker is forked from a process that must not have threads.
"""

from __future__ import annotations

from typing import Protocol

from fleet.v1 import measurement_pb2, session_service_pb2

MAX_MESSAGE_CHARS = 4000
"""Error messages are cut to this: they travel with every result and end in a database."""


class Runtime(Protocol):
    """Runs candidates of one device. A failure that it understands is a CandidateFailed; `classify` reads others."""

    def measure(self, request: measurement_pb2.MeasureRequest, path: str) -> measurement_pb2.Measurement:
        """Time a candidate whose artifact lies at `path`."""
        ...

    def call(self, request: session_service_pb2.CallRequest, path: str) -> session_service_pb2.CallResponse:
        """Run a function once."""
        ...


class CandidateFailed(Exception):
    """A candidate that did not run to its end, and how."""

    def __init__(self, kind: measurement_pb2.ErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def classify(error: BaseException) -> CandidateFailed:
    """Return the failure that an error in a worker stands for, where its text tells memory from all else."""
    if isinstance(error, CandidateFailed):
        return error
    message = str(error) or type(error).__name__
    lowered = message.lower()
    if isinstance(error, MemoryError) or "bad_alloc" in lowered or "out of memory" in lowered:
        return CandidateFailed(measurement_pb2.ERROR_KIND_OUT_OF_MEMORY, message)
    if "no space left on device" in lowered or "file too large" in lowered:
        return CandidateFailed(measurement_pb2.ERROR_KIND_OUT_OF_DISK, message)
    return CandidateFailed(measurement_pb2.ERROR_KIND_RUN_FAILED, message)
