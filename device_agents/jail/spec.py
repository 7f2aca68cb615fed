"""Parameters of one worker's jail, sent by the agent as JSON."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class JailSpec:
    """One worker's jail. Paths are absolute."""

    layers: list[str]
    """Names of layers, see `Layer`."""

    root: str
    """An empty directory, over which the worker's own root is made."""

    home: str
    """The directory in which the worker may write."""

    readable: list[str]
    """Files and directories that it may read and run."""

    devices: list[str]
    """Device files that it may use."""

    shared_memory_bytes: int
    """Size of its /dev/shm."""

    has_network: bool = False
    """True if its device is reached over the network."""

    uid: int = 0
    """The worker's own user; 0: the agent's."""

    groups: list[int]
    """Those of the device files."""

    keeps_raw_io: bool = False
    """True if it maps the machine's memory."""

    cgroup: str = ""
    """Directory of its own cgroup; empty: none."""
