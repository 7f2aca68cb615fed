"""JSON output of commands about the fleet and its machines."""

from __future__ import annotations

from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from fleet.cli.json_schema.common import (
    Booking,
    Candidate,
    ClauseOmission,
    ConnectedOptimizer,
    Device,
    Free,
    Job,
    Lease,
    Moment,
    PendingRequest,
    PoisonedProgram,
    QuotaUse,
    Telemetry,
)


class Status(TypedDict):
    """`fleet status`"""

    version: int
    taken_at: Moment
    devices: list[Device]
    leases: list[Lease]
    requests: list[PendingRequest]
    request_count: int
    jobs: list[Job]
    tracker_version: str
    started_at: Moment
    grant_count: int
    bookings: list[Booking]
    optimizers: list[ConnectedOptimizer]


class Devices(TypedDict):
    """`fleet devices`"""

    devices: list[Device]


class Leases(TypedDict):
    """`fleet leases`, and `fleet leases revoke`: the revoked one"""

    leases: list[Lease]


class Bookings(TypedDict):
    """`fleet bookings`, and `fleet book` and `fleet bookings cancel`: the one booking"""

    bookings: list[Booking]


class Poison(TypedDict):
    """`fleet poison list`, and `fleet poison forget`: the one program"""

    programs: list[PoisonedProgram]


class Requests(TypedDict):
    """`fleet request list`"""

    requests: list[PendingRequest]
    request_count: int


class Cancelled(TypedDict):
    """`fleet request cancel`: the cancelled request"""

    requests: list[PendingRequest]


class RequestInFull(TypedDict):
    """`fleet request why`"""

    request: PendingRequest
    account: str
    weight: float
    used_sec: float
    """Recent use of the account in device seconds; older use counts less."""

    share_had: float
    share_due: float
    quota: QuotaUse | None
    device_count: int
    candidates: list[Candidate]
    omissions: list[ClauseOmission]
    at: Moment


class UsageRow(TypedDict):
    key: str
    """Account, device or class."""

    holder: str
    """Holder of the latest lease; "" for devices and classes."""

    lease_count: int
    device_time_sec: float
    mean_wait_sec: float | None
    share: float
    """Share of the device time of all rows."""


class Usage(TypedDict):
    """`fleet usage`"""

    by: str
    since: Moment
    rows: list[UsageRow]


class Board(TypedDict):
    """`fleet targets show`"""

    name: str
    title: str
    kind: str
    target: Free
    arch: str
    triple: str
    libc: str
    cores: int
    memory_mb: int
    recognise: dict[str, str]
    features: str
    labels: dict[str, str]
    sources: list[str]


class Targets(TypedDict):
    """`fleet targets`"""

    targets: list[Board]


class Finding(TypedDict):
    name: str
    state: str
    seen: str
    advice: str


class Doctor(TypedDict):
    """`fleet doctor`"""

    findings: list[Finding]


class Bundle(TypedDict):
    """`fleet agent bundle`"""

    path: str
    size_bytes: int
    digest: str


class DeviceInFull(TypedDict):
    """`fleet devices show`: the fields of a device, and its last hour"""

    history: list[Telemetry]


class TokenFacts(TypedDict):
    token_id: str
    role: str
    created_at: Moment
    expires_at: Moment
    created_by: str
    note: str
    account: str
    """Account that the member's requests count for; "": the member's key."""

    may_ask_for_others: bool


class NewToken(TokenFacts):
    """`fleet tracker token create`"""

    token: str


class RevokedToken(TypedDict):
    """`fleet tracker token revoke`"""

    token_id: str


class GatewayKeyFacts(TypedDict):
    """`fleet gateway key revoke`"""

    key_id: str
    account: str
    created_at: Moment
    revoked_at: Moment | None


class NewGatewayKey(GatewayKeyFacts):
    """`fleet gateway key create`"""

    secret: str


class GatewayKeys(TypedDict):
    """`fleet gateway key list`, oldest first, with the revoked ones"""

    keys: list[GatewayKeyFacts]


class HeldDevice(TypedDict):
    """One device of `fleet acquire`"""

    lease: str
    device: str


class Acquired(TypedDict):
    """`fleet acquire --json`: printed when the command has ended"""

    lease: str
    """The first device's, as `device` is."""

    device: str
    set: list[HeldDevice]
    """All devices, in the order of their selectors."""

    command: list[str]
    exit_code: int
    """Exit code of the command, and of `fleet acquire`."""

    wait_sec: float
    held_sec: float


class Tokens(TypedDict):
    """`fleet tracker token list`"""

    tokens: list[TokenFacts]


class MemberFacts(TypedDict):
    key_id: str
    name: str
    role: str
    joined_at: Moment
    device_names: list[str]
    revoked_at: Moment | None
    revoked_by: str
    reason: str
    account: str
    """Account that its requests count for; "": its key."""

    may_ask_for_others: bool


class Members(TypedDict):
    """`fleet tracker members`"""

    members: list[MemberFacts]


class FoundService(TypedDict):
    kind: str
    """tracker or agent"""

    name: str
    addresses: list[str]
    fleet: str
    """Id of the fleet that it names; "": none."""

    key_id: str
    """Key of an agent; "": it has joined no fleet."""

    is_asking: bool
    state: str
    """joined, pending, unjoined or other: seen from this account."""


class Discovered(TypedDict):
    """`fleet discover`"""

    services: list[FoundService]


class PendingAgentFacts(TypedDict):
    """`fleet agent refuse`, and one agent of `fleet agent pending`"""

    code: str
    key_id: str
    name: str
    host: str
    asked_at: Moment


class PendingAgents(TypedDict):
    """`fleet agent pending`"""

    agents: list[PendingAgentFacts]


class Revocation(TypedDict):
    """`fleet tracker revoke`"""

    member: MemberFacts
    ended_leases: list[str]
    freed_devices: list[str]


class Deed(TypedDict):
    at: Moment
    name: str
    role: str
    key_id: str
    peer: str
    action: str
    subject: str
    outcome: str


class Audit(TypedDict):
    """`fleet audit`"""

    deeds: list[Deed]


class Setting(TypedDict):
    key: str
    value: str
    source: str
    where: str


class Configuration(TypedDict):
    """`fleet config show`"""

    file: str
    is_there: bool
    settings: list[Setting]


class Epoch(TypedDict):
    """`fleet devices reset-epochs`"""

    device: str
    epoch: int


class Marked(TypedDict):
    """`fleet devices drain`, `resume`, `quarantine`, `maintain` and `retire`"""

    devices: list[str]
    state: str
    reason: str
    until_sec: float | None


class Reloaded(TypedDict):
    """`fleet tracker reload`"""

    path: str
    account_count: int
    changed_account_count: int
    class_count: int
    half_life_sec: float
    starvation_sec: float
    is_changed: bool


class Joined(TypedDict):
    """`fleet login`, `fleet agent join`"""

    tracker: str
    role: str
    name: str
    key_id: str
    key_file: str


class Deployed(TypedDict):
    """`fleet agent deploy`; without address and devices if the requested agent was already running"""

    host: str
    is_changed: bool
    address: str | None
    devices: list[str]


class Journal(TypedDict):
    """`fleet tracker fsck`"""

    is_whole: bool
    journal: str
    copy: str


class Backup(TypedDict):
    """`fleet tracker backup` and `fleet tracker restore`; `made_at` in ISO 8601"""

    path: str
    made_at: str
    files: list[str]
    size_bytes: int
    members: int
    devices: int
    leases: int
    requests: int
    bookings: int


class Unbound(TypedDict):
    """`fleet tracker unbind`"""

    device: str
    key_id: str
