"""Runs candidates inside a worker process: the interface between the worker's loop and TVM, or the simulation.

Nothing here or in a runtime knows protobuf or gRPC: the worker's loop converts, and the worker is forked from a process
that must not have threads.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from fleet.domain.measuring import Call, ErrorKind, Measurement, Tensor, Trial

if TYPE_CHECKING:
    from device_agents.runtimes.proving import ProofParts
    from fleet.domain.proving import ProofOrder

_KINDS_BY_ERRNO = {
    errno.ENOMEM: ErrorKind.OUT_OF_MEMORY,
    errno.ENOSPC: ErrorKind.OUT_OF_DISK,
    errno.EDQUOT: ErrorKind.OUT_OF_DISK,
    errno.EFBIG: ErrorKind.OUT_OF_DISK,
}

OUT_OF_MEMORY_EXIT_CODE = 71
"""Exit code of a worker that could not get memory outside a candidate's run."""

MAX_MESSAGE_CHARS = 4000
"""Error messages are cut to this: they travel with every result and end in a database."""


class Runtime(Protocol):
    """Runs candidates of one device. It raises CandidateFailed for known errors; `classify` handles the others."""

    def measure(self, trial: Trial, path: str) -> Measurement:
        """Time the candidate at `path`."""

    def call(self, call: Call, path: str) -> list[Tensor]:
        """Run a function once and return its outputs.

        FUNCTIONS: the outputs, or all tensors when none is marked. RELAX_VM: the return value, flattened.
        """

    def reference(self) -> list[float]:
        """Repeat a fixed small workload on the candidates' processor; return the time of each repeat [s].

        A few milliseconds in all, see device_agents.measuring.reference. Return nothing without such a workload.
        """

    def prepare_proof(self, order: ProofOrder) -> ProofParts:
        """Allocate the arguments of a function for a proof of its time, without loading its artifact.

        Raises:
            NotProvable: this runtime cannot prove times.
        """


@runtime_checkable
class ServesRpc(Protocol):
    """A runtime that also serves clients of TVM's RPC protocol."""

    def serve_rpc(self, connection_fd: int) -> None:
        """Serve one session on a connected socket, after the greeting, and close it. Return when the client does."""


class CandidateFailed(Exception):
    """A candidate did not complete; `kind` gives the reason."""

    def __init__(self, kind: ErrorKind, message: str, *, is_fatal: bool = False) -> None:
        """Args:
        is_fatal: the worker cannot run anything after this and ends with its answer, as after a CUDA error that
            stays with the process.
        """
        super().__init__(message)
        self.kind = kind
        self.is_fatal = is_fatal


class WorkerEnd(BaseException):
    """A candidate destroyed a resource of its worker, such as the connection to a board: the worker must end.

    No Exception, so that no result is made of it here: the agent makes one once the worker is gone, by its exit code.
    """

    exit_code = 70


class DeviceLost(WorkerEnd):
    """The device itself is lost, regardless of the candidate."""

    exit_code = 69


def classify(error: BaseException) -> CandidateFailed:
    """Return the failure for an error in a worker, by its class and errno."""
    if isinstance(error, CandidateFailed):
        return error
    message = str(error) or type(error).__name__
    if isinstance(error, MemoryError):
        return CandidateFailed(ErrorKind.OUT_OF_MEMORY, message)
    number = error.errno if isinstance(error, OSError) else None
    return CandidateFailed(_KINDS_BY_ERRNO.get(number or 0, ErrorKind.RUN_FAILED), message)
