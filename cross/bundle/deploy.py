"""Copies a bundle to a board over ssh and starts it there. The board needs only a shell, tar and Python.

Four steps, each a command of the plain `ssh` executable, so that its configuration, agents and jump hosts work:
look, copy (unless the same bundle lies there), start (unless it runs with the same options), wait until it serves.
If it does not, the previous agent is put back and started again.
"""

from __future__ import annotations

import lzma
import re
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from cross.bundle.archive import FOLDER, MACHINES, Bundle, BundleSpec, spec_for
from cross.targets.boards import Board, Found, load_boards, match
from fleet.base.machine import architecture
from fleet.base.readiness import read_ready
from fleet.errors import ConfigError, DeviceUnreachable, FleetError

_SCRIPTS = Path(__file__).with_name("deploy_files")
_LOOK_SEC = 40
_COPY_SEC = 1800
_START_SEC = 300
"""20 s for the old one to end, 120 s for the new one, and as much again for going back."""

_SSH_FAILED = 255
_HINTS = (
    ("Permission denied", "give the board your key first: ssh-copy-id {host}"),
    ("Host key verification failed", "log in once by hand and check the board's key: ssh {host}"),
    ("Could not resolve", "is the name right, and the board on this network?"),
    ("Connection refused", "is an ssh server running there?"),
    ("timed out", "is the board on, and on this network?"),
    ("No route to host", "is the board on, and on this network?"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Facts that a board reports."""

    machine: str
    """Architecture of its programs: "aarch64", or "armv7l" also where the kernel has 64 bit."""

    libc: str
    python: str
    """ "3.11"; empty: none that is new enough."""

    model: str
    home: str
    free_bytes: int
    has_systemd: bool
    has_xz: bool
    digest: str
    """Digest of the bundle installed there; empty: none."""

    is_running: bool
    options: str
    """Options of the running agent."""

    address: str
    """The board's address that our connection reached."""

    is_foreign: bool
    """True if the agent's folder holds files that are not a bundle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Board and folder of an agent."""

    host: str
    """ "user@board", as ssh takes it."""

    directory: str = FOLDER
    """Absolute, or below the home directory."""

    ssh: tuple[str, ...] = ("ssh",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start options of the agent."""

    options: tuple[str, ...] = ()
    config: Path | None = None
    """An agent.yaml to bring along."""

    with_systemd: bool | None = None
    """True if to start the agent as a systemd service; None: if the user's systemd is available."""

    token: str = ""
    """Token for joining the tracker's fleet, if the agent has not joined. It is not stored on the board."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """The deployed agent."""

    directory: str
    address: str
    """Address that the agent reports."""

    devices: tuple[str, ...]
    done: tuple[str, ...] = field(default=())
    """Performed steps, a sentence each."""


def look(there: Destination) -> Seen:
    """Query the board's facts.

    Raises:
        DeviceUnreachable: ssh does not get there; the message has its reason.
        ConfigError: no Linux that agents run on.
    """
    output = _ssh(there, _script("look.sh"), [there.directory], _LOOK_SEC)
    facts = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
    bits, machine = facts.get("bits", ""), facts.get("machine", "")
    if machine:
        machine = architecture(machine, 4 if bits == "32" else 8)
    if machine not in MACHINES:
        raise ConfigError(f"{there.host} is {machine or 'no Linux'}; agents run on {', '.join(MACHINES)}")
    libc = facts.get("libc", "").removeprefix("glibc ")
    if not re.fullmatch(r"\d+\.\d+", libc):
        raise ConfigError(f"{there.host} has no glibc ({facts.get('libc') or 'it names none'}), which bundles need")
    return Seen(
        machine=machine,
        libc=libc,
        python=facts.get("python", ""),
        model=facts.get("model", "").strip(),
        home=facts.get("home", ""),
        free_bytes=int(facts.get("free_kb", "0") or 0) * 1024,
        has_systemd=facts.get("systemd") == "yes",
        has_xz=facts.get("xz") == "yes",
        digest=facts.get("digest", ""),
        is_running=facts.get("running") == "yes",
        options=facts.get("options", ""),
        address=facts.get("address", ""),
        is_foreign=facts.get("foreign") == "yes",
    )


def fitting_spec(there: Destination, seen: Seen, board: str | None) -> BundleSpec:
    """Return the bundle's requirements: for the named board, else for its model, else for its machine.

    Raises:
        ConfigError: another machine than the board that is named, or no Python that is new enough.
    """
    if not seen.python:
        raise ConfigError(
            f"{there.host} has no Python 3.11 or newer; install it there (Debian 12 and Raspberry Pi OS 12 have it: "
            "apt install python3), or name it in FLEET_PYTHON"
        )
    found = match(Found(arch=seen.machine, model=seen.model), _native_boards()) if seen.model else None
    name = board or (found.name if found else seen.machine)
    spec = spec_for(name, python=seen.python)
    if spec.userland.machine != seen.machine:
        raise ConfigError(f"{there.host} is {seen.machine}, and {name} is {spec.userland.machine}; leave out --board")
    if _numbers(spec.userland.libc) > _numbers(seen.libc):
        spec = spec_for(name, python=seen.python, libc=seen.libc)
    return spec


def settled(there: Destination, seen: Seen, how: Start) -> Destination:
    """Return the destination with an absolute directory: ssh sessions do not always start in the home directory.

    Raises:
        ConfigError: systemd is asked for and not there, or something else than an agent would be overwritten.
    """
    if how.with_systemd and not seen.has_systemd:
        raise ConfigError(f"{there.host} has no systemd for users; leave out --systemd")
    directory = PurePosixPath(seen.home, there.directory)
    if ".." in directory.parts or directory in (home := PurePosixPath(seen.home), *home.parents) or seen.is_foreign:
        raise ConfigError(
            f"--dir {there.directory}: on {there.host} there is something else; name a folder that is the agent's alone"
        )
    return replace(there, directory=str(directory))


def copy(there: Destination, seen: Seen, bundle: Bundle) -> None:
    """Unpack a bundle beside its final location. `start` moves it there.

    Raises:
        ConfigError: too little space there.
        FleetError: it cannot be written there.
    """
    # Remove the installed bundle only after the new one is complete.
    if seen.free_bytes < bundle.unpacked_bytes * 1.1:
        raise ConfigError(
            f"{there.host}: the bundle takes {bundle.unpacked_bytes / 1e6:.0f} MB and {seen.free_bytes / 1e6:.0f} MB "
            f"are free in {there.directory}; make room, or name another place with --dir"
        )
    target = f"{there.directory}.new"
    quoted = shlex.quote(target)
    unpack = f"mkdir -p {quoted} && tar -x{'J' if seen.has_xz else ''}f - -C {quoted}"
    command = f"rm -rf {quoted}; {unpack} || {{ rm -rf {quoted}; exit 1; }}"
    content = bundle.path.read_bytes()
    _ssh_raw(there, command, content if seen.has_xz else lzma.decompress(content), _COPY_SEC)


def start(there: Destination, seen: Seen, how: Start) -> Deployed:
    """Stop the running agent, start the new one, and wait until it serves.

    Raises:
        FleetError: it did not; the message has its last lines and the agent that runs there now.
    """
    with_systemd = seen.has_systemd if how.with_systemd is None else how.with_systemd
    if how.config is not None:
        name = shlex.quote(f"{there.directory}.yaml")
        _ssh_raw(there, f"cat > {name}", how.config.read_bytes(), _LOOK_SEC)
    if how.token:
        name = shlex.quote(f"{there.directory}.token")
        _ssh_raw(there, f"umask 077 && cat > {name}", how.token.encode(), _LOOK_SEC)
    words = [there.directory, "systemd" if with_systemd else "nohup", options_text(how)]
    output = _ssh(there, _script("start.sh"), words, _START_SEC)
    ready = next(filter(None, map(read_ready, output.encode().splitlines())), None)
    if ready is None:
        raise FleetError(_why_not_started(there, output))
    notes = _marked(output, "note: ")
    return Deployed(directory=there.directory, address=ready.address, devices=ready.devices, done=notes)


def options_text(how: Start) -> str:
    """Return the agent's options in the format of its environment file."""
    return shlex.join(how.options)


def _why_not_started(there: Destination, output: str) -> str:
    """Return the agent's last lines, and the fate of the previous agent."""
    back = _marked(output, "back: ")
    words = [line for line in output.splitlines() if line.strip() and not line.startswith("back: ")]
    reason = " | ".join(words[-3:]) or "it said nothing"
    return "; ".join((f"the agent on {there.host} did not start: {reason}", *back))


def _marked(output: str, mark: str) -> tuple[str, ...]:
    return tuple(line.removeprefix(mark) for line in output.splitlines() if line.startswith(mark))


def _native_boards() -> list[Board]:
    return [board for board in load_boards().values() if board.libc.startswith("glibc") and board.arch in MACHINES]


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def _script(name: str) -> str:
    return (_SCRIPTS / name).read_text()


def _ssh(there: Destination, script: str, words: Sequence[str], timeout_sec: float) -> str:
    """Run a shell script on the board, independent of the user's login shell."""
    command = shlex.join(["sh", "-s", "--", *words])
    return _ssh_raw(there, command, script.encode(), timeout_sec)


def _ssh_raw(there: Destination, command: str, given: bytes, timeout_sec: float) -> str:
    words = [*there.ssh, "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "--", there.host, command]
    try:
        done = subprocess.run(words, input=given, capture_output=True, timeout=timeout_sec, check=False)
    except FileNotFoundError:
        raise ConfigError(f"{there.ssh[0]} is not installed here: apt install openssh-client") from None
    except subprocess.TimeoutExpired:
        raise DeviceUnreachable(f"{there.host} did not answer within {timeout_sec:.0f} s") from None
    errors = done.stderr.decode(errors="replace").strip()
    if done.returncode == 0:
        return done.stdout.decode(errors="replace")
    lines = [line.strip() for line in errors.splitlines() if line.strip()] or ["it gave no reason"]
    # The last line is the reason. tar is an exception: it repeats one line per file and then reports a failure.
    reason = next((line for line in lines if "No space left" in line), lines[-1])
    if done.returncode != _SSH_FAILED:
        raise FleetError(f"{there.host}: {reason}")
    hint = next((hint for text, hint in _HINTS if text in errors), "try it by hand: ssh {host}")
    raise DeviceUnreachable(f"cannot log in to {there.host}: {reason}; {hint.format(host=there.host)}")
