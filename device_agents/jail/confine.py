"""Jails a worker in three steps: before its keeper is forked, in the keeper, and in the worker itself."""

from __future__ import annotations

from device_agents.jail import cgroup, namespaces
from device_agents.jail.layers import Layer
from device_agents.jail.spec import JailSpec
from device_agents.jail.view import DEVICES, IN_MEMORY
from fleet.confinement import landlock, privileges, seccomp


def leave_the_agent(cell: JailSpec) -> None:
    """Take the first step: enter the cgroup and the namespaces. The next fork is the first process of its pid
    namespace.

    Raises:
        OSError: a layer that worked when the agent started does not.
    """
    if cell.cgroup:
        cgroup.enter(cell.cgroup)
    wanted = [layer for layer in namespaces.FLAGS if layer in cell.layers]
    if cell.has_network:
        wanted = [layer for layer in wanted if layer is not Layer.NETWORK]
    flags = 0
    for layer in wanted:
        flags |= namespaces.FLAGS[layer]
    if flags:
        namespaces.enter(flags)


def furnish(cell: JailSpec) -> None:
    """Take the second step: build the worker's view of the file system.

    Raises:
        OSError: see above.
    """
    if Layer.MOUNT in cell.layers:
        namespaces.furnish(cell, has_pid_namespace=Layer.PID in cell.layers)


def confine(cell: JailSpec) -> None:
    """Take the third, irreversible step: user, capabilities, file access rules, system call filter.

    Raises:
        OSError: see above.
    """
    if cell.uid:
        privileges.become(cell.uid, cell.groups)
    if Layer.NO_NEW_PRIVILEGES in cell.layers:
        privileges.drop_capabilities(keeps_raw_io=cell.keeps_raw_io)
        privileges.forbid_new_privileges()
    if Layer.LANDLOCK in cell.layers:
        writable = [cell.home, *cell.devices, *DEVICES]
        if Layer.MOUNT in cell.layers:
            writable += IN_MEMORY
        landlock.restrict([*cell.readable, "/proc", "/dev"], writable, has_network=cell.has_network)


def filter_calls(cell: JailSpec) -> None:
    """Install the system call filter. Must be last: other steps need calls that it refuses.

    Raises:
        OSError: see above.
    """
    if Layer.SECCOMP in cell.layers:
        seccomp.restrict()
