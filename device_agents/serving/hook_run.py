"""Runs one hook: with a time limit, bounded output, and no process left behind.

Hooks are the owner's commands, so they run as the agent's user and outside of any jail. Their environment has PATH and
HOME of the agent, and the names of device, lease and holder.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import time
from dataclasses import dataclass

from device_agents.hooks import Hook
from device_agents.machine import hook_keeper, linux
from device_agents.machine.terminate import end
from fleet.base.text import sanitize

logger = logging.getLogger(__name__)

MAX_REASON_CHARS = 200
_TAIL_BYTES = 4_096
"""Bytes of the output that are kept."""
_CHUNK_BYTES = 65_536
_END_SEC = 3.0
"""Time for the keeper to kill everything after the time limit. One that its command stopped never does."""
_PASSED = ("PATH", "HOME", "PYTHONPATH")
"""Variables of the agent. The keeper passes the first two on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseNames:
    """Names that a hook finds in its environment; empty without a lease."""

    lease_name: str = ""
    holder: str = ""


NO_LEASE = LeaseNames()


async def run_hook(hook: Hook, device_name: str, lease: LeaseNames = NO_LEASE) -> str:
    """Run a hook; return the reason of its failure, or an empty text. Cancelling kills it."""
    started_sec = time.monotonic()
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", hook_keeper.__name__, *hook.command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=_environment(device_name, lease),
            process_group=0,
        )
    except OSError as error:
        return _failure(hook, f"cannot start a process: {error.strerror}")
    tail = bytearray()
    try:
        async with asyncio.timeout(hook.timeout_sec):
            await _read(process, tail)
            code = await process.wait()
    except TimeoutError:
        code = None
    finally:
        if process.returncode is None:
            await _stop(process, tail)
    took_sec = time.monotonic() - started_sec
    extra = {"device": device_name, "hook": hook.name, "took_sec": round(took_sec, 3), "code": code}
    logger.info("hook ended", extra=extra)
    last = _last_line(tail)
    if code is None:
        return _failure(hook, f"no end within {hook.timeout_sec:g} s" + (f": {last}" if last else ""))
    if code:
        return _failure(hook, last or f"exit code {code}")
    return ""


async def _read(process: asyncio.subprocess.Process, tail: bytearray) -> None:
    """Read the output to its end, and keep the last bytes of it."""
    while process.stdout is not None and (chunk := await process.stdout.read(_CHUNK_BYTES)):
        tail += chunk
        del tail[:-_TAIL_BYTES]


async def _stop(process: asyncio.subprocess.Process, tail: bytearray) -> None:
    """Have the keeper kill the command, then kill whatever is left of both."""
    if process.stdin is not None:
        process.stdin.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_END_SEC):
            await _read(process, tail)
            await process.wait()
            return
    for pid in linux.descendants_of(process.pid):
        linux.kill(pid)
    await end(process)


def _environment(device_name: str, lease: LeaseNames) -> dict[str, str]:
    passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
    return {
        **passed,
        "FLEET_DEVICE": device_name,
        "FLEET_LEASE": sanitize(lease.lease_name),
        "FLEET_HOLDER": sanitize(lease.holder),
    }


def _last_line(tail: bytearray) -> str:
    lines = [line for part in tail.decode(errors="replace").splitlines() if (line := sanitize(part).strip())]
    return lines[-1] if lines else ""


def _failure(hook: Hook, text: str) -> str:
    return f"{hook.name}: {text}"[:MAX_REASON_CHARS]
