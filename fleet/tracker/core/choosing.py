"""Choice among free devices. Pure.

A request gets a device of the most common class, so that it takes none of the few boards that others need. A class is
as common as the smallest group that contains it, among the groups of other selectors that were requested in the last
days.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from itertools import chain, islice

from fleet.tracker.core.groups import DeviceClass, Group
from fleet.tracker.core.matching import Matching

_MAX_COMPARED_CLASSES = 64
"""Number of a group's classes above which the device that was used least recently is taken, however rare."""
_OFFERED_INSTEAD = 16
"""Number of free devices that are compared with a held one."""
_DEMAND_SEC = 3 * 86_400.0
"""A selector makes devices rare for this long after its last request."""


def take_free(
    matching: Matching, selector: str, now: float, preferred: str = "", *, takes_suspects: bool = True
) -> str | None:
    """Return the free device for a request: of the most common class, and there the least recently used one.

    Args:
        selector: canonical text.
        now: time of the request [s].
        preferred: stricter selector, tried first; empty: no preference.
        takes_suspects: whether a suspect device will do if no other is free.
    """
    group, suspects = matching.group(selector), matching.suspects
    group.asked_sec = now
    for each in (matching.group(preferred), group) if preferred else (group,):
        name = _most_common_free(matching, each, now, suspects)
        if name is None and takes_suspects and suspects:
            name = _most_common_free(matching, each, now, ())
        if name is not None:
            return name
    return None


def free_in_order(matching: Matching, group: Group, limit: int, now: float, held: Sequence[str] = ()) -> list[str]:
    """Return free devices of a group, those of the most common class first.

    Args:
        held: devices of the group that count as free, before others of their class.
    """
    if not 1 < len(group.classes) <= _MAX_COMPARED_CLASSES:
        return list(islice(chain(held, group.free), limit))
    since_sec, held_by_class = now - _DEMAND_SEC, defaultdict[DeviceClass, list[str]](list)
    for name in held:
        held_by_class[matching.class_of(name)].append(name)
    found = (class_ for class_ in group.classes if class_.free or class_ in held_by_class)
    classes = sorted(found, key=lambda class_: -class_.commonness(group, since_sec))
    names = (name for class_ in classes for name in chain(held_by_class.get(class_, ()), class_.free))
    return list(islice(names, limit))


def commoner_free(matching: Matching, group: Group, name: str, now: float) -> list[str]:
    """Return good free devices of a group that are of a more common class than one of its devices, in order."""
    if not group.free or not 1 < len(group.classes) <= _MAX_COMPARED_CLASSES:
        return []
    since_sec = now - _DEMAND_SEC
    own = matching.class_of(name).commonness(group, since_sec)
    found = free_in_order(matching, group, _OFFERED_INSTEAD, now)
    good = (each for each in found if each not in matching.suspects)
    return [each for each in good if matching.class_of(each).commonness(group, since_sec) > own]


def _most_common_free(matching: Matching, group: Group, now: float, skipped: Collection[str]) -> str | None:
    if len(group.free) <= 1 or not 1 < len(group.classes) <= _MAX_COMPARED_CLASSES:
        return _first(group.free, skipped)
    found = ((class_, _first(class_.free, skipped)) for class_ in group.classes)
    firsts = [(class_, name) for class_, name in found if name is not None]
    if len(firsts) <= 1:
        return firsts[0][1] if firsts else None
    since_sec = now - _DEMAND_SEC
    ranks = ((-class_.commonness(group, since_sec), matching.free_place(name), name) for class_, name in firsts)
    return min(ranks)[2]


def _first(names: Iterable[str], skipped: Collection[str]) -> str | None:
    return next((name for name in names if name not in skipped), None) if skipped else next(iter(names), None)
