"""Matching of devices and selectors. Pure, and fast with 10,000 devices.

Devices that match one selector form a group, with the free ones among them in the order of their last use. A group is
made at its first use. It is kept while requests wait with its selector, and for a while after that.

Devices that are alike form a class.
"""

from __future__ import annotations

import contextlib
import re
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from fnmatch import translate
from itertools import chain, islice

from fleet.domain.narrowing import ClauseCount, narrow
from fleet.domain.selectors import Condition, Selector, parse_selector
from fleet.errors import InvalidRequest
from fleet.tracker.core.groups import DeviceClass, Group, Kind

_MAX_IDLE_GROUPS = 64
"""Number of unused groups that stay, so that a busy fleet does not match its devices again for every request.
With 10,000 devices a group takes 1 MB, and 2 ms to make."""
_MAX_IDLE_NAMES = 1024
"""Number of unused groups of a single device, which are small."""

_MAX_COUNTED_KINDS = 256
"""Number of kinds of devices above which no clauses are counted for a waiting request: that would take over 1 ms."""


class _Idle:
    """Unused groups, least recently used first, up to a limit."""

    def __init__(self, most: int) -> None:
        self.texts: OrderedDict[str, None] = OrderedDict()
        self._most = most

    def add(self, text: str) -> str | None:
        """Add a group by its selector; return the group that is evicted for it."""
        self.texts[text] = None
        return self.texts.popitem(last=False)[0] if len(self.texts) > self._most else None


