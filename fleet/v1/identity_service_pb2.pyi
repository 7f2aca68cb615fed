import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MemberRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MEMBER_ROLE_UNSPECIFIED: _ClassVar[MemberRole]
    MEMBER_ROLE_AGENT: _ClassVar[MemberRole]
    MEMBER_ROLE_USER: _ClassVar[MemberRole]
    MEMBER_ROLE_ADMIN: _ClassVar[MemberRole]
    MEMBER_ROLE_STANDBY: _ClassVar[MemberRole]
MEMBER_ROLE_UNSPECIFIED: MemberRole
MEMBER_ROLE_AGENT: MemberRole
MEMBER_ROLE_USER: MemberRole
MEMBER_ROLE_ADMIN: MemberRole
MEMBER_ROLE_STANDBY: MemberRole

class JoinRequest(_message.Message):
    __slots__ = ("secret", "certificate_request", "name", "roles")
    SECRET_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    secret: bytes
    certificate_request: bytes
    name: str
    roles: _containers.RepeatedScalarFieldContainer[MemberRole]
    def __init__(self, secret: _Optional[bytes] = ..., certificate_request: _Optional[bytes] = ..., name: _Optional[str] = ..., roles: _Optional[_Iterable[_Union[MemberRole, str]]] = ...) -> None: ...

class JoinResponse(_message.Message):
    __slots__ = ("certificate", "authority", "role")
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    certificate: bytes
    authority: bytes
    role: MemberRole
    def __init__(self, certificate: _Optional[bytes] = ..., authority: _Optional[bytes] = ..., role: _Optional[_Union[MemberRole, str]] = ...) -> None: ...

class RenewCertificateRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RenewCertificateResponse(_message.Message):
    __slots__ = ("certificate",)
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    certificate: bytes
    def __init__(self, certificate: _Optional[bytes] = ...) -> None: ...

class CreateJoinTokenRequest(_message.Message):
    __slots__ = ("role", "ttl", "note", "account", "may_ask_for_others")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    ACCOUNT_FIELD_NUMBER: _ClassVar[int]
    MAY_ASK_FOR_OTHERS_FIELD_NUMBER: _ClassVar[int]
    role: MemberRole
    ttl: _duration_pb2.Duration
    note: str
    account: str
    may_ask_for_others: bool
    def __init__(self, role: _Optional[_Union[MemberRole, str]] = ..., ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., note: _Optional[str] = ..., account: _Optional[str] = ..., may_ask_for_others: _Optional[bool] = ...) -> None: ...

class CreateJoinTokenResponse(_message.Message):
    __slots__ = ("secret", "token")
    SECRET_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    secret: bytes
    token: JoinToken
    def __init__(self, secret: _Optional[bytes] = ..., token: _Optional[_Union[JoinToken, _Mapping]] = ...) -> None: ...

class JoinToken(_message.Message):
    __slots__ = ("token_id", "role", "created_at", "expires_at", "created_by", "note", "account", "may_ask_for_others")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    CREATED_BY_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    ACCOUNT_FIELD_NUMBER: _ClassVar[int]
    MAY_ASK_FOR_OTHERS_FIELD_NUMBER: _ClassVar[int]
    token_id: str
    role: MemberRole
    created_at: _timestamp_pb2.Timestamp
    expires_at: _timestamp_pb2.Timestamp
    created_by: str
    note: str
    account: str
    may_ask_for_others: bool
    def __init__(self, token_id: _Optional[str] = ..., role: _Optional[_Union[MemberRole, str]] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., created_by: _Optional[str] = ..., note: _Optional[str] = ..., account: _Optional[str] = ..., may_ask_for_others: _Optional[bool] = ...) -> None: ...

class ListJoinTokensRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListJoinTokensResponse(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[JoinToken]
    def __init__(self, tokens: _Optional[_Iterable[_Union[JoinToken, _Mapping]]] = ...) -> None: ...

class RevokeJoinTokenRequest(_message.Message):
    __slots__ = ("token_id",)
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    token_id: str
    def __init__(self, token_id: _Optional[str] = ...) -> None: ...

class RevokeJoinTokenResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UnbindDeviceRequest(_message.Message):
    __slots__ = ("device_name",)
    DEVICE_NAME_FIELD_NUMBER: _ClassVar[int]
    device_name: str
    def __init__(self, device_name: _Optional[str] = ...) -> None: ...

class UnbindDeviceResponse(_message.Message):
    __slots__ = ("key_id",)
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    key_id: str
    def __init__(self, key_id: _Optional[str] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("key_id", "name", "role", "joined_at", "device_names", "revoked_at", "revoked_by", "reason", "account", "may_ask_for_others")
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    JOINED_AT_FIELD_NUMBER: _ClassVar[int]
    DEVICE_NAMES_FIELD_NUMBER: _ClassVar[int]
    REVOKED_AT_FIELD_NUMBER: _ClassVar[int]
    REVOKED_BY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ACCOUNT_FIELD_NUMBER: _ClassVar[int]
    MAY_ASK_FOR_OTHERS_FIELD_NUMBER: _ClassVar[int]
    key_id: str
    name: str
    role: MemberRole
    joined_at: _timestamp_pb2.Timestamp
    device_names: _containers.RepeatedScalarFieldContainer[str]
    revoked_at: _timestamp_pb2.Timestamp
    revoked_by: str
    reason: str
    account: str
    may_ask_for_others: bool
    def __init__(self, key_id: _Optional[str] = ..., name: _Optional[str] = ..., role: _Optional[_Union[MemberRole, str]] = ..., joined_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., device_names: _Optional[_Iterable[str]] = ..., revoked_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., revoked_by: _Optional[str] = ..., reason: _Optional[str] = ..., account: _Optional[str] = ..., may_ask_for_others: _Optional[bool] = ...) -> None: ...

class ListMembersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListMembersResponse(_message.Message):
    __slots__ = ("members",)
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[Member]
    def __init__(self, members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ...) -> None: ...

class RevokeMemberRequest(_message.Message):
    __slots__ = ("key_id", "reason")
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    key_id: str
    reason: str
    def __init__(self, key_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class RevokeMemberResponse(_message.Message):
    __slots__ = ("member", "ended_leases", "freed_devices")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    ENDED_LEASES_FIELD_NUMBER: _ClassVar[int]
    FREED_DEVICES_FIELD_NUMBER: _ClassVar[int]
    member: Member
    ended_leases: _containers.RepeatedScalarFieldContainer[str]
    freed_devices: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, member: _Optional[_Union[Member, _Mapping]] = ..., ended_leases: _Optional[_Iterable[str]] = ..., freed_devices: _Optional[_Iterable[str]] = ...) -> None: ...

class ListRevokedKeysRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListRevokedKeysResponse(_message.Message):
    __slots__ = ("key_ids",)
    KEY_IDS_FIELD_NUMBER: _ClassVar[int]
    key_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, key_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class ListAuditEntriesRequest(_message.Message):
    __slots__ = ("limit",)
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    limit: int
    def __init__(self, limit: _Optional[int] = ...) -> None: ...

class ListAuditEntriesResponse(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[AuditEntry]
    def __init__(self, entries: _Optional[_Iterable[_Union[AuditEntry, _Mapping]]] = ...) -> None: ...

class AuditEntry(_message.Message):
    __slots__ = ("at", "name", "role", "key_id", "peer", "action", "subject", "outcome")
    AT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    at: _timestamp_pb2.Timestamp
    name: str
    role: str
    key_id: str
    peer: str
    action: str
    subject: str
    outcome: str
    def __init__(self, at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., name: _Optional[str] = ..., role: _Optional[str] = ..., key_id: _Optional[str] = ..., peer: _Optional[str] = ..., action: _Optional[str] = ..., subject: _Optional[str] = ..., outcome: _Optional[str] = ...) -> None: ...
