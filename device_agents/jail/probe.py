"""Detects which layers this machine supports, by trying each in a short-lived process.

    python -m device_agents.jail.probe

prints them as JSON, for processes with threads, which should not fork.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from device_agents.jail import cgroup, namespaces
from device_agents.jail.layers import Jail, Layer
from device_agents.jail.spec import JailSpec
from device_agents.jail.view import readable_paths
from fleet.base.plain import to_plain
from fleet.base.scratch import scratch_dir
from fleet.confinement import landlock, privileges, seccomp
from fleet.confinement.system import architecture

_NAMESPACES = (Layer.PID, Layer.MOUNT, Layer.IPC, Layer.NETWORK)
_MESSAGE_BYTES = 1000


def probe() -> Jail:
    """Return the supported layers except the cgroup. Forks: call it in a process without threads."""
    missing = {layer: reason for layer, reason in _tried().items() if reason}
    layers = tuple(layer for layer in Layer if layer not in missing and layer is not Layer.CGROUP)
    return Jail(layers=layers, missing=missing)


def _tried() -> dict[Layer, str]:
    """Return the reason why each layer cannot be used; empty if it can."""
    outside = {layer: _why_not(partial(namespaces.enter, namespaces.FLAGS[layer])) for layer in _NAMESPACES}
    if not any(outside.values()):
        reasons = {**outside, Layer.USER: "not needed: the agent may make the others without"}
    else:
        with_user = namespaces.FLAGS[Layer.USER]
        user = _why_not(partial(namespaces.enter, with_user))
        reasons = {
            layer: user or _why_not(partial(namespaces.enter, with_user | namespaces.FLAGS[layer]))
            for layer in _NAMESPACES
        }
        reasons[Layer.USER] = user
    if not reasons[Layer.MOUNT]:
        flags = sum(namespaces.FLAGS[layer] for layer in namespaces.FLAGS if not reasons[layer])
        with scratch_dir("jail") as folder:
            reasons[Layer.MOUNT] = _why_not(lambda: _furnish(folder, flags, has_pid_namespace=not reasons[Layer.PID]))
    reasons[Layer.NO_NEW_PRIVILEGES] = _why_not(privileges.forbid_new_privileges, privileges.drop_capabilities)
    if seccomp.is_known():
        seccomp.make_filter(architecture())  # made now, before workers are forked
    reasons[Layer.SECCOMP] = (
        _why_not(privileges.forbid_new_privileges, seccomp.restrict)
        if seccomp.is_known()
        else "the numbers of this architecture's system calls are not known"
    )
    reasons[Layer.LANDLOCK] = _why_not(
        privileges.forbid_new_privileges, lambda: landlock.restrict(["/"], [], has_network=False)
    )
    reasons[Layer.UID] = _why_no_user(reasons)
    return reasons


def _why_no_user(reasons: dict[Layer, str]) -> str:
    if os.geteuid() != 0:
        return "the agent is not root"
    if reasons[Layer.MOUNT] or not reasons[Layer.USER]:
        return "takes a mount namespace of root's: another user could not come to its own home"
    uids = privileges.free_uids()
    if not uids:
        return "this container has too few users"
    return _why_not(lambda: _keep_house(uids[0]), lambda: privileges.become(uids[0], []))


def _keep_house(uid: int) -> None:
    """Change the owner of a folder and remove it, as for a worker's home: root in a container may lack the rights."""
    with scratch_dir("jail") as folder:
        home = folder / "home"
        home.mkdir(mode=0o700)
        os.chown(home, uid, uid)
        try:
            shutil.rmtree(home)
        except OSError:
            os.chown(home, os.geteuid(), os.getegid())
            raise


def _furnish(folder: Path, flags: int, *, has_pid_namespace: bool) -> None:
    """Build a root as for a worker, and check it."""
    places = {name: folder / name for name in ("root", "home")}
    for place in places.values():
        place.mkdir()
    jail_spec = JailSpec(
        layers=[],
        root=str(places["root"]),
        home=str(places["home"]),
        readable=readable_paths({}, [], [Path.home()]),
        devices=[],
        groups=[],
        shared_memory_bytes=1 << 20,
    )
    namespaces.enter(flags)
    reason = _why_not(lambda: _look_around(jail_spec, has_pid_namespace=has_pid_namespace))
    if reason:
        raise OSError(reason)


def _look_around(jail_spec: JailSpec, *, has_pid_namespace: bool) -> None:
    namespaces.furnish(jail_spec, has_pid_namespace=has_pid_namespace)
    os.chdir(jail_spec.home)
    for path in (sys.executable, "/proc/self/stat", "/dev/null"):
        Path(path).stat()


def _why_not(*attempts: Callable[[], None]) -> str:
    """Run attempts in a child process; return the error, or nothing."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        reason = ""
        try:
            for attempt in attempts:
                attempt()
        except OSError as error:
            reason = str(error)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it must not run on in a copy of this process
            reason = f"{type(error).__name__}: {error}"
        os.write(writer, reason.encode()[:_MESSAGE_BYTES] or b"\0")
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read()
    status = os.waitpid(child, 0)[1]
    if not said:
        return f"trying it ended with {os.waitstatus_to_exitcode(status)}"
    return "" if said == b"\0" else said.decode(errors="replace")


def main() -> int:
    """Print the layers, including the cgroup."""
    jail = probe()
    try:
        cgroup.open_groups(f"probe-{os.getpid()}").close()
    except OSError as error:
        jail = jail.without(Layer.CGROUP, str(error))
    else:
        jail = jail.plus(Layer.CGROUP)
    sys.stdout.write(json.dumps(to_plain(jail)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
