"""The tracker's mutable entries of devices, leases, requests and clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet.domain.health import GOOD, HealthMark
from fleet.domain.leases import LeaseClass, LeaseTerms
from fleet.domain.leases import LeaseEnd as LeaseEnd
from fleet.domain.poison import Poison

BOOT_SHIFT = 20
"""A start's epochs count from `boot << BOOT_SHIFT`, and boot is the clock in milliseconds. A million grants later they
run into the numbers of the next millisecond, which has long passed: nobody grants a million leases in one."""

SET_SEPARATOR = "\x1f"
"""Character that no client's request id has."""

BITSTREAM_LABEL = "bitstream"
"""Label that follows the content of a device's fabric."""


MAX_NAMES_PER_AGENT = 64
"""Default of `TrackerLimits.max_names_per_agent`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrackerLimits:
    """Limits of the tracker. Not compared by value: the hash of all fields would cost more than an admission."""

    default_ttl_sec: float = 30.0
    min_ttl_sec: float = 2.0
    max_ttl_sec: float = 300.0
    max_duration_sec: float = 24 * 3600.0
    """Life of a lease, however often it is renewed."""
    grace_sec: float = 10.0
    """Life of a lost client's leases.

    Clients may take as long to come back after a tracker's restart.
    """
    max_priority: int = 100
    """Largest priority; its negative is the smallest."""
    max_waiting: int = 200_000
    """Requests that wait, of everybody."""
    max_waiting_per_account: int = 100_000
    max_waiting_per_client: int = 1_000
    """A client that waits for a thousand devices has asked for more than any fleet gives it."""
    max_selectors: int = 512
    """Different ones that requests wait with, of everybody; those for a single device do not count. The matching
    devices of each are kept in memory: 1 MB with 10,000 devices."""
    max_selectors_per_account: int = 64
    max_sets: int = 256
    """Sets of devices that wait, of everybody. Each is planned anew every second."""
    max_sets_per_account: int = 16
    max_bookings: int = 500
    """Bookings of everybody. Each is visited every few seconds at least."""
    max_bookings_per_account: int = 20
    max_clients: int = 10_000
    """Streams of clients at once."""
    max_clients_per_user: int = 1_000
    max_agents: int = 5_000
    max_devices: int = 20_000
    max_devices_per_agent: int = 1_000
    max_names_per_agent: int = MAX_NAMES_PER_AGENT
    """Quota of device names per agent key. Names stay bound after the agent leaves; without a quota an agent could take
    names from others by inventing them. Sites with larger agents raise it (`fleet tracker serve --devices-per-agent`).
    """
    max_inventory_bytes: int = 64 * 1024 * 1024
    """Maximum size of all devices' descriptions together: every snapshot contains them."""
    max_watchers: int = 1_000
    """Streams that watch the fleet."""
    max_watchers_per_user: int = 500
    hello_sec: float = 5.0
    """A stream that says nothing for this long ends."""
    forget_device_sec: float = 24 * 3600.0
    """A device is forgotten when its agent has been away this long."""
    faults_in_a_row: int = 3
    """A device is quarantined after this many leases in a row with a fault."""
    remembered_ends: int = 10_000
    """Number of ended leases with a stored reason."""


@dataclass(slots=True, kw_only=True, eq=False)
class LeaseEntry:
    """Exclusive use of one device by one client."""

    name: str
    device_name: str
    epoch: int
    client_id: str
    request_id: str
    holder: str
    terms: LeaseTerms
    granted_at_sec: float
    expires_at_sec: float
    ends_at_sec: float
    asked_at_sec: float = 0.0
    """Time of its request; not in the journal."""
    account: str = ""
    """Account that it is charged to; empty for a lease of an older tracker."""
    charged_sec: float = 0.0
    """Charged device seconds."""
    charged_at_sec: float = 0.0
    """Moment of the latest charge."""
    has_starved: bool = False
    """True if its account starved before the grant: a batch lease then keeps its slice whatever waits."""
    note: str = ""
    """Name chosen by the client; empty if it equals the holder's name. Not in the journal."""


