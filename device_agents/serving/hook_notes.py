"""Persists the state of hooks over restarts of the agent: power cycles of the last day, and leases not cleaned up.

`hooks.json` in a directory that only the agent's user can read.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from pathlib import Path

from fleet.base.private_files import write_private

logger = logging.getLogger(__name__)

_MAX_BYTES = 16 * 1024 * 1024
"""A larger file was not written by us: a thousand devices take 300 kB."""
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError)


@dataclass(slots=True, kw_only=True)
class HookNote:
    """Notes about one device."""

    cycled_at_sec: list[float] = field(default_factory=list)
    """Times of its power cycles [s since 1970]."""
    lease_name: str = ""
    """Lease that `before_lease` was run for and `after_lease` was not; empty: none."""
    holder: str = ""


class HookNotes:
    """Notes about all devices of an agent, by name."""

    def __init__(self, path: Path | None = None) -> None:
        """Args: path: of the file; None: nothing is kept."""
        self._path = path
        self._notes: dict[str, HookNote] | None = None

    def of(self, device_name: str) -> HookNote:
        """Return the notes about a device."""
        if self._notes is None:
            self._notes = self._read()
        return self._notes.setdefault(device_name, HookNote())

    def write(self) -> bool:
        """Replace the file; return False if that failed, as on a full disk."""
        if self._path is None or self._notes is None:
            return True
        content = {
            name: {"cycled_at_sec": note.cycled_at_sec, "lease_name": note.lease_name, "holder": note.holder}
            for name, note in self._notes.items()
            if note.cycled_at_sec or note.lease_name
        }
        try:
            write_private(self._path, json.dumps(content).encode())
        except OSError as error:
            logger.warning("cannot write the notes of hooks", extra={"path": str(self._path), "error": str(error)})
            return False
        return True

    def _read(self) -> dict[str, HookNote]:
        """Read the file. A damaged file counts as empty."""
        if self._path is None:
            return {}
        try:
            if self._path.stat().st_size > _MAX_BYTES:
                raise ValueError(f"more than {_MAX_BYTES} bytes")
            return {str(name): _note(note) for name, note in json.loads(self._path.read_bytes()).items()}
        except FileNotFoundError:
            return {}
        except _UNREADABLE as error:
            extra = {"path": str(self._path), "error": str(error)}
            logger.warning("notes of hooks are damaged, starting new ones", extra=extra)
            return {}


def _note(content: dict[str, object]) -> HookNote:
    times = content["cycled_at_sec"]
    if not isinstance(times, list):
        raise TypeError("the times of power cycles are no list")
    return HookNote(
        cycled_at_sec=[float(at_sec) for at_sec in times],
        lease_name=str(content["lease_name"]),
        holder=str(content["holder"]),
    )
