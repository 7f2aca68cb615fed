"""Fragments as the library stores them: compressed JSON of bounded size.

Anybody with write access may have stored one, so it is read as strictly as a file of workloads.
"""

from __future__ import annotations

import json
import zlib

from fleet.errors import ConfigError, InvalidRequest
from fleet.fragments.fragment import Fragment
from fleet.fragments.workload_file import plain_fragment
from fleet.fragments.workload_reading import parse_fragment

_FORMAT = 1
"""Incremented when older programs would misread a fragment."""

_MOST_BYTES = 64 * 1024
"""Of the JSON. Those of ResNet-18 have at most 6 kB."""

_WHERE = "stored fragment"


def to_stored(fragment: Fragment) -> bytes | None:
    """Return the stored form of a fragment, or None if it is larger than a reader accepts."""
    text = json.dumps({"format": _FORMAT, "fragment": plain_fragment(fragment)}, separators=(",", ":")).encode()
    return zlib.compress(text) if len(text) <= _MOST_BYTES else None


def from_stored(content: bytes) -> Fragment:
    """Return a fragment from its stored form.

    Raises:
        InvalidRequest: it is malformed, too large or of a newer version.
    """
    found = _json(content)
    if not isinstance(found, dict) or found.keys() != {"format", "fragment"}:
        raise InvalidRequest(f"{_WHERE}: expected an object with format and fragment")
    if found["format"] != _FORMAT:
        raise InvalidRequest(f"{_WHERE}: only format {_FORMAT} can be read; a newer version may read this one")
    try:
        return parse_fragment(found["fragment"], where=_WHERE)
    except ConfigError as error:
        raise InvalidRequest(str(error)) from error


def _json(content: bytes) -> object:
    try:
        reader = zlib.decompressobj()
        text = reader.decompress(content, _MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise InvalidRequest(f"{_WHERE}: has more than {_MOST_BYTES} bytes")
        if not reader.eof:
            raise InvalidRequest(f"{_WHERE}: is cut off")
        return json.loads(text)
    except (zlib.error, ValueError, RecursionError) as error:
        raise InvalidRequest(f"{_WHERE}: is not compressed JSON: {error}") from error
