"""Command line options of an agent; agent.yaml holds the rest. The command line imports this: kept free of gRPC and
drivers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fleet.base.command_line import Option
from fleet.base.logs import LEVELS
from fleet.base.metrics import HELP as METRICS_HELP


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """Options of an agent."""

    tracker: Annotated[
        str | None,
        Option(
            "The tracker. -: the first line of stdin. Default: that of agent.yaml, else 127.0.0.1:9290.",
            metavar="HOST:PORT",
            is_module_only=True,
        ),
    ] = None
    config: Annotated[Path | None, Option("What to serve, a YAML file. Default: what is found here.")] = None
    drivers: Annotated[
        tuple[str, ...],
        Option("Without --config: serve what this driver finds. May be repeated.", flag="--driver", metavar="NAME"),
    ] = ()
    host: Annotated[str | None, Option("Address to listen on. Default: 127.0.0.1, with --allow-network all.")] = None
    port: Annotated[int, Option("Port of the data path; 0: a free one.", least=0, most=65535)] = 0
    state_dir: Annotated[Path | None, Option("Where the artifact cache and the agent's id are kept.")] = None
    is_network_allowed: Annotated[bool, Option("Listen beyond this machine.", flag="--allow-network")] = False
    token_file: Annotated[
        Path | None,
        Option(
            "Join the tracker's fleet with the token in this file, unless joined already; the file is removed. "
            "-: prompt, or read stdin.",
            metavar="FILE",
        ),
    ] = None
    """The file may be missing. "-" reads stdin, unless the agent has joined any fleet before."""

    asks_to_join: Annotated[
        bool, Option("Without a token, do not ask the fleet's admins for approval.", flag="--no-approval")
    ] = True
    is_discoverable: Annotated[
        bool, Option("Do not announce it by zeroconf, with --allow-network.", flag="--no-discovery")
    ] = True
    refused_token: Annotated[str | None, Option("", flag="--token", variable="FLEET_JOIN_TOKEN")] = None
    """Refused: other accounts can read it there."""

    is_plain: Annotated[
        bool, Option("No TLS, with a tracker of this account that has none either.", flag="--plain")
    ] = False
    metrics: Annotated[str | None, Option(METRICS_HELP, metavar="HOST:PORT")] = None
    is_json: Annotated[bool, Option("Report readiness as JSON, once.", flag="--json", is_module_only=True)] = False
    ready_file: Annotated[
        Path | None, Option("Report in this file that the agent listens, as JSON.", is_module_only=True)
    ] = None
    log_level: Annotated[str, Option("Least severe records of the log.", choices=LEVELS, is_module_only=True)] = "INFO"
