"""What runs candidates inside a worker process: the seam between the worker's loop and TVM, or the simulation.

Nothing here or in a runtime imports gRPC: the worker is forked from a process that must not have threads.
"""

from __future__ import annotations

from typing import Protocol

from fleet.v1 import measurement_pb2, session_service_pb2

MAX_MESSAGE_CHARS = 4000
"""Error messages are cut to this: they travel with every result and end in a database."""


class Runtime(Protocol):
    """Runs candidates of one device. A failure that it understands is a CandidateFailed; `classify` reads others.

    It may have a method `reference()`, which does the same small piece of work some times over and returns how long
    each took [s]: a few milliseconds in all, on what candidates run on. See device_agents.reference.
    """

    def measure(self, request: measurement_pb2.MeasureRequest, path: str) -> measurement_pb2.Measurement:
        """Time a candidate whose artifact lies at `path`."""
        ...

    def call(self, request: session_service_pb2.CallRequest, path: str) -> session_service_pb2.CallResponse:
        """Run a function once."""
        ...


class CandidateFailed(Exception):
    """A candidate that did not run to its end, and how."""

    def __init__(self, kind: measurement_pb2.ErrorKind, message: str, *, is_fatal: bool = False) -> None:
        """Args:
        is_fatal: the worker cannot run anything after this and ends with its answer, as after a CUDA error that
            stays with the process.
        """
        super().__init__(message)
        self.kind = kind
        self.is_fatal = is_fatal


class WorkerEnd(BaseException):
    """A candidate that took with it what its worker needs, as the connection to a board: the worker ends, too.

    No Exception, so that no result is made of it here: the agent makes one once the worker is gone, by its exit code.
    """

    exit_code = 70


class DeviceLost(WorkerEnd):
    """The device itself is gone, whatever the candidate."""

    exit_code = 69


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
