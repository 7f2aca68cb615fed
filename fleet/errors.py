"""Every error that the fleet raises on purpose, sorted by what the caller should do.

    FleetError                     base; class attributes: is_retryable, exit_code
      ConfigError                  bad file, flag or environment; exit code 2
        JournalDamaged             a tracker's memory that lost something; 'fleet tracker fsck' restores it
        DeviceMissing              hardware that was asked for is absent, or lacks its driver or runtime
      InvalidRequest               the caller's mistake; exit code 2
        Unauthenticated            no token, or one that is forged or for another device
          NotJoined                no credentials for this tracker; join it first
        NotAllowed                 known, but this takes another role or another key
          KeyRevoked               no member any more; join again with another key
        ArtifactRefused            wrong hash, or built for another architecture
      LimitReached                 more than one peer, one user or the fleet may have; give something back
      NotFound                     no such named thing
      AlreadyExists                the name is taken
      LeaseError
        LeaseExpired               the holder is too late
        LeaseRevoked               taken away, or superseded by a newer lease
          LeaseYielded             of the class batch, and did not give way in time
        NoMatchingDevice           no device of the fleet can ever satisfy the selector
        AlreadyBooked              other bookings need the devices at that time
        QueueFull                  try later (retryable)
        WaitTimeout                no device within the wait that the caller allowed; exit code 124
        Cancelled                  the caller left the queue, or was taken out of it
      DeviceError
        DeviceUnreachable          try again or elsewhere (retryable)
        DeviceFaulted              needs repair
        DeviceClosed               used after close
        NotProgrammable            the device has no fabric
        ProgrammingFailed          the fabric did not come up with a bitstream
      BuildError                   a program did not compile or link
      ImportFailed                 a model file that cannot be read or imported; exit code 2
      MeasurementError             a candidate failed; `kind` says how
      LibraryError                 a library that cannot be used
        LibraryReadOnly            it can be read, not written
        LibraryDamaged             its file or pages are; asking again does not help
        NoLibrary                  the named file or database is not a library; exit code 2
      DiskFull                     no space left where something has to be written
        CacheFull                  an agent keeps no more artifacts while sessions use those that it has
      TrackerUnavailable           no tracker answers (retryable)
        TrackerStandsBy            the one that answers only follows another; ask that one (retryable)
        TrackerSuperseded          another tracker of the fleet has taken over; ask that one (retryable)
      BuildersUnavailable          no cluster of builders answers (retryable)
      OptimizerUnavailable         no optimizer answers (retryable)
      RegistryError                a registry or web server of packs refuses, or does not answer

`fleet.wire.rpc` carries them over the network: raised at one end, an error is caught at the other as the same class.
"""

from __future__ import annotations

import enum


class ErrorKind(enum.StrEnum):
    """Why a candidate has no time. The names are those of fleet.v1.ErrorKind without their prefix."""

    TIMEOUT = "TIMEOUT"
    CRASHED = "CRASHED"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    OUT_OF_DISK = "OUT_OF_DISK"
    WRONG_OUTPUT = "WRONG_OUTPUT"
    LOAD_FAILED = "LOAD_FAILED"
    RUN_FAILED = "RUN_FAILED"
    BUILD_FAILED = "BUILD_FAILED"
    BUILD_TIMEOUT = "BUILD_TIMEOUT"
    BAD_ARGUMENTS = "BAD_ARGUMENTS"
    LEASE_ENDED = "LEASE_ENDED"
    DEVICE_FAULTED = "DEVICE_FAULTED"
    ARTIFACT_MISSING = "ARTIFACT_MISSING"
    TIME_NOT_PROVEN = "TIME_NOT_PROVEN"
    POISONED = "POISONED"
    """Not run: a device faulted while it ran, at most seven days ago."""


class FleetError(Exception):
    """Base of all errors raised on purpose."""

    is_retryable: bool = False
    exit_code: int = 1


class ConfigError(FleetError):
    """A bad file, flag or environment."""

    exit_code = 2


class DeviceMissing(ConfigError):
    """Requested hardware is absent, or lacks software that it needs; other devices can be served."""


class JournalDamaged(ConfigError):
    """A damaged journal of a tracker; `fleet tracker fsck` reports the parts that can be restored."""


class InvalidRequest(FleetError):
    """The caller's mistake."""

    exit_code = 2


