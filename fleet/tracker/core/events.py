"""Events of the tracker's state, and their effects. Plain values, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fleet.domain.health import HealthMark
from fleet.domain.leases import LeaseTerms
from fleet.domain.poison import Poison
from fleet.errors import FleetError
from fleet.tracker.core.records import BookingEntry, LeaseEnd, LeaseEntry, RequestEntry, YieldEntry
from fleet.tracker.core.share_policy import SharePolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedDevice:
    """A device as its agent describes it."""

    name: str
    kind: str
    labels: Mapping[str, str]
    description: bytes
    is_healthy: bool = True
    reason: str = ""
    highest_epoch: int = 0
    """The largest that the agent has admitted or fenced on it."""
    fenced_epoch: int = 0
    """The largest that it has fenced."""


@dataclass(frozen=True, slots=True)
class AgentAttached:
    """An agent opened its stream. Answered by Attached or AttachRefused."""

    agent_id: str
    address: str
    devices: tuple[OfferedDevice, ...]
    later_names: tuple[str, ...] = ()
    """In a first portion: names of devices that follow in later events. Very many devices are attached in portions."""
    is_first: bool = True
    """True if this is the first portion. A later one changes nothing once its stream is gone, or there is a newer."""
    key_id: str = ""
    """Key id of the agent's certificate; empty without TLS."""
    stream: int = 0
    """Number of the reporting stream; an agent that reconnects has another."""
    relay_address: str = ""
    """Address of the agent's relay, "host:port"; empty: none."""


@dataclass(frozen=True, slots=True)
class AgentDetached:
    """An agent's stream ended. Has no effect if a newer one exists."""

    agent_id: str
    stream: int = 0


@dataclass(frozen=True, slots=True)
class DeviceReported:
    """An agent reported a device's state."""

    agent_id: str
    device_name: str
    is_healthy: bool
    reason: str
    bitstream_digest: str = ""
    highest_epoch: int = 0
    fenced_epoch: int = 0


@dataclass(frozen=True, slots=True)
class ClientConnected:
    """A client opened its stream. Answered by Welcomed."""

    client_id: str
    holder: str
    account: str = ""
    """Account that its requests count for; empty: its holder's."""
    note: str = ""
    """Name chosen by the client; empty if it equals the holder's name."""
    may_ask_for_others: bool = False
    """Its requests may name the account that they count for."""
    is_admin: bool = False
    """Its requests may name devices that are marked."""


@dataclass(frozen=True, slots=True)
class ClientLost:
    """A client's stream ended."""

    client_id: str


