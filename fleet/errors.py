"""Every error that the fleet raises on purpose, classed by what the caller should do.

    FleetError                     base; class attributes: status (gRPC), is_retryable, exit_code
      ConfigError                  bad file, flag or environment; exit code 2
        DeviceMissing              hardware that was asked for is not here, or lacks what it runs with
      InvalidRequest               the caller's mistake
        Unauthenticated            no token, or one that is forged or for another device
        ArtifactRefused            wrong hash, or built for another architecture
      NotFound                     no such named thing
      AlreadyExists                the name is taken
      LeaseError
        LeaseExpired               the holder is too late
        LeaseRevoked               taken away, or superseded by a newer lease
        NoMatchingDevice           no device of the fleet can ever satisfy the selector
        QueueFull                  try later (retryable)
        WaitTimeout                no device within the wait that the caller allowed
        Cancelled                  the caller left the queue
      DeviceError
        DeviceUnreachable          try again or elsewhere (retryable)
        DeviceFaulted              needs repair
        DeviceClosed               used after close
        NotProgrammable            the device has no fabric
        ProgrammingFailed          the fabric did not come up with a bitstream
      BuildError                   a program did not compile or link
      ImportFailed                 a model file that cannot be read or imported
      MeasurementError             a candidate failed; `kind` says how
      LibraryError                 a library file that cannot be used
      DiskFull                     no space left where something has to be written
      TrackerUnavailable           no tracker answers (retryable)

On the wire an error is its gRPC status, its text, and its class name in the trailing metadata "fleet-error".
"""

from __future__ import annotations

import grpc


class FleetError(Exception):
    """Base of all errors raised on purpose."""

    status: grpc.StatusCode = grpc.StatusCode.INTERNAL
    is_retryable: bool = False
    exit_code: int = 1


class ConfigError(FleetError):
    """A bad file, flag or environment."""

    status = grpc.StatusCode.INVALID_ARGUMENT
    exit_code = 2


class DeviceMissing(ConfigError):
    """Hardware that was asked for is not here, or lacks what it runs with; other devices can be served."""


class InvalidRequest(FleetError):
    """The caller's mistake."""

    status = grpc.StatusCode.INVALID_ARGUMENT


class Unauthenticated(InvalidRequest):
    """No token, or one that is forged or for another device."""

    status = grpc.StatusCode.UNAUTHENTICATED


class ArtifactRefused(InvalidRequest):
    """An artifact with a wrong hash or for another architecture."""


class NotFound(FleetError):
    """No such named thing."""

    status = grpc.StatusCode.NOT_FOUND


class AlreadyExists(FleetError):
    """The name is taken."""

    status = grpc.StatusCode.ALREADY_EXISTS


class LeaseError(FleetError):
    """Something about a lease or the wait for one."""

    status = grpc.StatusCode.FAILED_PRECONDITION


class LeaseExpired(LeaseError):
    """The holder is too late."""


class LeaseRevoked(LeaseError):
    """Taken away, or superseded by a newer lease."""


class NoMatchingDevice(LeaseError):
    """No device of the fleet can ever satisfy the selector."""


class QueueFull(LeaseError):
    """The tracker takes no more requests; try later."""

    status = grpc.StatusCode.RESOURCE_EXHAUSTED
    is_retryable = True


class WaitTimeout(LeaseError):
    """No device within the wait that the caller allowed."""

    status = grpc.StatusCode.DEADLINE_EXCEEDED


class Cancelled(LeaseError):
    """The caller left the queue."""

    status = grpc.StatusCode.CANCELLED


class DeviceError(FleetError):
    """Something about a device."""

    status = grpc.StatusCode.FAILED_PRECONDITION


class DeviceUnreachable(DeviceError):
    """The device's agent does not answer; try again or elsewhere."""

    status = grpc.StatusCode.UNAVAILABLE
    is_retryable = True


class DeviceFaulted(DeviceError):
    """The device needs repair."""


class DeviceClosed(DeviceError):
    """Used after close."""


class NotProgrammable(DeviceError):
    """The device has no fabric."""

    status = grpc.StatusCode.FAILED_PRECONDITION


class ProgrammingFailed(DeviceError):
    """The fabric did not come up with a bitstream."""

    status = grpc.StatusCode.FAILED_PRECONDITION


class BuildError(FleetError):
    """A program did not compile or link. `kind` is BUILD_FAILED or BUILD_TIMEOUT."""

    status = grpc.StatusCode.FAILED_PRECONDITION

    def __init__(self, message: str, kind: str = "BUILD_FAILED") -> None:
        super().__init__(message)
        self.kind = kind


class ImportFailed(FleetError):
    """A model file that cannot be read or imported."""

    status = grpc.StatusCode.INVALID_ARGUMENT


class MeasurementError(FleetError):
    """A candidate failed on its device. `kind` is a name of fleet.v1.ErrorKind without its prefix."""

    status = grpc.StatusCode.FAILED_PRECONDITION

    def __init__(self, message: str, kind: str = "RUN_FAILED") -> None:
        super().__init__(message)
        self.kind = kind


class LibraryError(FleetError):
    """A library file that cannot be used."""

    status = grpc.StatusCode.FAILED_PRECONDITION


class DiskFull(FleetError):
    """No space left where something has to be written."""

    status = grpc.StatusCode.RESOURCE_EXHAUSTED


class TrackerUnavailable(FleetError):
    """No tracker answers."""

    status = grpc.StatusCode.UNAVAILABLE
    is_retryable = True


def error_classes() -> dict[str, type[FleetError]]:
    """Return all error classes by name, the base included."""
    found: dict[str, type[FleetError]] = {}
    waiting = [FleetError]
    while waiting:
        cls = waiting.pop()
        found[cls.__name__] = cls
        waiting.extend(cls.__subclasses__())
    return found
