"""Options of a gateway. Imported by the command line: kept free of gRPC."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fleet.base.command_line import Option
from fleet.base.config import data_dir
from fleet.base.metrics import HELP as METRICS_HELP
from fleet.base.metrics import check_metrics
from fleet.base.network import check_address, is_loopback, listening_host
from fleet.domain.lease_class import LeaseClass
from fleet.errors import ConfigError

GATEWAY_PORT = 9190
"""The usual port of TVM's own tracker."""

_VERSION = re.compile(r"\d+(\.\d+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """Options of a gateway."""

    host: Annotated[str | None, Option("Address to listen on. Default: 127.0.0.1, with --allow-network all.")] = None
    port: Annotated[int, Option("Port to listen on; 0 takes a free one.", least=0, most=65535)] = GATEWAY_PORT
    tvm_version: Annotated[
        str,
        Option(
            "Version of TVM of the clients, as 0.27: only devices with this one are granted. Default: that of this "
            "environment.",
            metavar="VERSION",
        ),
    ] = ""
    lease_class: Annotated[
        str, Option("Class of the leases: interactive, normal or batch.", flag="--class", metavar="CLASS")
    ] = LeaseClass.BATCH
    is_network_allowed: Annotated[
        bool,
        Option("Listen beyond this machine, without encryption: clients there need a key.", flag="--allow-network"),
    ] = False
    registrations: Annotated[
        str | None,
        Option(
            "Where an agent's driver tvm_registered listens: it gets the TVM RPC servers of this user that register at "
            "this port.",
            metavar="HOST:PORT",
        ),
    ] = None
    metrics: Annotated[str | None, Option(METRICS_HELP, metavar="HOST:PORT")] = None
    state_dir: Annotated[Path | None, Option("Folder of the hashes of keys.")] = None

    @property
    def listening_host(self) -> str:
        """Address to listen on."""
        return listening_host(self.host, is_network_allowed=self.is_network_allowed)

    @property
    def directory(self) -> Path:
        """Folder of the hashes of keys."""
        return self.state_dir or data_dir() / "gateway"

    @property
    def is_open_to_network(self) -> bool:
        """True if other machines can connect."""
        return not is_loopback(self.listening_host)

    @property
    def served_version(self) -> str:
        """Version of TVM of the clients; empty: unknown."""
        from fleet.runtime.tvm_library import runtime_version  # its package loads numpy

        return self.tvm_version or ".".join(runtime_version().split(".")[:2])

    def check(self) -> None:
        """Refuse invalid settings.

        Raises:
            ConfigError: a value is invalid, there is no TVM here and no version was given, or other machines could
                connect although that was not permitted.
        """
        if self.lease_class not in list(LeaseClass):
            raise ConfigError(f"there is no class {self.lease_class!r}; the classes are {', '.join(LeaseClass)}")
        if not self.served_version:
            raise ConfigError(
                "TVM is not installed here; name the version of its clients: fleet gateway serve --tvm-version 0.27"
            )
        if not _VERSION.fullmatch(self.served_version):
            raise ConfigError(f"{self.served_version!r} is no version of TVM; write it as 0.27")
        if self.is_open_to_network and not self.is_network_allowed:
            raise ConfigError(
                f"other machines reach {self.listening_host!r}; listen on 127.0.0.1, or add --allow-network: TVM's "
                "protocol has no encryption, and clients there need keys of 'fleet gateway key create'"
            )
        if self.registrations is not None:
            check_address(self.registrations, "--registrations")
        check_metrics(self.metrics, is_network_allowed=self.is_network_allowed)