@dataclass(slots=True, kw_only=True, eq=False)
class DeviceEntry:
    """One device, attached or known from earlier."""

    name: str
    kind: str
    labels: dict[str, str]
    """Labels for selectors: the agent's, "name" and "kind", and "bitstream" where a fabric is programmed."""
    description: bytes
    """Serialised fleet.v1.Inventory, opaque here."""
    address: str
    agent_id: str
    epoch: int = 0
    """The largest that was granted on it, or that its agent has seen."""
    nonce: str = ""
    """Nonce of its tokens since a reset of its epochs; empty: the nonce of this start. Not in the journal."""
    is_attached: bool = False
    is_healthy: bool = True
    reason: str = ""
    """Why it is not healthy."""
    attached_at_sec: float = 0.0
    detached_at_sec: float | None = None
    """None while attached."""
    lease: LeaseEntry | None = None
    agent_key_id: str = ""
    """Key of the agent that attached it last; the journal does not keep it. Empty without TLS."""
    mark: HealthMark = GOOD
    """Judgement of its health. The journal keeps it apart from the device."""
    fault_count: int = 0
    """Leases in a row with a fault, until the next grant after a lease without one."""
    is_used: bool = False
    """True from a grant to the next fault."""
    relay_address: str = ""
    """Address of its agent's relay; empty: none."""

    @property
    def is_ready(self) -> bool:
        """True if its agent could serve a lease now."""
        return self.is_attached and self.is_healthy and self.lease is None

    @property
    def can_serve(self) -> bool:
        """True if it can be granted now."""
        return self.is_ready and self.mark.state.is_open

    @property
    def bitstream_digest(self) -> str:
        """Bitstream loaded into its fabric last; empty: none, or unknown."""
        return self.labels.get(BITSTREAM_LABEL, "")


def with_bitstream(labels: Mapping[str, str], digest: str) -> dict[str, str]:
    """Return the labels of a device with this bitstream in its fabric; empty: none, or unknown."""
    others = {key: value for key, value in labels.items() if key != BITSTREAM_LABEL}
    return {**others, BITSTREAM_LABEL: digest} if digest else others


def member_ids(request_id: str, terms: LeaseTerms) -> tuple[str, ...]:
    """Return an id for each device of a request. Those beside the first cannot be chosen by a client."""
    if not terms.also:
        return (request_id,)
    return request_id, *(f"{request_id}{SET_SEPARATOR}{number}" for number in range(1, len(terms.selectors)))


@dataclass(slots=True, kw_only=True, eq=False)
class RequestEntry:
    """A request for a device."""

    client_id: str
    request_id: str
    holder: str
    terms: LeaseTerms
    """Within the tracker's limits."""
    deadline_sec: float | None
    asked_at_sec: float
    arrival: int
    """Number of requests before it."""
    account: str = ""
    """Account that it counts for. Not in the journal: its terms name it, or it comes with the client's stream."""
    note: str = ""
    """See LeaseEntry."""
    key: tuple[str, str] = field(init=False)
    """Client and id, unique among waiting requests."""

    def __post_init__(self) -> None:
        self.key = self.client_id, self.request_id

    @property
    def member_ids(self) -> tuple[str, ...]:
        """Ids of the requests that the leases of its devices answer; the first is its own."""
        return member_ids(self.request_id, self.terms)


