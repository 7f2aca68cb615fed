"""Where a Dask cluster is, and what is needed to speak with it: the package, and certificates off this machine."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fleet.base.network import host_of, is_loopback
from fleet.base.version import package_version
from fleet.domain.tvm_versions import tvm_version
from fleet.errors import BuildersUnavailable, ConfigError

if TYPE_CHECKING:
    from distributed import Security

CA, CERT, KEY = "ca.pem", "cert.pem", "key.pem"
"""Names of the files in a cluster's folder of certificates."""

_SETTINGS = {
    # Ours are few and last for seconds, and a build's machine is kept busy by its own pool: a task that moves would
    # leave its warm search behind.
    "distributed.scheduler.work-stealing": False,
    # A builder that hangs with its machine says nothing more: its tasks begin anew elsewhere after this.
    "distributed.scheduler.worker-ttl": "60s",
    # So many builders may die under one task before it fails.
    "distributed.scheduler.allowed-failures": 3,
    # Of a big model's cost model samples; the warning would be about our own design.
    "distributed.admin.large-graph-warning-threshold": "1GB",
    # What watches Python in a process that only waits for others.
    "distributed.worker.profile.enabled": False,
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.diagnostics.nvml": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAddress:
    """A Dask scheduler. `check` says whether it may be used."""

    address: str
    """tls://host:port, or tcp://host:port on this machine."""

    certs: Path | None = None
    """Folder with ca.pem, cert.pem and key.pem."""

    def check(self) -> None:
        """Refuse what cannot work or must not be done.

        Raises:
            ConfigError: no Dask here, no such address, no certificates, or plain text over a network.
        """
        scheme, _, place = self.address.partition("://")
        if scheme not in ("tls", "tcp") or not host_of(place) or not place.rpartition(":")[2].isdigit():
            raise ConfigError(f"{self.address!r} is no Dask scheduler; write it as tls://HOST:PORT")
        if scheme == "tcp" and not is_loopback(host_of(place)):
            raise ConfigError(
                f"{self.address}: whoever reaches a Dask cluster runs code on all of its machines, so it takes TLS "
                "beyond this one: use tls:// and --dask-certs ('fleet builder certs' makes them)"
            )
        if scheme == "tls":
            self._check_certs()
        if importlib.util.find_spec("distributed") is None:
            raise ConfigError("Dask is not installed; install it with: pip install 'tvm-fleet[dask]'")

    async def reach(self, timeout_sec: float) -> None:
        """Find somebody there who takes our certificate: Dask itself asks for half a minute whether a no was meant so.

        Raises:
            BuildersUnavailable: nobody listens, or they have other certificates.
        """
        scheme, _, place = self.address.partition("://")
        host, _, port = place.rpartition(":")
        context = self.security().get_connection_args("client").get("ssl_context") if scheme == "tls" else None
        try:
            async with asyncio.timeout(timeout_sec):
                _, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=context)
        except ssl.SSLError as error:
            raise BuildersUnavailable(
                f"{self.address} and {self.certs} do not belong together ({error.reason}): all of a cluster need the "
                "folder that 'fleet builder certs' made once"
            ) from error
        except (OSError, TimeoutError) as error:
            reason = str(error) or f"no answer within {timeout_sec:g} s"
            raise BuildersUnavailable(
                f"no Dask scheduler listens at {self.address} ({reason}); start it: fleet builder scheduler"
            ) from error
        writer.close()

    def security(self) -> Security:
        """Return what Dask needs to know of the certificates."""
        from distributed import Security

        if self.certs is None or self.address.startswith("tcp://"):
            return Security(require_encryption=False)
        files = {
            f"tls_{role}_{kind}": str(self.certs / name)
            for role in ("client", "worker", "scheduler")
            for kind, name in (("cert", CERT), ("key", KEY))
        }
        return Security(tls_ca_file=str(self.certs / CA), require_encryption=True, **files)

    def _check_certs(self) -> None:
        if self.certs is None:
            raise ConfigError(f"{self.address} takes certificates: name their folder with --dask-certs")
        missing = [name for name in (CA, CERT, KEY) if not (self.certs / name).is_file()]
        if missing:
            raise ConfigError(
                f"{self.certs} lacks {', '.join(missing)}; copy the folder that 'fleet builder certs' made, or name "
                "your own cluster's certificates so"
            )


def versions() -> str:
    """Return what client and builders have to have in common: both pickle values of these packages."""
    return f"tvm-fleet {package_version()} with apache-tvm {tvm_version()}"


def settle() -> None:
    """Set Dask up as we need it in this process, and leave its log to ours."""
    import dask.config
    import distributed  # noqa: F401 - sets up its own logging, which is undone below

    dask.config.set(_SETTINGS)
    for name in ("distributed", "distributed.client", "distributed.gc", "tornado", "tornado.application"):
        found = logging.getLogger(name)
        found.handlers.clear()
        found.propagate = True
        found.setLevel(logging.WARNING)
    logging.getLogger("tornado.general").setLevel(logging.ERROR)  # each failed handshake, of which we report the last
