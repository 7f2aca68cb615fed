"""Sanitizes messages of untrusted peers: every text in them, see `fleet.base.text`."""

from __future__ import annotations

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from fleet.base.text import sanitize


def sanitize_message(message: Message) -> None:
    """Sanitize every text in a message in place, including names and keys of maps."""
    for field, value in message.ListFields():
        entry = field.message_type if field.message_type and field.message_type.GetOptions().map_entry else None
        if entry is not None:
            _clean_map(entry.fields_by_name["value"], value)
        elif field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            for each in value if field.is_repeated else (value,):
                sanitize_message(each)
        elif field.type == FieldDescriptor.TYPE_STRING:
            if field.is_repeated:
                value[:] = [sanitize(text) for text in value]
            elif (text := sanitize(value)) != value:
                setattr(message, field.name, text)


def _clean_map(content: FieldDescriptor, entries: dict[str, str]) -> None:
    """Sanitize a map from text to text; others are unchanged."""
    if content.type != FieldDescriptor.TYPE_STRING:
        return
    for key, text in list(entries.items()):
        fit_key, fit = sanitize(key), sanitize(text)
        if (fit_key, fit) != (key, text):
            del entries[key]
            entries[fit_key] = fit
