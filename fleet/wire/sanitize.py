"""Messages of strangers, made fit to be shown: every text within them, see `fleet.base.text`."""

from __future__ import annotations

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from fleet.base.text import sanitize


def sanitize_message(message: Message) -> None:
    """Make every text in a message fit to be shown, names and keys of maps included, in place."""
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
    """Clean a map of text to text; others are left alone."""
    if content.type != FieldDescriptor.TYPE_STRING:
        return
    for key, text in list(entries.items()):
        fit_key, fit = sanitize(key), sanitize(text)
        if (fit_key, fit) != (key, text):
            del entries[key]
            entries[fit_key] = fit
