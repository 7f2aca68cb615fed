import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JobState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    JOB_STATE_UNSPECIFIED: _ClassVar[JobState]
    JOB_STATE_RUNNING: _ClassVar[JobState]
    JOB_STATE_FINISHED: _ClassVar[JobState]
    JOB_STATE_INTERRUPTED: _ClassVar[JobState]
    JOB_STATE_FAILED: _ClassVar[JobState]
    JOB_STATE_QUEUED: _ClassVar[JobState]
    JOB_STATE_CANCELLED: _ClassVar[JobState]
JOB_STATE_UNSPECIFIED: JobState
JOB_STATE_RUNNING: JobState
JOB_STATE_FINISHED: JobState
JOB_STATE_INTERRUPTED: JobState
JOB_STATE_FAILED: JobState
JOB_STATE_QUEUED: JobState
JOB_STATE_CANCELLED: JobState

class Job(_message.Message):
    __slots__ = ("name", "title", "holder", "state", "started_at", "trials_done", "trials_total", "trials_failed", "best_us", "untuned_us", "workload_count", "activity", "trials_repeated", "decision", "share_done", "holder_note", "left", "left_from", "left_by", "rest_share", "optimizer", "builder_count")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    TRIALS_DONE_FIELD_NUMBER: _ClassVar[int]
    TRIALS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    TRIALS_FAILED_FIELD_NUMBER: _ClassVar[int]
    BEST_US_FIELD_NUMBER: _ClassVar[int]
    UNTUNED_US_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_COUNT_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    TRIALS_REPEATED_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    SHARE_DONE_FIELD_NUMBER: _ClassVar[int]
    HOLDER_NOTE_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    LEFT_FROM_FIELD_NUMBER: _ClassVar[int]
    LEFT_BY_FIELD_NUMBER: _ClassVar[int]
    REST_SHARE_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    BUILDER_COUNT_FIELD_NUMBER: _ClassVar[int]
    name: str
    title: str
    holder: str
    state: JobState
    started_at: _timestamp_pb2.Timestamp
    trials_done: int
    trials_total: int
    trials_failed: int
    best_us: float
    untuned_us: float
    workload_count: int
    activity: str
    trials_repeated: int
    decision: str
    share_done: float
    holder_note: str
    left: _duration_pb2.Duration
    left_from: _duration_pb2.Duration
    left_by: _duration_pb2.Duration
    rest_share: float
    optimizer: str
    builder_count: int
    def __init__(self, name: _Optional[str] = ..., title: _Optional[str] = ..., holder: _Optional[str] = ..., state: _Optional[_Union[JobState, str]] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., trials_done: _Optional[int] = ..., trials_total: _Optional[int] = ..., trials_failed: _Optional[int] = ..., best_us: _Optional[float] = ..., untuned_us: _Optional[float] = ..., workload_count: _Optional[int] = ..., activity: _Optional[str] = ..., trials_repeated: _Optional[int] = ..., decision: _Optional[str] = ..., share_done: _Optional[float] = ..., holder_note: _Optional[str] = ..., left: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., left_from: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., left_by: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., rest_share: _Optional[float] = ..., optimizer: _Optional[str] = ..., builder_count: _Optional[int] = ...) -> None: ...

class Optimizer(_message.Message):
    __slots__ = ("name", "holder", "builder_count")
    NAME_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    BUILDER_COUNT_FIELD_NUMBER: _ClassVar[int]
    name: str
    holder: str
    builder_count: int
    def __init__(self, name: _Optional[str] = ..., holder: _Optional[str] = ..., builder_count: _Optional[int] = ...) -> None: ...
