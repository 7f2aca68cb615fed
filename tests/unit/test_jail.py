"""Files, system calls and groups of a jail, decided from plain data."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
import sys
from pathlib import Path

import pytest

from device_agents.config import parse_config
from device_agents.jail import cgroup
from device_agents.jail.diagnosis import finding_of
from device_agents.jail.layers import OPEN, Jail, Layer
from device_agents.jail.view import device_files, outermost, readable_paths
from fleet.base.findings import State
from fleet.base.plain import from_plain, to_plain
from fleet.confinement.privileges import free_uids, groups_for
from fleet.confinement.seccomp import make_filter
from fleet.errors import ConfigError

ALLOWED = "allowed"
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7, "arm": 0x40000028}
READ = {"x86_64": 0, "aarch64": 63, "arm": 3}
MOUNT = {"x86_64": 165, "aarch64": 40, "arm": 21}
CLONE = {"x86_64": 56, "aarch64": 220, "arm": 120}
PRCTL = {"x86_64": 157, "aarch64": 167, "arm": 172}
SOCKET = {"x86_64": 41, "aarch64": 198, "arm": 281}


def judge(machine: str, number: int, *arguments: int, architecture: int | None = None) -> str:
    """Run a filter over one system call as the kernel does, and return the call's fate."""
    call = struct.pack("<IIQ", number, architecture or ARCHITECTURES[machine], 0)
    call += b"".join(struct.pack("<Q", one) for one in (*arguments, *[0] * 6)[:6])
    program = make_filter(machine)
    steps = [struct.unpack_from("<HBBI", program, at) for at in range(0, len(program), 8)]
    loaded = at = 0
    while True:
        code, if_true, if_false, value = steps[at]
        at += 1
        if code == 0x20:
            (loaded,) = struct.unpack_from("<I", call, value)
        elif code == 0x06:
            return ALLOWED if value == 0x7FFF0000 else "killed" if value >> 31 else errno.errorcode[value & 0xFFFF]
        else:
            is_true = {0x15: loaded == value, 0x35: loaded >= value, 0x45: bool(loaded & value)}[code]
            at += if_true if is_true else if_false


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_a_seccomp_filter_allows_threads_and_refuses_namespaces(machine: str) -> None:
    """The filter has the numbers of each architecture; it allows new threads and refuses new namespaces."""
    threads, new_users = 0x3D0F00, 0x10000000

    assert judge(machine, READ[machine]) == ALLOWED
    assert judge(machine, MOUNT[machine]) == "EPERM"
    assert [judge(machine, CLONE[machine], flags) for flags in (threads, new_users)] == [ALLOWED, "EPERM"]
    assert judge(machine, 435) == "ENOSYS"
    assert [judge(machine, PRCTL[machine], option) for option in (1, 15)] == ["EPERM", ALLOWED]
    assert [judge(machine, SOCKET[machine], family) for family in (1, 2, 40)] == [ALLOWED, ALLOWED, "EAFNOSUPPORT"]


def test_calls_of_another_architecture_are_not_mistaken() -> None:
    """Their numbers have other meanings: a 32-bit program is killed, x32 is refused."""
    assert judge("x86_64", READ["x86_64"], architecture=0x40000003) == "killed"
    assert judge("x86_64", 0x40000000 | MOUNT["x86_64"]) == "EPERM"


def test_a_worker_reads_libraries_and_its_files_but_no_home(tmp_path: Path) -> None:
    """Python's directories are there; those around private places are not, wherever the agent was started."""
    library, given = tmp_path / "lib", tmp_path / "given"
    for folder in (library, given):
        folder.mkdir()
    environment = {"LD_LIBRARY_PATH": f"{library}:/no/such", "KUBECONFIG": str(tmp_path)}

    paths = readable_paths(environment, [["cuda", str(given)], 3, "/"], [Path.home(), tmp_path])

    assert {"/usr", str(library), str(given)} <= set(paths)
    assert any(Path(__file__).resolve().is_relative_to(path) or path.endswith("device_agents") for path in paths)
    assert not any(Path.home().is_relative_to(path) or tmp_path.is_relative_to(path) for path in paths)
    assert "/tmp" not in readable_paths({}, [], [])
    assert any(Path(sys.base_prefix).is_relative_to(path) for path in paths)


def test_no_line_is_shown_twice() -> None:
    """A path below another one is there with it."""
    assert outermost(["/usr/lib", "/usr", "/usr-local", "/opt/a/../b"]) == ["/opt/b", "/usr", "/usr-local"]


def test_device_files_are_found_by_pattern(tmp_path: Path) -> None:
    """The pattern finds existing files, and no directories."""
    for name in ("gpu0", "gpu1", "other"):
        (tmp_path / name).touch()
    (tmp_path / "gpu-caps").mkdir()

    assert device_files([f"{tmp_path}/gpu*", f"{tmp_path}/none"]) == [f"{tmp_path}/gpu0", f"{tmp_path}/gpu1"]


