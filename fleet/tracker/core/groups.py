"""Devices in groups by selector, and in classes by likeness. Plain values of `fleet.tracker.core.matching`."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

from fleet.domain.narrowing import ClauseCount
from fleet.domain.selectors import parse_selector


class DeviceClass:
    """Devices with equal labels, apart from the name."""

    __slots__ = ("free", "groups", "names")

    def __init__(self) -> None:
        self.names: dict[str, None] = {}
        self.free: OrderedDict[str, None] = OrderedDict()
        self.groups: dict[Group, None] = {}
        """Groups that contain the class as a whole."""

    def commonness(self, group: Group, since_sec: float) -> int:
        """Return the size of the smallest other group of the class that was requested since a moment; without one,
        the size of the class.
        """
        others = (len(other.devices) for other in self.groups if other is not group and other.asked_sec >= since_sec)
        return min(others, default=len(self.names))


class Kind(NamedTuple):
    """Devices with equal labels."""

    labels: Mapping[str, str]
    device_count: int
    free_count: int


class Group:
    """Devices that match one selector."""

    __slots__ = (
        *("asked_sec", "classes", "devices", "exact_name", "free", "is_by_class", "keepers", "narrowing"),
        *("overlapping", "selector", "text"),
    )

    def __init__(self, text: str) -> None:
        self.text = text
        self.selector = parse_selector(text)
        self.exact_name = self.selector.exact_value("name")
        self.is_by_class = all(condition.key != "name" for condition in self.selector.conditions)
        """True if it contains all devices of a class, or none."""
        self.classes: dict[DeviceClass, None] = {}
        """Its classes, if it is by class."""
        self.devices: dict[str, None] = {}
        self.free: OrderedDict[str, None] = OrderedDict()
        self.asked_sec = -math.inf
        """Time of the latest request."""
        self.keepers = 0
        """Number of lines and sets of requests that wait with this selector."""
        self.overlapping: set[Group] | None = None
        """Other groups that share a device with this one; None: not known now."""
        self.narrowing: tuple[int, list[ClauseCount]] = -1, []
        """Counts of devices that each clause leaves, and the change of devices after which they were made."""

    @property
    def is_kept(self) -> bool:
        """True while requests wait with this selector."""
        return self.keepers > 0
