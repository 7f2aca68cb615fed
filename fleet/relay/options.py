"""Options of a relay. Imported by the command line: kept free of gRPC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fleet.base.command_line import Option
from fleet.base.metrics import HELP as METRICS_HELP
from fleet.base.metrics import check_metrics
from fleet.base.network import listening_host, refuse_network

RELAY_PORT = 9292


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayOptions:
    """Options of a relay."""

    host: Annotated[str | None, Option("Address to listen on. Default: 127.0.0.1, with --allow-network all.")] = None
    port: Annotated[int, Option("Port to listen on; 0 takes a free one.", least=0, most=65535)] = RELAY_PORT
    is_network_allowed: Annotated[bool, Option("Listen beyond this machine.", flag="--allow-network")] = False
    metrics: Annotated[str | None, Option(METRICS_HELP, metavar="HOST:PORT")] = None

    @property
    def listening_host(self) -> str:
        """Address to listen on."""
        return listening_host(self.host, is_network_allowed=self.is_network_allowed)

    def check(self) -> None:
        """Refuse invalid settings.

        Raises:
            ConfigError: a value is invalid, or other machines could connect although that was not permitted.
        """
        check_metrics(self.metrics, is_network_allowed=self.is_network_allowed)
        if not self.is_network_allowed:
            refuse_network(self.listening_host)
