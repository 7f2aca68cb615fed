"""`python -m fleet.tracker`: one tracker until SIGTERM or SIGINT. Prints one line to stdout when it listens."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from fleet import logs
from fleet.errors import FleetError
from fleet.tracker.server import Tracker, TrackerConfig


async def serve(settings: TrackerConfig) -> None:
    """Run a tracker until the process is told to end."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with Tracker(settings) as tracker:
        sys.stdout.write(f"tracker listening on {tracker.address}\n")
        sys.stdout.flush()
        await stop.wait()


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    options = _parser().parse_args(arguments)
    logs.setup(options.log_level)
    defaults = TrackerConfig()
    settings = TrackerConfig(
        host=options.host,
        port=options.port,
        state_dir=options.state_dir or defaults.state_dir,
        is_network_allowed=options.allow_network,
        is_discoverable=not options.no_discovery,
    )
    try:
        asyncio.run(serve(settings))
    except FleetError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    defaults = TrackerConfig()
    parser = argparse.ArgumentParser(prog="python -m fleet.tracker", description="Grants the fleet's devices.")
    parser.add_argument("--host", default=defaults.host, help="address to listen on (default %(default)s)")
    parser.add_argument("--port", type=int, default=defaults.port, help="0: any free one (default %(default)s)")
    parser.add_argument("--state-dir", type=Path, help=f"journal and key (default {defaults.state_dir})")
    parser.add_argument("--allow-network", action="store_true", help="listen where other machines can reach it")
    parser.add_argument("--no-discovery", action="store_true", help="do not advertise by zeroconf")
    levels = ["DEBUG", "INFO", "WARNING", "ERROR"]
    parser.add_argument("--log-level", default="INFO", choices=levels, type=str.upper)
    return parser


if __name__ == "__main__":
    sys.exit(main())