@pytest.mark.parametrize(
    ("modes", "groups"),
    [([], []), ([0o666], []), ([0o660], [os.getgid()]), ([0o600], None), ([0o600, 0o666], [])],
)
def test_a_user_gets_the_groups_of_its_devices(tmp_path: Path, modes: list[int], groups: list[int] | None) -> None:
    """If only its owner may use a device, no group helps: the worker stays the agent's user. Root's group does not
    count.
    """
    paths = []
    for number, mode in enumerate(modes):
        path = tmp_path / str(number)
        path.touch()
        path.chmod(stat.S_IFREG | mode)
        paths.append(str(path))
    expected = None if groups == [0] else groups

    assert groups_for(paths) == expected


@pytest.mark.parametrize(
    ("uid_map", "first"),
    [("0 0 4294967295", 1_879_048_192), ("0 100000 65536", 61_184), ("0 1000 1", None)],
)
def test_user_ids_fit_the_containers_range(uid_map: str, first: int | None) -> None:
    """The ids are far up on a machine, few in a container, and none in a namespace of one user."""
    uids = free_uids(uid_map)

    assert (uids[0] if uids else None) == first


def test_a_jail_survives_its_way_between_processes() -> None:
    """The reasons for missing layers are kept."""
    jail = OPEN.plus(Layer.PID).plus(Layer.UID).without(Layer.SECCOMP, "no filters")

    assert from_plain(Jail, to_plain(jail)) == jail
    assert str(jail) == "uid pid rlimits"


def test_the_doctor_reports_missing_isolation_with_the_remedy() -> None:
    """Only jails with missing isolation are reported with advice."""
    full = Jail(layers=tuple(Layer))
    half = full.without(Layer.PID, "Operation not permitted").without(Layer.CGROUP, "no cgroup v2 is mounted")

    assert finding_of(full).state is State.OK
    assert finding_of(half).state is State.WARNING
    assert "pid: Operation not permitted" in finding_of(half).seen
    assert "user namespaces" in finding_of(half).advice


def test_a_jail_of_no_known_kind_is_refused() -> None:
    """The error lists the known kinds."""
    with pytest.raises(ConfigError, match="auto, required, none"):
        parse_config({"jail": "bars"})


def cgroups_at(root: Path, group: str, files: dict[str, str]) -> Path:
    """Lay out /proc and a tree of groups as the kernel shows them."""
    proc, tree = root / "proc/self", root / "cgroup"
    proc.mkdir(parents=True)
    own = tree / group
    own.mkdir(parents=True)
    (proc / "mountinfo").write_text(f"30 20 0:26 / {tree} rw shared:9 - cgroup2 cgroup2 rw\n")
    (proc / "cgroup").write_text(f"1:name=systemd:/\n0::/{group}\n")
    for name, content in files.items():
        (own / name).write_text(content)
    return own


def test_the_agents_own_group_is_found(tmp_path: Path) -> None:
    """The group is found under the mounted hierarchy of cgroup v2; a hierarchy of v1 does not count."""
    own = cgroups_at(tmp_path, "system.slice/agent.service", {})

    assert cgroup.own_group(tmp_path) == own
    (tmp_path / "proc/self/mountinfo").write_text("30 20 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n")
    with pytest.raises(OSError, match="no cgroup v2"):
        cgroup.own_group(tmp_path)


def test_a_cgroup_limits_memory_and_tasks(tmp_path: Path) -> None:
    """The group limits memory without swap, and tasks; without controllers it limits nothing."""
    groups = cgroup.Groups(path=tmp_path, controllers=("memory", "pids"))

    limited = groups.make("worker-1", 1000)
    free = cgroup.Groups(path=tmp_path).make("worker-2", 1000)

    assert limited is not None
    assert [(limited / name).read_text() for name in ("memory.max", "memory.swap.max", "pids.max")] == [
        "1000",
        "0",
        "4096",
    ]
    assert free is not None
    assert list(free.iterdir()) == []
    assert groups.make("worker-1", 1000) is None


def test_an_oom_kill_is_reported_as_out_of_memory(tmp_path: Path) -> None:
    """A worker that was killed by it counts as out of memory, not as crashed."""
    assert not cgroup.ran_out_of_memory(tmp_path)
    (tmp_path / "memory.events").write_text("low 0\nmax 12\noom 1\noom_kill 1\n")
    assert cgroup.ran_out_of_memory(tmp_path)


def test_places_of_dead_agents_are_removed(tmp_path: Path) -> None:
    """An agent with a temporary state directory has a new name at each start; a live agent's group stays."""
    groups = tmp_path / "groups"
    (groups / "fleet-workers-dead").mkdir(parents=True)
    (groups / "fleet-workers-live").mkdir()
    proc = tmp_path / "root/proc/self"
    proc.mkdir(parents=True)
    (proc / "mountinfo").write_text(f"1 2 0:1 / {groups} rw - cgroup2 cgroup2 rw\n")
    (proc / "cgroup").write_text("0::/\n")
    live = os.open(groups / "fleet-workers-live", os.O_RDONLY)
    fcntl.flock(live, fcntl.LOCK_EX)

    with pytest.raises(OSError, match="cannot kill a cgroup"):  # no true one
        cgroup.open_groups("mine", tmp_path / "root")

    os.close(live)
    assert [path.name for path in groups.iterdir()] == ["fleet-workers-live"]
