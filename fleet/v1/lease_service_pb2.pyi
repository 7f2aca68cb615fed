import datetime

from fleet.v1 import booking_pb2 as _booking_pb2
from fleet.v1 import device_pb2 as _device_pb2
from fleet.v1 import job_pb2 as _job_pb2
from fleet.v1 import lease_pb2 as _lease_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LeaseEnd(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LEASE_END_UNSPECIFIED: _ClassVar[LeaseEnd]
    LEASE_END_RELEASED: _ClassVar[LeaseEnd]
    LEASE_END_EXPIRED: _ClassVar[LeaseEnd]
    LEASE_END_REVOKED: _ClassVar[LeaseEnd]
    LEASE_END_CLIENT_LOST: _ClassVar[LeaseEnd]
    LEASE_END_UNKNOWN: _ClassVar[LeaseEnd]
    LEASE_END_YIELDED: _ClassVar[LeaseEnd]
LEASE_END_UNSPECIFIED: LeaseEnd
LEASE_END_RELEASED: LeaseEnd
LEASE_END_EXPIRED: LeaseEnd
LEASE_END_REVOKED: LeaseEnd
LEASE_END_CLIENT_LOST: LeaseEnd
LEASE_END_UNKNOWN: LeaseEnd
LEASE_END_YIELDED: LeaseEnd

class OpenLeasesRequest(_message.Message):
    __slots__ = ("hello", "events")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    hello: ClientHello
    events: _containers.RepeatedCompositeFieldContainer[ClientEvent]
    def __init__(self, hello: _Optional[_Union[ClientHello, _Mapping]] = ..., events: _Optional[_Iterable[_Union[ClientEvent, _Mapping]]] = ...) -> None: ...

class ClientHello(_message.Message):
    __slots__ = ("client_id", "holder", "version")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    holder: str
    version: str
    def __init__(self, client_id: _Optional[str] = ..., holder: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class ClientEvent(_message.Message):
    __slots__ = ("acquire", "cancel", "renew", "release", "job", "optimizer")
    ACQUIRE_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    RENEW_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    acquire: _lease_pb2.Acquire
    cancel: Cancel
    renew: Renew
    release: Release
    job: _job_pb2.Job
    optimizer: _job_pb2.Optimizer
    def __init__(self, acquire: _Optional[_Union[_lease_pb2.Acquire, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., renew: _Optional[_Union[Renew, _Mapping]] = ..., release: _Optional[_Union[Release, _Mapping]] = ..., job: _Optional[_Union[_job_pb2.Job, _Mapping]] = ..., optimizer: _Optional[_Union[_job_pb2.Optimizer, _Mapping]] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class Renew(_message.Message):
    __slots__ = ("lease_name",)
    LEASE_NAME_FIELD_NUMBER: _ClassVar[int]
    lease_name: str
    def __init__(self, lease_name: _Optional[str] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ("lease_name",)
    LEASE_NAME_FIELD_NUMBER: _ClassVar[int]
    lease_name: str
    def __init__(self, lease_name: _Optional[str] = ...) -> None: ...

class OpenLeasesResponse(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[TrackerEvent]
    def __init__(self, events: _Optional[_Iterable[_Union[TrackerEvent, _Mapping]]] = ...) -> None: ...

class TrackerEvent(_message.Message):
    __slots__ = ("welcome", "queued", "granted", "refused", "renewed", "lease_ended", "yield_wanted", "booking_changed", "outbid", "other_tracker")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    RENEWED_FIELD_NUMBER: _ClassVar[int]
    LEASE_ENDED_FIELD_NUMBER: _ClassVar[int]
    YIELD_WANTED_FIELD_NUMBER: _ClassVar[int]
    BOOKING_CHANGED_FIELD_NUMBER: _ClassVar[int]
    OUTBID_FIELD_NUMBER: _ClassVar[int]
    OTHER_TRACKER_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    queued: _lease_pb2.PendingRequest
    granted: _lease_pb2.Granted
    refused: Refused
    renewed: Renewed
    lease_ended: LeaseEnded
    yield_wanted: YieldWanted
    booking_changed: BookingChanged
    outbid: Outbid
    other_tracker: OtherTracker
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., queued: _Optional[_Union[_lease_pb2.PendingRequest, _Mapping]] = ..., granted: _Optional[_Union[_lease_pb2.Granted, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., renewed: _Optional[_Union[Renewed, _Mapping]] = ..., lease_ended: _Optional[_Union[LeaseEnded, _Mapping]] = ..., yield_wanted: _Optional[_Union[YieldWanted, _Mapping]] = ..., booking_changed: _Optional[_Union[BookingChanged, _Mapping]] = ..., outbid: _Optional[_Union[Outbid, _Mapping]] = ..., other_tracker: _Optional[_Union[OtherTracker, _Mapping]] = ...) -> None: ...

class OtherTracker(_message.Message):
    __slots__ = ("address", "term")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    address: str
    term: int
    def __init__(self, address: _Optional[str] = ..., term: _Optional[int] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("tracker_id", "leases", "fleet_id", "account", "may_ask_for_others", "most_set_devices")
    TRACKER_ID_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    FLEET_ID_FIELD_NUMBER: _ClassVar[int]
    ACCOUNT_FIELD_NUMBER: _ClassVar[int]
    MAY_ASK_FOR_OTHERS_FIELD_NUMBER: _ClassVar[int]
    MOST_SET_DEVICES_FIELD_NUMBER: _ClassVar[int]
    tracker_id: str
    leases: _containers.RepeatedCompositeFieldContainer[_lease_pb2.Lease]
    fleet_id: str
    account: str
    may_ask_for_others: bool
    most_set_devices: int
    def __init__(self, tracker_id: _Optional[str] = ..., leases: _Optional[_Iterable[_Union[_lease_pb2.Lease, _Mapping]]] = ..., fleet_id: _Optional[str] = ..., account: _Optional[str] = ..., may_ask_for_others: _Optional[bool] = ..., most_set_devices: _Optional[int] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("request_id", "error_class", "message")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_CLASS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    error_class: str
    message: str
    def __init__(self, request_id: _Optional[str] = ..., error_class: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class Renewed(_message.Message):
    __slots__ = ("lease", "token")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    lease: _lease_pb2.Lease
    token: _lease_pb2.Token
    def __init__(self, lease: _Optional[_Union[_lease_pb2.Lease, _Mapping]] = ..., token: _Optional[_Union[_lease_pb2.Token, _Mapping]] = ...) -> None: ...

class YieldWanted(_message.Message):
    __slots__ = ("lease_name", "until", "lease_class", "reason")
    LEASE_NAME_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    LEASE_CLASS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    lease_name: str
    until: _timestamp_pb2.Timestamp
    lease_class: _lease_pb2.LeaseClass
    reason: str
    def __init__(self, lease_name: _Optional[str] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., lease_class: _Optional[_Union[_lease_pb2.LeaseClass, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class Outbid(_message.Message):
    __slots__ = ("lease_name", "bid")
    LEASE_NAME_FIELD_NUMBER: _ClassVar[int]
    BID_FIELD_NUMBER: _ClassVar[int]
    lease_name: str
    bid: float
    def __init__(self, lease_name: _Optional[str] = ..., bid: _Optional[float] = ...) -> None: ...

class BookingChanged(_message.Message):
    __slots__ = ("booking",)
    BOOKING_FIELD_NUMBER: _ClassVar[int]
    booking: _booking_pb2.Booking
    def __init__(self, booking: _Optional[_Union[_booking_pb2.Booking, _Mapping]] = ...) -> None: ...

class LeaseEnded(_message.Message):
    __slots__ = ("lease_name", "end", "message")
    LEASE_NAME_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    lease_name: str
    end: LeaseEnd
    message: str
    def __init__(self, lease_name: _Optional[str] = ..., end: _Optional[_Union[LeaseEnd, str]] = ..., message: _Optional[str] = ...) -> None: ...

class RevokeLeaseRequest(_message.Message):
    __slots__ = ("lease_name", "reason")
    LEASE_NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    lease_name: str
    reason: str
    def __init__(self, lease_name: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class RevokeLeaseResponse(_message.Message):
    __slots__ = ("lease",)
    LEASE_FIELD_NUMBER: _ClassVar[int]
    lease: _lease_pb2.Lease
    def __init__(self, lease: _Optional[_Union[_lease_pb2.Lease, _Mapping]] = ...) -> None: ...

class CancelRequestRequest(_message.Message):
    __slots__ = ("request_id", "reason")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    reason: str
    def __init__(self, request_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class CancelRequestResponse(_message.Message):
    __slots__ = ("request",)
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    request: _lease_pb2.PendingRequest
    def __init__(self, request: _Optional[_Union[_lease_pb2.PendingRequest, _Mapping]] = ...) -> None: ...

class ExplainRequestRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class ExplainRequestResponse(_message.Message):
    __slots__ = ("request", "account", "weight", "used", "share_had", "share_due", "quota", "device_count", "candidates", "omissions", "at")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ACCOUNT_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    SHARE_HAD_FIELD_NUMBER: _ClassVar[int]
    SHARE_DUE_FIELD_NUMBER: _ClassVar[int]
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    DEVICE_COUNT_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    OMISSIONS_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    request: _lease_pb2.PendingRequest
    account: str
    weight: float
    used: _duration_pb2.Duration
    share_had: float
    share_due: float
    quota: _lease_pb2.QuotaUse
    device_count: int
    candidates: _containers.RepeatedCompositeFieldContainer[Candidate]
    omissions: _containers.RepeatedCompositeFieldContainer[ClauseOmission]
    at: _timestamp_pb2.Timestamp
    def __init__(self, request: _Optional[_Union[_lease_pb2.PendingRequest, _Mapping]] = ..., account: _Optional[str] = ..., weight: _Optional[float] = ..., used: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., share_had: _Optional[float] = ..., share_due: _Optional[float] = ..., quota: _Optional[_Union[_lease_pb2.QuotaUse, _Mapping]] = ..., device_count: _Optional[int] = ..., candidates: _Optional[_Iterable[_Union[Candidate, _Mapping]]] = ..., omissions: _Optional[_Iterable[_Union[ClauseOmission, _Mapping]]] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Candidate(_message.Message):
    __slots__ = ("device_name", "state", "reason", "lease", "booking", "free_at")
    DEVICE_NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    BOOKING_FIELD_NUMBER: _ClassVar[int]
    FREE_AT_FIELD_NUMBER: _ClassVar[int]
    device_name: str
    state: _device_pb2.DeviceState
    reason: str
    lease: _lease_pb2.LeaseBefore
    booking: _lease_pb2.BookingBefore
    free_at: _timestamp_pb2.Timestamp
    def __init__(self, device_name: _Optional[str] = ..., state: _Optional[_Union[_device_pb2.DeviceState, str]] = ..., reason: _Optional[str] = ..., lease: _Optional[_Union[_lease_pb2.LeaseBefore, _Mapping]] = ..., booking: _Optional[_Union[_lease_pb2.BookingBefore, _Mapping]] = ..., free_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ClauseOmission(_message.Message):
    __slots__ = ("clause", "device_count", "free_count")
    CLAUSE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_COUNT_FIELD_NUMBER: _ClassVar[int]
    FREE_COUNT_FIELD_NUMBER: _ClassVar[int]
    clause: str
    device_count: int
    free_count: int
    def __init__(self, clause: _Optional[str] = ..., device_count: _Optional[int] = ..., free_count: _Optional[int] = ...) -> None: ...

class ResetEpochsRequest(_message.Message):
    __slots__ = ("device_name",)
    DEVICE_NAME_FIELD_NUMBER: _ClassVar[int]
    device_name: str
    def __init__(self, device_name: _Optional[str] = ...) -> None: ...

class ResetEpochsResponse(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class ReloadTrackerRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReloadTrackerResponse(_message.Message):
    __slots__ = ("path", "account_count", "changed_account_count", "class_count", "half_life", "starvation", "is_changed")
    PATH_FIELD_NUMBER: _ClassVar[int]
    ACCOUNT_COUNT_FIELD_NUMBER: _ClassVar[int]
    CHANGED_ACCOUNT_COUNT_FIELD_NUMBER: _ClassVar[int]
    CLASS_COUNT_FIELD_NUMBER: _ClassVar[int]
    HALF_LIFE_FIELD_NUMBER: _ClassVar[int]
    STARVATION_FIELD_NUMBER: _ClassVar[int]
    IS_CHANGED_FIELD_NUMBER: _ClassVar[int]
    path: str
    account_count: int
    changed_account_count: int
    class_count: int
    half_life: _duration_pb2.Duration
    starvation: _duration_pb2.Duration
    is_changed: bool
    def __init__(self, path: _Optional[str] = ..., account_count: _Optional[int] = ..., changed_account_count: _Optional[int] = ..., class_count: _Optional[int] = ..., half_life: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., starvation: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., is_changed: _Optional[bool] = ...) -> None: ...

class SetHealthRequest(_message.Message):
    __slots__ = ("selector", "state", "reason", "until")
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    selector: str
    state: _device_pb2.HealthState
    reason: str
    until: _timestamp_pb2.Timestamp
    def __init__(self, selector: _Optional[str] = ..., state: _Optional[_Union[_device_pb2.HealthState, str]] = ..., reason: _Optional[str] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class SetHealthResponse(_message.Message):
    __slots__ = ("device_names",)
    DEVICE_NAMES_FIELD_NUMBER: _ClassVar[int]
    device_names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, device_names: _Optional[_Iterable[str]] = ...) -> None: ...
