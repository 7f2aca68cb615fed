"""Programs that killed a device, as agents report them. Pure.

An agent reports programs of its own devices only. When the list is full, the oldest entry of the device with the most
entries goes, so that no agent can displace the reports of others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import takewhile

from fleet.domain.poison import MAX_POISON, Poison
from fleet.tracker.core import events as ev
from fleet.tracker.core.tables import Tables

_TIMER = ("poison",)
_IGNORED_SEC = 30.0
"""Time for which reports of a forgotten program are ignored. Agents get the change within five seconds."""


def find(tables: Tables, event: ev.PoisonFound) -> None:
    """Note a program. A repeated report changes nothing, or it would be kept for ever."""
    if event.device_name not in tables.devices_by_agent.get(event.agent_id, ()) or event.digest in tables.poison:
        return
    if _is_fresh(tables, event.digest):
        return
    found = Poison(
        digest=event.digest, device_name=event.device_name, at_sec=tables.now_sec, reported_by=event.reported_by
    )
    tables.poison[found.digest] = tables.changes.poison[found.digest] = found
    tables.poison_count += 1
    if len(tables.poison) > MAX_POISON:
        _forget(tables, _oldest_of_most(tables))
    _set_timer(tables)


def forget(tables: Tables, event: ev.ForgetPoison) -> None:
    """Have agents run a program again."""
    found = tables.poison.get(event.digest)
    if found is None:
        return
    _forget(tables, event.digest)
    tables.forgotten_poison.append((event.digest, tables.now_sec))
    tables.forgotten_count += 1
    _set_timer(tables)
    tables.effects.append(ev.PoisonForgotten(found))


def restore(tables: Tables, found: Iterable[Poison]) -> None:
    """Take over the programs of the journal, oldest first. None is younger than now: the clock may have been set."""
    for each in found:
        tables.poison[each.digest] = replace(each, at_sec=min(each.at_sec, tables.now_sec))
    tables.poison_count = len(tables.poison)
    _expire(tables)


def _is_fresh(tables: Tables, digest: str) -> bool:
    """Return True if a program was forgotten a moment ago: the reporting agent may not know it yet."""
    oldest_sec = tables.now_sec - _IGNORED_SEC
    recent = takewhile(lambda each: each[1] > oldest_sec, reversed(tables.forgotten_poison))
    return any(each == digest for each, _ in recent)


def _expire(tables: Tables) -> None:
    """Forget expired programs."""
    for digest in [digest for digest, found in tables.poison.items() if found.expires_sec <= tables.now_sec]:
        _forget(tables, digest)
    _set_timer(tables)


def _forget(tables: Tables, digest: str) -> None:
    del tables.poison[digest]
    tables.changes.poison[digest] = None


def _oldest_of_most(tables: Tables) -> str:
    counts = Counter(found.device_name for found in tables.poison.values())
    most = max(counts.values())
    return next(digest for digest, found in tables.poison.items() if counts[found.device_name] == most)


def _set_timer(tables: Tables) -> None:
    oldest = next(iter(tables.poison.values()), None)
    if oldest is None:
        tables.timers.cancel(_TIMER)
    else:
        tables.timers.set(_TIMER, oldest.expires_sec, lambda: _expire(tables))
