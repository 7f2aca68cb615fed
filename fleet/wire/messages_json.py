"""Any protobuf message as JSON for scripts.

Not protobuf's own JSON, with strings for integers of 64 bits: numbers are numbers, lengths of time are seconds in keys
that end with `_sec`, moments are RFC 3339, names of enums are small letters without their prefix, unknown values are
null.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from fleet.wire.times import duration_sec

JsonObject = dict[str, object]


def message_json(message: Message, *, has_defaults: bool = True) -> JsonObject:
    """Return a message, JSON-ready.

    Args:
        has_defaults: all fields, unknown ones as null; False: only those that say something.
    """
    said = {field.name for field, _ in message.ListFields()}
    known = cast("Iterable[FieldDescriptor]", message.DESCRIPTOR.fields)
    fields = [field for field in known if has_defaults or field.name in said]
    return {_key(field): _field(field, message, has_defaults=has_defaults) for field in fields}


def _key(field: FieldDescriptor) -> str:
    is_duration = field.message_type is not None and field.message_type.full_name == Duration.DESCRIPTOR.full_name
    return f"{field.name}_sec" if is_duration else field.name


def _field(field: FieldDescriptor, message: Message, *, has_defaults: bool) -> object:
    value: object = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return dict(cast("Mapping[str, object]", value))
    if field.is_repeated:
        return [_value(field, item, has_defaults=has_defaults) for item in cast("Iterable[object]", value)]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _value(field, value, has_defaults=has_defaults)


def _value(field: FieldDescriptor, value: object, *, has_defaults: bool) -> object:
    if isinstance(value, Timestamp):
        return _moment(value)
    if isinstance(value, Duration):
        return duration_sec(value)
    if isinstance(value, Message):
        return message_json(value, has_defaults=has_defaults)
    if field.enum_type is not None:
        return _enum_word(field.enum_type, cast("int", value))
    if field.type == FieldDescriptor.TYPE_FLOAT:
        return float(f"{value:.7g}")  # the digits of 32 bits, without those that 64 add
    return value


def _moment(value: Timestamp) -> str | None:
    """Return a moment as text; None outside the calendar's range: an agent may send anything."""
    try:
        return value.ToJsonString()
    except ValueError:
        return None


def _enum_word(kind: EnumDescriptor, number: int) -> str:
    """Return "available" for DEVICE_STATE_AVAILABLE; "unknown" for values of newer peers."""
    named = kind.values_by_number.get(number)
    prefix = kind.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return named.name.removeprefix(prefix).lower() if named is not None else "unknown"
