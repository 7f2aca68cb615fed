"""Run an agent: `python -m device_agents --tracker HOST:PORT`. Plain argparse, because boards have no typer."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from device_agents.run import AgentOptions, run_agent
from fleet.base.config import TRACKER_PORT


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal; return the exit code."""
    arguments = _parser().parse_args(argv)
    return run_agent(
        AgentOptions(
            tracker=arguments.tracker,
            config_path=arguments.config,
            drivers=tuple(arguments.driver or ()),
            state_dir=arguments.state_dir,
            host=arguments.host,
            port=arguments.port,
            is_network_allowed=arguments.allow_network,
            token_file=arguments.token_file,
            refused_token=arguments.token,
            is_plain=arguments.plain,
            log_level=arguments.log_level,
            is_json=arguments.json,
        )
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m device_agents", description="Serve this machine's devices.")
    parser.add_argument(
        "--tracker", metavar="HOST:PORT", help=f"where to attach (127.0.0.1:{TRACKER_PORT}); -: stdin says it"
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="agent.yaml; without it, what is found here")
    parser.add_argument(
        "--driver", action="append", metavar="NAME", help="without --config: serve what this driver finds; repeatable"
    )
    parser.add_argument("--state-dir", type=Path, metavar="DIR", help="artifacts and epochs; one agent each")
    parser.add_argument("--host", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, default=0, help="port to listen on (a free one)")
    parser.add_argument("--allow-network", action="store_true", help="listen beyond this machine")
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="join the tracker's fleet first, unless it is joined, by the token in this file, which is removed; "
        "-: prompt for it, or read stdin",
    )
    parser.add_argument("--token", help=argparse.SUPPRESS)  # refused
    parser.add_argument("--plain", action="store_true", help="no TLS, as the tracker of this account")
    parser.add_argument("--json", action="store_true", help="report readiness as JSON")
    parser.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    return parser


if __name__ == "__main__":
    sys.exit(main())
