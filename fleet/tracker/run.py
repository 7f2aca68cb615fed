"""Runs a tracker until a signal, for `python -m fleet.tracker`, `fleet tracker serve` and `fleet up`."""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from fleet.base import logs
from fleet.base.config import TRACKER_PORT, data_dir
from fleet.base.inspection import forbid_inspection
from fleet.base.network import listening_host
from fleet.base.open_files import raise_file_limit
from fleet.base.readiness import Ready, write_ready
from fleet.base.signals import stop_on_signals
from fleet.errors import ConfigError, FleetError
from fleet.tracker.core.records import MAX_NAMES_PER_AGENT, TrackerLimits

_STOP_SEC = 15.0
"""Grace period before a hanging tracker is killed. A tracker normally ends within a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerOptions:
    """The command line of a tracker."""

    host: str = "127.0.0.1"
    port: int = TRACKER_PORT
    """0: a free one."""

    state_dir: Path | None = None
    """Journal and signing key; None: in the data directory."""

    is_network_allowed: bool = False
    """Listen where other machines can connect."""

    is_plain: bool = False
    """Without TLS, for this account on this machine alone."""

    is_discoverable: bool = True
    """Announce the tracker by zeroconf."""

    devices_per_agent: int = MAX_NAMES_PER_AGENT
    """Quota of device names per agent key."""

    log_level: str = "INFO"

    is_json: bool = False
    """Report readiness as JSON, see `fleet.base.readiness`."""

    def to_argv(self) -> list[str]:
        """Return a command line for a child process, the inverse of `parse_options`."""
        argv = ["--host", self.host, "--port", str(self.port), "--log-level", self.log_level]
        argv += ["--state-dir", str(self.state_dir)] if self.state_dir is not None else []
        argv += ["--allow-network"] if self.is_network_allowed else []
        argv += ["--plain"] if self.is_plain else []
        if self.devices_per_agent != MAX_NAMES_PER_AGENT:
            argv += ["--devices-per-agent", str(self.devices_per_agent)]
        argv += [] if self.is_discoverable else ["--no-discovery"]
        argv += ["--json"] if self.is_json else []
        return argv


class _Parser(argparse.ArgumentParser):
    """Parser that raises ConfigError, where argparse prints its usage and exits."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see: {self.prog} -h")


def parse_options(argv: Sequence[str], *, command: str = "python -m fleet.tracker") -> TrackerOptions:
    """Parse the command line of a tracker.

    Args:
        command: command with these options, for error messages.

    Raises:
        ConfigError: the command line is invalid.
    """
    defaults = TrackerOptions()
    parser = _Parser(prog=command, description="Grants the fleet's devices.")
    parser.add_argument("--host", help="address to listen on (127.0.0.1; with --allow-network all of this machine's)")
    parser.add_argument("--port", type=int, default=defaults.port, help="0: any free one (default %(default)s)")
    parser.add_argument("--state-dir", type=Path, help=f"journal and key (default {default_state_dir()})")
    parser.add_argument("--allow-network", action="store_true", help="listen where other machines can reach it")
    parser.add_argument("--plain", action="store_true", help="no TLS, for this account on this machine alone")
    parser.add_argument("--no-discovery", action="store_true", help="do not advertise by zeroconf")
    parser.add_argument(
        "--devices-per-agent",
        type=int,
        default=defaults.devices_per_agent,
        help="quota of device names per agent key (default %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="report readiness as JSON")
    levels = ["DEBUG", "INFO", "WARNING", "ERROR"]
    parser.add_argument("--log-level", default=defaults.log_level, choices=levels, type=str.upper)
    given = parser.parse_args(argv)
    return TrackerOptions(
        host=listening_host(given.host, is_network_allowed=given.allow_network),
        port=given.port,
        state_dir=given.state_dir,
        is_network_allowed=given.allow_network,
        is_plain=given.plain,
        is_discoverable=not given.no_discovery,
        devices_per_agent=given.devices_per_agent,
        log_level=given.log_level,
        is_json=given.json,
    )


def run_tracker(options: TrackerOptions) -> int:
    """Serve until a signal; return the exit code."""
    logs.setup(options.log_level)
    # Garbage dies young, and nothing should wait for its collection. Young objects are few and collected often; all
    # objects of a large fleet seldom.
    gc.set_threshold(700, 3, 20_000)
    forbid_inspection()
    raise_file_limit()
    try:
        asyncio.run(_serve(options))
    except FleetError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0


async def _serve(options: TrackerOptions) -> None:
    from fleet.tracker.server import Tracker, TrackerConfig  # clients only want a tracker's command line

    stop = asyncio.Event()
    stop_on_signals(stop, most_sec=_STOP_SEC)
    config = TrackerConfig(
        host=options.host,
        port=options.port,
        state_dir=options.state_dir or default_state_dir(),
        is_network_allowed=options.is_network_allowed,
        is_plain=options.is_plain,
        is_discoverable=options.is_discoverable,
        limits=limits_of(options),
    )
    async with Tracker(config) as tracker:
        gc.freeze()  # objects from before the first caller: they stay, and are never scanned again
        if options.is_json:
            write_ready(Ready(address=tracker.address))
        else:
            sys.stdout.write(f"tracker listening on {tracker.address}\n")
            sys.stdout.flush()
        await stop.wait()


def limits_of(options: TrackerOptions) -> TrackerLimits:
    """Return the limits of a tracker with these options.

    Raises:
        ConfigError: a limit is not positive.
    """
    most = options.devices_per_agent
    if most < 1:
        raise ConfigError(f"--devices-per-agent {most}: expected a number above zero")
    usual = TrackerLimits()
    return replace(usual, max_names_per_agent=most, max_devices_per_agent=max(usual.max_devices_per_agent, most))


def default_state_dir() -> Path:
    """Default folder of a tracker's state."""
    return data_dir() / "tracker"
