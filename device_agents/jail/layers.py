"""The layers that a worker's jail is made of, and which of them this machine has.

Each is used where it is to be had: a worker without some of them is still the agent's to kill.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self


class Layer(enum.StrEnum):
    """One layer that isolates a kernel from the rest of the machine."""

    UID = "uid"
    """A separate user, if the agent is root."""

    USER = "user"
    """A user namespace, where it takes one to have the others."""

    PID = "pid"
    """A pid namespace: it sees no other process, and its children end with it."""

    MOUNT = "mount"
    """A mount namespace: it sees the system, its own home and its inputs, and writes to its home only."""

    IPC = "ipc"
    """An IPC namespace: segments of shared memory end with it."""

    NETWORK = "net"
    """A network namespace without interfaces; not for devices that are reached over a network."""

    CGROUP = "cgroup"
    """A cgroup (v2): all of it is killed at once; its memory and processes are limited, if controllers are there."""

    LANDLOCK = "landlock"
    """The kernel's own rules for files, connections and signals."""

    NO_NEW_PRIVILEGES = "no_new_privs"
    """No program gives it more than it has, and it has no capabilities."""

    SECCOMP = "seccomp"
    """System calls that no kernel of a model needs are refused."""

    LIMITS = "rlimits"
    """Address space, file size, open files, processes."""


ISOLATING = (Layer.PID, Layer.MOUNT, Layer.IPC, Layer.NO_NEW_PRIVILEGES, Layer.SECCOMP)
"""Layers that together end all processes of a worker with it, and hide other workers from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Jail:
    """Layers of a jail on this machine."""

    layers: tuple[Layer, ...] = (Layer.LIMITS,)
    missing: Mapping[Layer, str] = field(default_factory=dict)
    """Why the others are not used."""

    def has(self, layer: Layer) -> bool:
        """Tell whether the jail has a layer."""
        return layer in self.layers

    def plus(self, layer: Layer) -> Self:
        """Return the jail with an additional layer."""
        return type(self)(layers=tuple(one for one in Layer if one in (*self.layers, layer)), missing=self.missing)

    def without(self, layer: Layer, reason: str) -> Self:
        """Return the jail without one layer."""
        layers = tuple(one for one in self.layers if one is not layer)
        return type(self)(layers=layers, missing={**self.missing, layer: reason})

    def __str__(self) -> str:
        return " ".join(self.layers)


OPEN = Jail()
"""No jail: limits, and an agent that kills."""