@dataclass(frozen=True, slots=True)
class Acquire:
    """A client requests a device. Answered by Granted, Queued or Refused."""

    client_id: str
    request_id: str
    terms: LeaseTerms
    """Terms as the client states them, unchecked."""
    continues: str = ""
    """Name of the client's lease that gave way: the request is as old as that lease's. Empty: none."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """A client leaves the queue, or is removed from it. Answered by Refused, or by nothing if it does not wait."""

    client_id: str
    request_id: str
    reason: str = ""
    """Canceller and reason: "by ann@lab: needed elsewhere". Empty: the client itself."""


@dataclass(frozen=True, slots=True)
class Renew:
    """A client renews a lease. Answered by Renewed or LeaseEnded."""

    client_id: str
    lease_name: str


@dataclass(frozen=True, slots=True)
class Release:
    """A client releases a lease. Answered by LeaseEnded."""

    client_id: str
    lease_name: str


@dataclass(frozen=True, slots=True)
class Revoke:
    """An operator revokes a lease. Answered by Revoked, or by nothing if there is no such live lease."""

    lease_name: str
    reason: str


@dataclass(frozen=True, slots=True)
class ResetEpochs:
    """An operator resets the epochs of an attached device. Answered by a Fence, or by nothing."""

    device_name: str
    nonce: str
    """Random."""


@dataclass(frozen=True, slots=True)
class MarkHealth:
    """A person or the tracker judged devices. Answered by one HealthMarked for each."""

    device_names: tuple[str, ...]
    mark: HealthMark


@dataclass(frozen=True, slots=True, kw_only=True)
class Book:
    """A member books devices. Answered by Booked or BookingRefused."""

    selector: str
    device_count: int
    starts_at_sec: float
    ends_at_sec: float
    holder: str
    account: str
    key_id: str = ""
    request_id: str = ""
    """Chosen by the caller: the same one books nothing more. Empty: none."""


@dataclass(frozen=True, slots=True)
class CancelBooking:
    """A booking is cancelled. Answered by BookingCancelled, or by nothing if there is none of the name."""

    name: str


@dataclass(frozen=True, slots=True)
class PoisonFound:
    """An agent reported a program that killed one of its devices."""

    agent_id: str
    device_name: str
    digest: str
    reported_by: str = ""
    """Name of the agent."""


@dataclass(frozen=True, slots=True)
class ForgetPoison:
    """A program is to be run again. Answered by PoisonForgotten, or by nothing if there is none of the digest."""

    digest: str


@dataclass(frozen=True, slots=True)
class PolicyChanged:
    """An operator changed shares, classes or quotas."""

    policy: SharePolicy


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class JournalFailed:
    """The journal could not be written.

    These grants, not yet told to anyone, are taken back, and no new ones are made.
    """

    grants: tuple[LeaseEntry, ...]
    message: str


@dataclass(frozen=True, slots=True)
class JournalRecovered:
    """The journal is written again: grants resume."""


Event = (
    AgentAttached
    | AgentDetached
    | DeviceReported
    | ClientConnected
    | ClientLost
    | Acquire
    | Cancel
    | Renew
    | Release
    | Revoke
    | ResetEpochs
    | MarkHealth
    | PoisonFound
    | ForgetPoison
    | Book
    | CancelBooking
    | PolicyChanged
    | Tick
    | JournalFailed
    | JournalRecovered
)


@dataclass(frozen=True, slots=True)
class Attached:
    """The agent is attached: one fence for each of its devices."""

    agent_id: str
    fences: tuple[Fence, ...]


@dataclass(frozen=True, slots=True)
class AttachRefused:
    """A device name belongs to another attached agent."""

    agent_id: str
    device_name: str
    message: str


@dataclass(frozen=True, slots=True)
class Fence:
    """To an agent: on this device every lease up to this epoch has ended."""

    agent_id: str
    device_name: str
    epoch: int
    nonce: str = ""
    """The only valid nonce of tokens; empty if it has not changed."""
    live_lease_name: str = ""
    """With a nonce: this lease continues, whatever its token contains."""
    is_reset: bool = False
    """True if larger epochs that the agent has seen do not count."""


@dataclass(frozen=True, slots=True)
class Welcomed:
    """To a client: the stream is open, these leases are live."""

    client_id: str
    leases: tuple[LeaseEntry, ...]
    account: str
    """Account that its requests count for."""
    may_ask_for_others: bool


@dataclass(frozen=True, slots=True)
class Queued:
    """To a client: the request was queued."""

    client_id: str
    request: RequestEntry


@dataclass(frozen=True, slots=True)
class Granted:
    """To a client: a device was granted."""

    client_id: str
    lease: LeaseEntry
    is_repeat: bool = False
    """True if the client repeated a request that was granted before."""
    set_id: str = ""
    """Request of a set that the device belongs to; empty: the lease's own request."""
    member: int = 0
    """Number of the device's selector in the set."""


@dataclass(frozen=True, slots=True)
class Refused:
    """To a client: the request ended without a device."""

    client_id: str
    request_id: str
    error_class: type[FleetError]
    message: str


@dataclass(frozen=True, slots=True)
class Renewed:
    """To a client: a lease was renewed."""

    client_id: str
    lease: LeaseEntry


@dataclass(frozen=True, slots=True)
class LeaseEnded:
    """To a client: a lease has ended."""

    client_id: str
    lease_name: str
    end: LeaseEnd
    message: str
    lease: LeaseEntry | None = None
    """The lease, if it ended now; None in an answer about one that had ended before, or is unknown."""


@dataclass(frozen=True, slots=True)
class YieldWanted:
    """To a client: one of its leases has to give way."""

    client_id: str
    wanted: YieldEntry


@dataclass(frozen=True, slots=True)
class Outbid:
    """To a client: a request of its account waits for the device of one of its batch leases, with this bid."""

    client_id: str
    lease_name: str
    bid: float


@dataclass(frozen=True, slots=True)
class Revoked:
    """To the operator: the lease has ended."""

    lease: LeaseEntry


@dataclass(frozen=True, slots=True)
class HealthMarked:
    """A device was judged."""

    device_name: str
    mark: HealthMark


@dataclass(frozen=True, slots=True)
class Booked:
    """To the booker: the devices are kept free, now or since an earlier call."""

    booking: BookingEntry


@dataclass(frozen=True, slots=True)
class BookingRefused:
    """To the booker: nothing was booked."""

    error_class: type[FleetError]
    message: str


@dataclass(frozen=True, slots=True)
class BookingCancelled:
    """To the caller: the booking has ended."""

    booking: BookingEntry


@dataclass(frozen=True, slots=True)
class BookingChanged:
    """Devices of a booking left, so that it cannot be kept any more, or others took their place."""

    booking: BookingEntry
    missing_count: int
    """Number of devices that cannot be had; 0: it is kept again."""


@dataclass(frozen=True, slots=True)
class PoisonForgotten:
    """To the caller: agents will run the program again."""

    found: Poison


BookingEffect = Booked | BookingRefused | BookingCancelled | BookingChanged
ClientEffect = Welcomed | Queued | Granted | Refused | Renewed | LeaseEnded | YieldWanted | Outbid
Effect = ClientEffect | Attached | AttachRefused | Fence | Revoked | HealthMarked | PoisonForgotten | BookingEffect