class Matching:
    """All devices, the free ones, and the groups that they are in."""

    def __init__(self, max_idle_groups: int = _MAX_IDLE_GROUPS, max_idle_names: int = _MAX_IDLE_NAMES) -> None:
        self._labels: dict[str, Mapping[str, str]] = {}
        self._classes: dict[tuple[tuple[str, str], ...], DeviceClass] = {}
        """By labels without the name: a selector is matched once for all devices that are alike."""
        self._class_of: dict[str, DeviceClass] = {}
        """Class of each device."""
        self._groups: dict[str, Group] = {}
        self._groups_by_exact_name: dict[str, dict[Group, None]] = {}
        self._general_groups: dict[Group, None] = {}
        """All other groups."""
        self._pattern_groups: dict[Group, None] = {}
        """General groups that contain a part of a class. Looking a device up in each is faster than an index, which
        every new group would update.
        """
        self._idle_groups = _Idle(max_idle_groups)
        self._idle_names = _Idle(max_idle_names)
        self._free: dict[str, int] = {}
        """Least recently used first, numbered in this order."""
        self._free_count = 0
        self._change_count = 0
        """Number of devices that came, went or changed their labels."""
        self.suspects: set[str] = set()
        """Devices that come last, and serve no batch request that does not name them."""

    @property
    def group_count(self) -> int:
        """Number of groups in memory."""
        return len(self._groups)

    @property
    def kept_count(self) -> int:
        """Number of kept groups, without those of a single device."""
        return len(self._general_groups) - len(self._idle_groups.texts)

    # devices

    def add_device(self, name: str, labels: Mapping[str, str]) -> None:
        """Add a device that is not free. A device known under other labels is matched again."""
        if self._labels.get(name) == labels:
            return
        self.remove_device(name)
        self._change_count += 1
        self._labels[name] = dict(labels)
        self._add_to_class(name, labels)
        named = self._groups_by_exact_name.get(labels["name"], ())
        for group in chain(self._general_groups, named):
            if group.selector.matches(labels):
                group.devices[name] = None
                group.overlapping = None

    def remove_device(self, name: str) -> None:
        """Forget a device. Idempotent."""
        labels = self._labels.get(name)
        if labels is None:
            return
        self.set_busy(name)
        for group in self.groups_of(name):
            del group.devices[name]
            group.overlapping = None
        self._change_count += 1
        del self._labels[name]
        class_ = self._class_of.pop(name)
        del class_.names[name]
        if not class_.names:
            del self._classes[_class_key(labels)]
            for group in class_.groups:
                del group.classes[class_]

    def set_suspect(self, name: str, *, is_suspect: bool) -> None:
        """Mark a device as suspect or not. Idempotent."""
        if is_suspect:
            self.suspects.add(name)
        else:
            self.suspects.discard(name)

    def set_free(self, name: str) -> None:
        """Mark a device as free. Idempotent."""
        if name in self._free:
            return
        self._free_count += 1
        self._free[name] = self._free_count
        self._class_of[name].free[name] = None
        for group in self.groups_of(name):
            group.free[name] = None

    def set_busy(self, name: str) -> None:
        """Mark a device as not free. Idempotent."""
        if name not in self._free:
            return
        del self._free[name]
        del self._class_of[name].free[name]
        for group in self.groups_of(name):
            del group.free[name]

    def free_devices(self) -> list[str]:
        """Return the names of the free devices, least recently used first."""
        return list(self._free)

    def free_place(self, name: str) -> int:
        """Return the place of a free device in the order of `free_devices`, counted since the tracker's start."""
        return self._free[name]

    def class_of(self, name: str) -> DeviceClass:
        """Return the class of a device."""
        return self._class_of[name]

    def kind_of(self, name: str) -> Hashable:
        """Return a key that only devices in the same groups share."""
        named = self._groups_by_exact_name
        is_plain = not self._pattern_groups and not (named and self._labels[name]["name"] in named)
        return self._class_of[name] if is_plain else tuple(self.groups_of(name))

    def offered(self, group: Group, most: int) -> list[str]:
        """Return free devices of a group, suspects last."""
        good = islice((name for name in group.free if name not in self.suspects), most)
        return [*good, *islice((name for name in group.free if name in self.suspects), most if self.suspects else 0)]

    def has_free(self, selector: str, *, takes_suspects: bool = True) -> bool:
        """Return True if a matching device is free."""
        free = self.group(selector).free
        return bool(free if takes_suspects else free.keys() - self.suspects)

    # selectors, as canonical texts

    def names(self, selector: str, limit: int) -> list[str]:
        """Return the names of matching devices, free or not, attached or not."""
        return list(islice(self.group(selector).devices, limit))

    def count(self, selector: str) -> int:
        """Return the number of matching devices, free or not, attached or not."""
        return len(self.group(selector).devices)

    def narrow(self, selector: str) -> list[ClauseCount]:
        """Return the number of devices that each clause leaves.

        Raises:
            InvalidRequest: a comparison that no device's label allows.
        """
        parsed = parse_selector(selector)
        if any(condition.key == "name" for condition in parsed.conditions):
            return narrow(parsed, [(labels, 1) for labels in self._labels.values()])
        return narrow(parsed, [(dict(key), len(class_.names)) for key, class_ in self._classes.items()])

    def kept_narrowing(self, selector: str) -> list[ClauseCount]:
        """Return the number of devices that each clause leaves, counted anew only after a change of devices.

        Empty for a selector with a malformed comparison, and if there are very many kinds of devices.
        """
        group = self.group(selector)
        if group.narrowing[0] != self._change_count:
            kinds = len(self._classes) if group.is_by_class else len(self._labels)
            counts: list[ClauseCount] = []
            if kinds <= _MAX_COUNTED_KINDS:
                with contextlib.suppress(InvalidRequest):
                    counts = self.narrow(selector)
            group.narrowing = self._change_count, counts
        return group.narrowing[1]

    def kinds(self, *, by_name: bool) -> Iterator[Kind]:
        """Yield all devices: those that are alike together, or each alone. Devices may change meanwhile.

        Args:
            by_name: each alone, with its name among the labels.
        """
        if by_name:
            return (Kind(labels, 1, name in self._free) for name, labels in list(self._labels.items()))
        kinds = list(self._classes.items())
        return (Kind(dict(key), len(class_.names), len(class_.free)) for key, class_ in kinds)

    def general(self, selector: str) -> str:
        """Return the selector, or "" if it names a single device."""
        group = self._groups.get(selector)
        name = group.exact_name if group else parse_selector(selector).exact_value("name")
        return selector if name is None else ""

    def _add_to_class(self, name: str, labels: Mapping[str, str]) -> None:
        key = _class_key(labels)
        class_ = self._classes.get(key)
        if class_ is None:
            class_ = self._classes[key] = DeviceClass()
            for group in self._general_groups:
                if group.is_by_class and group.selector.matches(labels):
                    group.classes[class_] = class_.groups[group] = None
        class_.names[name] = None
        self._class_of[name] = class_

    # groups

    def group(self, text: str) -> Group:
        """Return the group of a selector."""
        group = self._groups.get(text)
        if group is None:
            group = self._groups[text] = self._make_group(text)
            self._make_idle(group)
        elif not group.is_kept:
            self._idle_like(group).texts.move_to_end(text)
        return group

    def has_group(self, text: str) -> bool:
        """Return True if a group for this selector exists."""
        return text in self._groups

    def groups_of(self, device_name: str) -> list[Group]:
        """Return the groups of a device."""
        found, parts = list(self._class_of[device_name].groups), self._pattern_groups
        if self._groups_by_exact_name and (named := self._groups_by_exact_name.get(self._labels[device_name]["name"])):
            parts = {**parts, **named}
        if parts:
            found += [group for group in parts if device_name in group.devices]
        return found

    def overlapping(self, group: Group) -> set[Group]:
        """Return the other groups that share a device with this one."""
        if group.overlapping is None:
            group.overlapping = self._find_overlapping(group)
        return group.overlapping

    def keep(self, group: Group) -> None:
        """Keep a group until it is released as often."""
        group.keepers += 1
        self._idle_like(group).texts.pop(group.text, None)

    def release(self, group: Group) -> None:
        """Let go of a group. An unused one may be evicted."""
        group.keepers -= 1
        if not group.is_kept:
            self._make_idle(group)

    def _make_idle(self, group: Group) -> None:
        oldest = self._idle_like(group).add(group.text)
        if oldest is not None:
            self._evict(self._groups.pop(oldest))

    def _evict(self, group: Group) -> None:
        for other in self._groups.values():
            if other.overlapping is not None:
                other.overlapping.discard(group)
        for class_ in group.classes:
            del class_.groups[group]
        if group.exact_name is None:
            del self._general_groups[group]
            self._pattern_groups.pop(group, None)
            return
        named = self._groups_by_exact_name[group.exact_name]
        del named[group]
        if not named:
            del self._groups_by_exact_name[group.exact_name]

    def _idle_like(self, group: Group) -> _Idle:
        return self._idle_groups if group.exact_name is None else self._idle_names

    def _make_group(self, text: str) -> Group:
        group = Group(text)
        if group.exact_name is None:
            self._general_groups[group] = None
            if not group.is_by_class:
                self._pattern_groups[group] = None
        else:
            self._groups_by_exact_name.setdefault(group.exact_name, {})[group] = None
        group.devices = devices = dict.fromkeys(self._match(group))
        if 8 * len(devices) < len(self._free):
            free = sorted(devices.keys() & self._free.keys(), key=self._free.__getitem__)
        else:
            free = [name for name in self._free if name in devices]
        group.free = OrderedDict.fromkeys(free)
        for other in self.overlapping(group):
            if other.overlapping is not None:
                other.overlapping.add(group)
        return group

    def _match(self, group: Group) -> Iterable[str]:
        conditions = group.selector.conditions
        if group.exact_name is not None:
            labels = self._labels.get(f"devices/{group.exact_name}")
            return [f"devices/{group.exact_name}"] if labels and group.selector.matches(labels) else []
        unnamed = Selector(tuple(condition for condition in conditions if condition.key != "name"))
        classes = [class_ for key, class_ in self._classes.items() if unnamed.matches(dict(key))]
        found = [name for class_ in classes for name in class_.names]
        if group.is_by_class:
            group.classes = dict.fromkeys(classes)
            for class_ in classes:
                class_.groups[group] = None
            return found
        for condition in conditions:  # at 10,000 devices three times as fast as Selector.matches
            if isinstance(condition, Condition) and condition.key == "name":
                match = re.compile("|".join(map(translate, condition.patterns))).match
                found = [name for name in found if (match(name, len("devices/")) is None) is condition.is_negated]
        return found

    def _find_overlapping(self, group: Group) -> set[Group]:
        own = group.devices.keys()
        found = {other for other in self._general_groups if not own.isdisjoint(other.devices)}
        if group.exact_name is not None:
            found |= {other for other in self._groups_by_exact_name[group.exact_name] if own and other.devices}
        else:
            named = chain.from_iterable(self._groups_by_exact_name.values())
            found |= {other for other in named if not own.isdisjoint(other.devices)}
        found.discard(group)
        return found

    def validate(self, kept: Iterable[Group]) -> None:
        """Compare every index with an exhaustive search.

        Args:
            kept: groups that should be kept.

        Raises:
            RuntimeError: they differ; the message names the index.
        """
        for text, group in self._groups.items():
            matching = {name for name, labels in self._labels.items() if group.selector.matches(labels)}
            _require(set(group.devices) == matching, f"devices of {text}")
            free = [name for name in self.free_devices() if name in matching]
            _require(list(group.free) == free, f"free devices of {text}")
            _require(group.is_kept is not (text in self._idle_like(group).texts), f"idleness of {text}")
            if group.overlapping is not None:
                _require(group.overlapping == set(self._sharing(group)), f"overlap of {text}")
        for key, class_ in self._classes.items():
            alike = {name for name, labels in self._labels.items() if _class_key(labels) == key}
            _require(set(class_.names) == alike, "devices of a class")
            _require(list(class_.free) == [name for name in self._free if name in alike], "free devices of a class")
            whole = {group for group in self._groups.values() if group.is_by_class and alike & group.devices.keys()}
            _require(set(class_.groups) == whole, "groups of a class")
            _require(all(class_ in group.classes for group in whole), "classes of a group")
        by_kind: dict[Hashable, set[Group]] = {}
        for name in self._labels:
            expected = {group for group in self._groups.values() if name in group.devices}
            _require(set(self.groups_of(name)) == expected, f"groups of {name}")
            _require(by_kind.setdefault(self.kind_of(name), expected) == expected, f"groups of devices like {name}")
        _require({group for group in self._groups.values() if group.is_kept} == set(kept), "kept groups")

    def _sharing(self, group: Group) -> Iterator[Group]:
        others = (other for other in self._groups.values() if other is not group)
        return (other for other in others if other.devices.keys() & group.devices.keys())


def _class_key(labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((key, value) for key, value in labels.items() if key != "name"))


def _require(holds: bool, index: str) -> None:
    if not holds:
        raise RuntimeError(f"index of devices is wrong: {index}")