class Unauthenticated(InvalidRequest):
    """No token, or one that is forged or for another device."""


class NotJoined(Unauthenticated):
    """This account has no credentials for the tracker; join it first."""


class NotAllowed(InvalidRequest):
    """The caller is authenticated but lacks the role, or the object belongs to another key."""


class KeyRevoked(NotAllowed):
    """The caller's key was revoked; join again with another key, if an admin permits it."""


class ArtifactRefused(InvalidRequest):
    """An artifact with a wrong hash or for another architecture."""


class LimitReached(FleetError):
    """A limit of a peer, a user or the whole fleet is reached; release something, or wait until others do."""

    is_retryable = True


class NotFound(FleetError):
    """No such named thing."""


class AlreadyExists(FleetError):
    """The name is taken."""


class LeaseError(FleetError):
    """Error about a lease or a request for one."""


class LeaseExpired(LeaseError):
    """The holder is too late."""


class LeaseRevoked(LeaseError):
    """Revoked, or superseded by a newer lease."""


class LeaseYielded(LeaseRevoked):
    """A batch lease did not give way to a waiting request in time."""


class NoMatchingDevice(LeaseError):
    """No device of the fleet can ever satisfy the selector."""


class AlreadyBooked(LeaseError):
    """There are not enough devices for a booking at that time, beside other bookings and leases."""


class QueueFull(LeaseError):
    """The tracker takes no more requests; try later."""

    is_retryable = True


class WaitTimeout(LeaseError):
    """No device became available within the caller's time limit."""

    exit_code = 124


class Cancelled(LeaseError):
    """The request was cancelled by the caller, by its key, or by an admin."""


class DeviceError(FleetError):
    """Error about a device."""


class DeviceUnreachable(DeviceError):
    """The device's agent does not answer; try again or elsewhere."""

    is_retryable = True


class DeviceFaulted(DeviceError):
    """The device needs repair."""


class DeviceClosed(DeviceError):
    """The device was used after it was closed."""


class NotProgrammable(DeviceError):
    """The device has no fabric."""


class ProgrammingFailed(DeviceError):
    """The fabric did not come up with a bitstream."""


class BuildError(FleetError):
    """A program did not compile or link. `kind` is BUILD_FAILED or BUILD_TIMEOUT."""

    def __init__(self, message: str, kind: ErrorKind = ErrorKind.BUILD_FAILED) -> None:
        super().__init__(message)
        self.kind = kind


class ImportFailed(FleetError):
    """A model file that cannot be read or imported."""

    exit_code = 2


class MeasurementError(FleetError):
    """A candidate failed on its device. `kind` says how."""

    def __init__(self, message: str, kind: ErrorKind = ErrorKind.RUN_FAILED) -> None:
        super().__init__(message)
        self.kind = kind


class LibraryError(FleetError):
    """A library that cannot be used."""


class NoLibrary(LibraryError):
    """The name is not a library: a directory, another kind of file or database, or an unknown schema version."""

    exit_code = 2


class LibraryReadOnly(LibraryError):
    """Write access to a library that is readable only."""


class LibraryDamaged(LibraryError):
    """The library's file or pages are damaged; retrying does not help."""


class DiskFull(FleetError):
    """No space left where something has to be written."""


class CacheFull(DiskFull):
    """An agent's cache is full of artifacts that live sessions use."""


class TrackerUnavailable(FleetError):
    """No tracker answers."""

    is_retryable = True


class TrackerStandsBy(TrackerUnavailable):
    """The tracker that answers only follows another one."""


class TrackerSuperseded(TrackerUnavailable):
    """The answering tracker was replaced by another one of its fleet."""


class BuildersUnavailable(FleetError):
    """No cluster of builders answers, or it has no builders."""

    is_retryable = True


class OptimizerUnavailable(FleetError):
    """No optimizer answers at its address."""

    is_retryable = True


class RegistryError(FleetError):
    """A registry or web server of packs refuses, or does not answer."""


def error_classes() -> dict[str, type[FleetError]]:
    """Return all error classes by name, including the base, without those private to a module."""
    found: dict[str, type[FleetError]] = {}
    waiting = [FleetError]
    while waiting:
        cls = waiting.pop()
        found[cls.__name__] = cls
        waiting.extend(sub for sub in cls.__subclasses__() if not sub.__name__.startswith("_"))
    return found
