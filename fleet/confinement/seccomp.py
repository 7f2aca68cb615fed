"""Seccomp filter against system calls that help to escape from a jail and that no kernel of a model needs.

This is a denylist rather than an allowlist, because the calls of GPU drivers vary. Calls that are always allowed cost
nothing since Linux 5.11, which keeps a bitmap of them.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import struct

from fleet.confinement.system import architecture, prctl, syscall

_REFUSED = {
    # name: (x86_64, aarch64 and riscv64, arm)
    "mount": (165, 40, 21),
    "umount2": (166, 39, 52),
    "pivot_root": (155, 41, 218),
    "chroot": (161, 51, 61),
    "unshare": (272, 97, 337),
    "setns": (308, 268, 375),
    "open_tree": (428, 428, 428),
    "move_mount": (429, 429, 429),
    "fsopen": (430, 430, 430),
    "fsconfig": (431, 431, 431),
    "fsmount": (432, 432, 432),
    "fspick": (433, 433, 433),
    "mount_setattr": (442, 442, 442),
    "ptrace": (101, 117, 26),
    "process_vm_readv": (310, 270, 376),
    "process_vm_writev": (311, 271, 377),
    "pidfd_getfd": (438, 438, 438),
    "kcmp": (312, 272, 378),
    "bpf": (321, 280, 386),
    "perf_event_open": (298, 241, 364),
    "kexec_load": (246, 104, 347),
    "kexec_file_load": (320, 294, 401),
    "init_module": (175, 105, 128),
    "finit_module": (313, 273, 379),
    "delete_module": (176, 106, 129),
    "reboot": (169, 142, 88),
    "swapon": (167, 224, 87),
    "swapoff": (168, 225, 115),
    "acct": (163, 89, 51),
    "quotactl": (179, 60, 131),
    "settimeofday": (164, 170, 79),
    "clock_settime": (227, 112, 262),
    "clock_settime64": (None, None, 404),
    "clock_adjtime": (305, 266, 372),
    "adjtimex": (159, 171, 124),
    "sethostname": (170, 161, 74),
    "setdomainname": (171, 162, 121),
    "syslog": (103, 116, 103),
    "iopl": (172, None, None),
    "ioperm": (173, None, None),
    "add_key": (248, 217, 309),
    "request_key": (249, 218, 310),
    "keyctl": (250, 219, 311),
    "io_uring_setup": (425, 425, 425),
    "io_uring_enter": (426, 426, 426),
    "io_uring_register": (427, 427, 427),
    "userfaultfd": (323, 282, 388),
    "open_by_handle_at": (304, 265, 371),
    "fanotify_init": (300, 262, 367),
    # System V objects: they outlive processes, and no limit counts their memory.
    "shmget": (29, 194, 307),
    "semget": (64, 190, 299),
    "msgget": (68, 186, 303),
}
_CLONE, _CLONE3, _PRCTL, _IOCTL, _SOCKET = (
    (56, 220, 120),
    (435, 435, 435),
    (157, 167, 172),
    (16, 29, 54),
    (41, 198, 281),
)
_SECCOMP = (317, 277, 383)
_COLUMNS = {"x86_64": 0, "aarch64": 1, "riscv64": 1, "arm": 2}
_AUDIT_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7, "riscv64": 0xC00000F3, "arm": 0x40000028}
_X32_BIT = 0x40000000

_NEW_NAMESPACES = 0x7E020080
"""CLONE_NEW* of time, mount, cgroup, uts, ipc, user, pid and network."""

_PR_SET_PDEATHSIG = 1
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_SOCKET_FAMILIES = (1, 2, 10, 16)
"""Unix, IPv4, IPv6, netlink. Other families are for other hardware, or leave the network namespace, as vsock does."""

_LOAD, _JUMP_EQUAL, _JUMP_GREATER_EQUAL, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENT_AT = 0, 4, (16, 24)
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_SET_MODE_FILTER = 1
_FLAG_SPEC_ALLOW = 4
"""Keeps speculative store bypass on. Without this flag, Linux before 5.16 turns it off and kernels run slower."""


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def is_known() -> bool:
    """Tell whether this module has the system call numbers of this architecture."""
    return architecture() in _COLUMNS


def restrict(*, has_sockets: bool = True) -> None:
    """Filter system calls of this process and its future children, after `privileges.forbid_new_privileges`.

    Args:
        has_sockets: if False, no sockets can be created, which blocks the network and sockets of other processes.

    Raises:
        OSError: the kernel has no filters.
    """
    program = make_filter(architecture(), _SOCKET_FAMILIES if has_sockets else ())
    content = ctypes.create_string_buffer(program, len(program))
    length = len(program) // 8
    header = _Program(length, ctypes.cast(content, ctypes.c_void_p).value)
    number = _SECCOMP[_COLUMNS[architecture()]]
    try:
        syscall(number, _SET_MODE_FILTER, _FLAG_SPEC_ALLOW, ctypes.byref(header))
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EINVAL):
            raise
        prctl(22, 2, ctypes.byref(header))  # PR_SET_SECCOMP, as before Linux 4.17


@functools.cache
def make_filter(machine: str, families: tuple[int, ...] = _SOCKET_FAMILIES) -> bytes:
    """Return the filter of one architecture as classic BPF, which allows sockets of these families only."""
    column = _COLUMNS[machine]
    refuse = _step(_RETURN, _REFUSE | errno.EPERM)
    steps = [
        _step(_LOAD, _ARCHITECTURE_AT),
        _step(_JUMP_EQUAL, _AUDIT_ARCHITECTURES[machine], 1, 0),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER_AT),
    ]
    if machine == "x86_64":
        steps += [_step(_JUMP_GREATER_EQUAL, _X32_BIT, 0, 1), refuse]
    for numbers in _REFUSED.values():
        number = numbers[column]
        if number is not None:
            steps += [_step(_JUMP_EQUAL, number, 0, 1), refuse]
    # glibc then falls back to clone: a filter can check its flags.
    steps += [_step(_JUMP_EQUAL, _CLONE3[column], 0, 1), _step(_RETURN, _REFUSE | errno.ENOSYS)]
    steps += _by_argument(_CLONE[column], 0, [_step(_JUMP_SET, _NEW_NAMESPACES, 0, 1), refuse])
    # A worker must not change the signal that ends it with its parent.
    steps += _by_argument(_PRCTL[column], 0, [_step(_JUMP_EQUAL, _PR_SET_PDEATHSIG, 0, 1), refuse])
    typing = [step for one in (_TIOCSTI, _TIOCLINUX) for step in (_step(_JUMP_EQUAL, one, 0, 1), refuse)]
    steps += _by_argument(_IOCTL[column], 1, typing)
    known = [_step(_JUMP_EQUAL, family, len(families) - index, 0) for index, family in enumerate(families)]
    steps += _by_argument(_SOCKET[column], 0, [*known, _step(_RETURN, _REFUSE | errno.EAFNOSUPPORT)])
    steps.append(_step(_RETURN, _ALLOW))
    return b"".join(steps)


def _by_argument(number: int, argument: int, checks: list[bytes]) -> list[bytes]:
    """Return steps that check one argument of a system call, and allow the call if no check refuses it."""
    steps = [_step(_LOAD, _ARGUMENT_AT[argument]), *checks, _step(_RETURN, _ALLOW)]
    return [_step(_JUMP_EQUAL, number, 0, len(steps)), *steps]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)
