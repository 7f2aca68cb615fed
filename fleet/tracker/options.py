"""Options of a tracker. Imported by the command line: kept free of gRPC and the tracker itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fleet.base.command_line import Option
from fleet.base.config import TRACKER_PORT, data_dir
from fleet.base.logs import LEVELS
from fleet.base.metrics import HELP as METRICS_HELP
from fleet.base.network import listening_host
from fleet.tracker.core.records import MAX_NAMES_PER_AGENT


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerOptions:
    """Options of a tracker."""

    host: Annotated[str | None, Option("Address to listen on. Default: 127.0.0.1, with --allow-network all.")] = None
    port: Annotated[int, Option("Port to listen on; 0 takes a free one.", least=0, most=65535)] = TRACKER_PORT
    state_dir: Annotated[Path | None, Option("Where leases, the queue and the signing key survive restarts.")] = None
    config: Annotated[
        Path | None, Option("Shares and quotas. Default: tracker.yaml in the state directory, if it exists.")
    ] = None
    standby_of: Annotated[
        str | None,
        Option(
            "Follow this tracker, and take over when it is gone. Joins by 'fleet tracker join', or an admin's login.",
            metavar="HOST:PORT",
        ),
    ] = None
    is_network_allowed: Annotated[
        bool, Option("Listen beyond this machine. Who connects needs a certificate.", flag="--allow-network")
    ] = False
    is_plain: Annotated[bool, Option("No TLS: for this account on this machine alone.", flag="--plain")] = False
    is_discoverable: Annotated[bool, Option("Do not announce it by zeroconf.", flag="--no-discovery")] = True
    devices_per_agent: Annotated[
        int, Option("Quota of device names per agent key; a key keeps its names.", least=1)
    ] = MAX_NAMES_PER_AGENT
    metrics: Annotated[str | None, Option(METRICS_HELP, metavar="HOST:PORT")] = None
    is_json: Annotated[bool, Option("Report readiness as JSON.", flag="--json", is_module_only=True)] = False
    log_level: Annotated[str, Option("Least severe records of the log.", choices=LEVELS, is_module_only=True)] = "INFO"

    @property
    def listening_host(self) -> str:
        """Address to listen on."""
        return listening_host(self.host, is_network_allowed=self.is_network_allowed)

    @property
    def directory(self) -> Path:
        """Directory of the tracker's state."""
        return self.state_dir or data_dir() / "tracker"

    @property
    def config_file(self) -> Path:
        """File of shares and quotas. Without `config` it need not exist."""
        return self.config or self.directory / "tracker.yaml"
