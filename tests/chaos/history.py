"""Log of processes during faults: one JSON object per line, append-only.

Times are those of the machine's monotonic clock, which all processes share and no fault touches. The logs of the
*devices* count: their order is the order of the lines of a device's log, and a run that has the device to itself holds
a lock on that file, which the kernel takes back only with the process.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path


class What(StrEnum):
    """Kinds of events."""

    BEGIN = "begin"
    """Device: a run begins."""
    END = "end"
    """Device: it is over. One without this was cut off with its worker."""

    ASK = "ask"
    """Client: requests a device."""
    GRANT = "grant"
    """Client: got a lease."""
    SERVED = "served"
    """Client: has a measurement."""
    RECORDED = "recorded"
    """Client: the library has acknowledged a record."""
    LOST = "lost"
    """Client: lost the lease, or the connection to its device."""

    GIVEN_BACK = "given back"
    """Client: gave a lease back that had to give way."""

    OPENED = "opened"
    """Tracker: it serves from here on, in `term`; lines of its former life may be missing."""
    FOLLOWED = "followed"
    """Tracker: from here on it tells grants once its standby has them."""
    ALONE = "alone"
    """Tracker: from here on it waits for no standby."""
    HOLDS = "holds"
    """Tracker: `device` has `lease` from here on, or none. Written before the journal has it."""
    GRANTED = "granted"
    """Tracker: granted `lease` to the request `run`; of a set with `number` devices, each has a line."""
    OVER = "over"
    """Tracker: ended `lease`."""
    DEMANDED = "demanded"
    """Tracker: `lease` has to give way to the request `run`; empty: to a mark of its device."""
    BOOKED = "booked"
    """Tracker: `names` are planned for `booking` from here on; none: it has ended."""
    QUEUED = "queued"
    """Tracker: queued the request `run`."""

    FAULT = "fault"
    """Site: fault number `number` happens."""
    DRAINED = "drained"
    """Site: the tracker has stored that `device` is drained; `epoch` is its newest until then."""
    RESUMING = "resuming"
    """Site: `device` may be granted again from here on."""
    CALM = "calm"
    """Site: no fault from here on; `names` are the clients that wait."""
    STORM = "storm"
    """Site: faults from here on."""
    ENDED = "ended"
    """Site: a process ended without having been killed."""
    CENSUS = "census"
    """Site: `counts` of the resources of the process `who`."""
    LEFT = "left"
    """Site: `names` are still there after everything has been stopped."""
    KEPT = "kept"
    """Site: `names` are the records in the library at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of a log."""

    at_sec: float
    """On the monotonic clock."""
    who: str
    what: What
    device: str = ""
    lease: str = ""
    epoch: int = 0
    term: int = 0
    run: str = ""
    """Of BEGIN and END: the run's own name. Of RECORDED: the record's. Of the tracker's events: the request's."""
    account: str = ""
    lease_class: str = ""
    of_set: str = ""
    """Of GRANTED: name of the set; empty for a single device."""
    booking: str = ""
    """Of BOOKED: its name. Of GRANTED: the booking that the request names."""
    starts_at_sec: float = 0.0
    """Of BOOKED and GRANTED: start of the booking or lease, on the tracker's clock."""
    ends_at_sec: float = 0.0
    lasts_sec: float = 0.0
    """Of GRANTED: time until it expires without a renewal."""
    is_alone: bool = True
    """Of BEGIN: whether the device was free at that moment."""
    number: int = 0
    text: str = ""
    names: tuple[str, ...] = ()
    counts: Mapping[str, float] = field(default_factory=dict)
    line: str = ""
    """Its place, "FILE:NUMBER"; not written."""

    def __str__(self) -> str:
        shown = {key: value for key, value in asdict(self).items() if value and key not in ("line", "at_sec", "who")}
        shown.pop("is_alone", None)
        words = " ".join(f"{key}={_short(value)}" for key, value in shown.items() if key != "what")
        beside = "" if self.is_alone else " NOT ALONE"
        return f"{self.line or '-'}  {self.at_sec:.3f}  {self.who} {self.what} {words}{beside}"


class Log:
    """One process's log."""

    def __init__(self, path: Path, who: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        self._who = who

    def fileno(self) -> int:
        return self._file

    def write(self, what: What, *, who: str = "", **facts: object) -> None:
        """Append one line, in a single write: lines of several processes never mix."""
        shown = {"at_sec": time.monotonic(), "who": who or self._who, "what": what, **facts}
        os.write(self._file, json.dumps(shown).encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


def read(paths: Iterable[Path]) -> list[Event]:
    """Return the events of the logs, each log in order, ignoring a truncated last line."""
    return [event for path in paths for event in _read_one(path)]


def _read_one(path: Path) -> list[Event]:
    found = []
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        if line and number < len(lines):
            facts = json.loads(line)
            facts |= {"what": What(facts["what"]), "names": tuple(facts.get("names", ()))}
            found.append(Event(**facts, line=f"{path.name}:{number}"))
    return found


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) < 200 else f"{text[:200]}..."