@dataclass(slots=True, kw_only=True, eq=False)
class ClientEntry:
    """Client that opened a stream with this client_id."""

    client_id: str
    holder: str
    account: str = ""
    """Account that its requests count for, unless they name another."""
    may_ask_for_others: bool = False
    """Its requests may name another account."""
    is_admin: bool = False
    """Its requests may name devices that are marked."""
    note: str = ""
    """See LeaseEntry."""
    is_connected: bool = False
    lost_until_sec: float = 0.0
    """End of a lost client's leases."""
    leases: dict[str, LeaseEntry] = field(default_factory=dict)
    """Live leases by the request that they answer."""
    requests: dict[str, RequestEntry] = field(default_factory=dict)
    """Waiting requests by id."""
    parked: dict[str, RequestEntry] = field(default_factory=dict)
    """Requests from before the tracker's restart, or the client's newest stream, that it has not repeated yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class YieldEntry:
    """A lease that was asked to give way. Not in the journal: requests and marks ask again after a restart."""

    lease_name: str
    request_key: tuple[str, str] | None
    """Request that asks; None: a mark of the device's health does, or a booking."""
    lease_class: LeaseClass
    """Class of that request; without a request, the class of the lease."""
    until_sec: float
    """The lease ends then."""
    reason: str = ""
    """The mark or the booking, in words; empty for a request."""
    booking: str = ""
    """Booking that asks; empty: none does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UseEntry:
    """Use of the fleet by one account at one moment."""

    account: str
    used_sec: float
    """Decayed device seconds."""
    at_sec: float
    day: int
    """Day of `day_sec`, counted from 1970 in UTC."""
    day_sec: Mapping[LeaseClass, float]
    """Device seconds of the day, by class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthEntry:
    """Health of one device."""

    mark: HealthMark = GOOD
    fault_count: int = 0
    """See DeviceEntry."""
    is_used: bool = False
    """See DeviceEntry; kept with a count only."""


@dataclass(slots=True, kw_only=True, eq=False)
class BookingEntry:
    """Devices that are kept free for an account from one moment to another."""

    name: str
    """ "bookings/<id>"."""
    selector: str
    """Canonical."""
    starts_at_sec: float
    ends_at_sec: float
    booked_at_sec: float
    holder: str
    """Its author."""
    account: str
    """Its requests are served."""
    key_id: str = ""
    """Key of the holder; empty without TLS."""
    request_id: str = ""
    """Chosen by the caller, so that a repeated call books nothing more."""
    device_names: tuple[str, ...] = ()
    """Planned devices, one for each that is booked; "" where none can be had."""
    unused_since_sec: tuple[float, ...] = ()
    """Moment from which each of them counts as unused; empty in journals of older trackers."""


@dataclass(slots=True, kw_only=True)
class Durable:
    """Part of the state in the journal."""

    boot: int
    """Grows with every start of the tracker: the clock [ms] at least. Epochs count up from `boot << BOOT_SHIFT`."""
    devices: list[DeviceEntry]
    """`lease` and `epoch` of each are set."""
    requests: list[RequestEntry]
    """Requests in any order."""
    uses: list[UseEntry] = field(default_factory=list)
    health: list[tuple[str, HealthEntry]] = field(default_factory=list)
    """Health by device name, oldest mark first."""
    poison: list[Poison] = field(default_factory=list)
    """Programs that killed a device, oldest first."""
    bookings: list[BookingEntry] = field(default_factory=list)
    """Oldest first."""


@dataclass(slots=True, kw_only=True)
class Changes:
    """Differences from the journal, by key; None means gone."""

    devices: dict[str, DeviceEntry | None] = field(default_factory=dict)
    leases: dict[str, DeviceEntry | None] = field(default_factory=dict)
    """Newest epoch and live lease, by device name."""
    requests: dict[tuple[str, str], RequestEntry | None] = field(default_factory=dict)
    uses: dict[str, UseEntry | None] = field(default_factory=dict)
    """Use by account."""
    health: dict[str, HealthEntry | None] = field(default_factory=dict)
    """Health by device name."""
    poison: dict[str, Poison | None] = field(default_factory=dict)
    """Programs that killed a device, by digest."""
    bookings: dict[str, BookingEntry | None] = field(default_factory=dict)

    def merge(self, newer: Changes) -> None:
        """Add newer changes, which replace older ones of the same entry."""
        self.devices |= newer.devices
        self.leases |= newer.leases
        self.requests |= newer.requests
        self.uses |= newer.uses
        self.health |= newer.health
        self.poison |= newer.poison
        self.bookings |= newer.bookings

    def __len__(self) -> int:
        devices = len(self.devices) + len(self.leases) + len(self.health)
        return devices + len(self.requests) + len(self.uses) + len(self.poison) + len(self.bookings)
