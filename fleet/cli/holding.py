"""Runs a command for as long as a lease lives.

The command shares our terminal and process group, so a Ctrl-C reaches it by itself; other signals to us are passed on.
If we are killed, the kernel kills the command too, since nobody would renew its lease. If the lease is lost, the
command and all its children are ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from fleet.base import signals
from fleet.base.scratch import scratch_dir
from fleet.client import held
from fleet.client.device import Device
from fleet.errors import ConfigError
from fleet.local.children import bound_to_me

_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_KILL_AFTER_SEC = 5.0
_POLL_SEC = 0.1
_STDERR = 2


def check_command(command: Sequence[str]) -> None:
    """Refuse a command that cannot be executed, before waiting for a device.

    Raises:
        ConfigError: its name is empty, as that of an unset variable.
    """
    if command and not command[0]:
        raise ConfigError("the command after -- has an empty name; write the command to run")


async def run_holding(
    devices: Sequence[Device], tracker_address: str, command: Sequence[str], *, has_stdout: bool = True
) -> int:
    """Run `command` with the leases in its environment and return its exit code; 128 + signal when a signal ended it.

    Args:
        has_stdout: if False, the command's output goes to stderr, which leaves stdout to data.

    Raises:
        LeaseExpired, LeaseRevoked: a lease was lost; the command has been ended.
    """
    with scratch_dir("lease") as directory:
        lost = asyncio.Event()
        environment = dict(os.environ)
        for member, device in enumerate(devices, start=1):
            token_path = directory / f"token-{member}"
            _keep_token(token_path, device, lost)
            environment |= held.environment(device, tracker_address, token_path, member)
        words, stdout = bound_to_me(command, signal.SIGKILL), None if has_stdout else _STDERR
        process = await asyncio.create_subprocess_exec(*words, env=environment, stdout=stdout)
        with _forwarding(process):
            return await _watch(process, devices, lost)


def _keep_token(path: Path, device: Device, lost: asyncio.Event) -> None:
    """Rewrite a token's file at each renewal; remove it at the lease's end, and set `lost`."""

    def renewed() -> None:
        _write_token(path, device)

    def ended() -> None:
        path.unlink(missing_ok=True)
        lost.set()

    renewed()
    device.watch(on_end=ended, on_renew=renewed)


async def _watch(process: asyncio.subprocess.Process, devices: Sequence[Device], lost: asyncio.Event) -> int:
    waiting = asyncio.create_task(process.wait(), name="fleet command")
    losing = asyncio.create_task(lost.wait(), name="fleet lease lost")
    try:
        await asyncio.wait((waiting, losing), return_when=asyncio.FIRST_COMPLETED)
        ended = next((device.ended for device in devices if device.ended is not None), None)
        if process.returncode is None and ended is not None:
            await end_tree(process)
            raise ended
        code = await waiting
        return code if code >= 0 else 128 - code
    finally:
        losing.cancel()
        if process.returncode is None:  # the interrupt reached the command, too: give it time to end by itself
            await end_tree(process)
        await asyncio.gather(waiting, losing, return_exceptions=True)


async def end_tree(process: asyncio.subprocess.Process) -> None:
    """Terminate a process and all its descendants, and kill the rest."""
    try:
        root = psutil.Process(process.pid)
        family = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.terminate()
    deadline_sec = asyncio.get_running_loop().time() + _KILL_AFTER_SEC
    # The event loop reaps the direct child; the others can only be polled.
    while any(map(_is_alive, family)) and asyncio.get_running_loop().time() < deadline_sec:  # noqa: ASYNC110
        await asyncio.sleep(_POLL_SEC)
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextlib.contextmanager
def _forwarding(process: asyncio.subprocess.Process) -> Iterator[None]:
    """Forward signals to the command, which decides their meaning."""
    loop = asyncio.get_running_loop()

    def forward(number: signal.Signals) -> None:
        signals.send(process, number)

    for number in _FORWARDED:
        loop.add_signal_handler(number, forward, number)
    # On a terminal the kernel sends Ctrl-C to the command, too; elsewhere it has to be forwarded.
    pass_on = not _is_foreground()
    loop.add_signal_handler(signal.SIGINT, lambda: forward(signal.SIGINT) if pass_on else None)
    try:
        yield
    finally:
        for number in (*_FORWARDED, signal.SIGINT):
            loop.remove_signal_handler(number)


def _is_foreground() -> bool:
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError):
        return False


def _write_token(path: Path, device: Device) -> None:
    """Replace the token's file atomically, readable by its owner only."""
    fresh = path.with_name(f"{path.name}.new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(device.token)
    fresh.replace(path)
