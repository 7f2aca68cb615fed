"""Jails a worker in three steps: before its keeper is forked, in the keeper, and in the worker itself."""

from __future__ import annotations

from device_agents.jail import cgroup, namespaces
from device_agents.jail.layers import Layer
from device_agents.jail.spec import JailSpec
from device_agents.jail.view import DEVICES, IN_MEMORY
from fleet.confinement import landlock, privileges, seccomp


def leave_the_agent(jail_spec: JailSpec) -> None:
    """Take the first step: enter the cgroup and the namespaces. The next fork is the first process of its pid
    namespace.

    Raises:
        OSError: a layer that worked when the agent started does not.
    """
    if jail_spec.cgroup:
        cgroup.enter(jail_spec.cgroup)
    wanted = [layer for layer in namespaces.FLAGS if layer in jail_spec.layers]
    if jail_spec.has_network:
        wanted = [layer for layer in wanted if layer is not Layer.NETWORK]
    flags = 0
    for layer in wanted:
        flags |= namespaces.FLAGS[layer]
    if flags:
        namespaces.enter(flags)


def furnish(jail_spec: JailSpec) -> None:
    """Take the second step: build the worker's view of the file system.

    Raises:
        OSError: a layer that worked when the agent started does not.
    """
    if Layer.MOUNT in jail_spec.layers:
        namespaces.furnish(jail_spec, has_pid_namespace=Layer.PID in jail_spec.layers)


def confine(jail_spec: JailSpec) -> None:
    """Take the third, irreversible step: user, capabilities, file access rules, system call filter.

    Raises:
        OSError: see above.
    """
    if jail_spec.uid:
        privileges.become(jail_spec.uid, jail_spec.groups)
    if Layer.NO_NEW_PRIVILEGES in jail_spec.layers:
        privileges.drop_capabilities(keeps_raw_io=jail_spec.keeps_raw_io)
        privileges.forbid_new_privileges()
    if Layer.LANDLOCK in jail_spec.layers:
        writable = [jail_spec.home, *jail_spec.devices, *DEVICES]
        if Layer.MOUNT in jail_spec.layers:
            writable += IN_MEMORY
        landlock.restrict([*jail_spec.readable, "/proc", "/dev"], writable, has_network=jail_spec.has_network)


def filter_calls(jail_spec: JailSpec) -> None:
    """Install the system call filter. Must be last: other steps need calls that it refuses.

    Raises:
        OSError: see above.
    """
    if Layer.SECCOMP in jail_spec.layers:
        seccomp.restrict()
