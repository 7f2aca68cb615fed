"""Address and certificates of a Dask cluster. All connections use TLS, even on the loopback.

Dask executes code from its peers, so a port without TLS gives every user of the machine access to this account.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fleet.base.config import credentials_dir
from fleet.base.network import host_of
from fleet.base.version import package_version
from fleet.domain.tvm_versions import tvm_version
from fleet.errors import BuildersUnavailable, ConfigError

if TYPE_CHECKING:
    from distributed import Security

CA, CERT, KEY = "ca.pem", "cert.pem", "key.pem"
"""Names of the files in a cluster's folder of certificates."""

_SETTINGS = {
    # Our tasks are few and last for seconds, and each builder's pool keeps its machine busy: a stolen task would leave
    # its warm search behind.
    "distributed.scheduler.work-stealing": False,
    # A builder that hangs with its machine sends nothing more: its tasks restart elsewhere after this time.
    "distributed.scheduler.worker-ttl": "60s",
    # Number of builders that may die under one task before it fails.
    "distributed.scheduler.allowed-failures": 3,
    # Samples of a large model's cost model; the warning would criticise our own design.
    "distributed.admin.large-graph-warning-threshold": "1GB",
    # Dask modules that monitor Python, in a process that only waits for others.
    "distributed.worker.profile.enabled": False,
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.diagnostics.nvml": False,
    # Disable Dask's web pages, which do not authenticate clients.
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
}

_OTHERS = 0o077


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAddress:
    """Address of a Dask scheduler, validated by `check`."""

    address: str
    """tls://host:port."""

    certs: Path | None = None
    """Folder with ca.pem, cert.pem and key.pem; None for the folder made by this account's scheduler."""

    @property
    def folder(self) -> Path:
        """Folder of the certificates in use."""
        return self.certs or own_certs()

    def check(self) -> None:
        """Refuse an unusable address or certificate folder.

        Raises:
            ConfigError: Dask is not installed, the address is malformed or without TLS, or certificates are missing or
                readable by others.
        """
        scheme, _, place = self.address.partition("://")
        if scheme not in ("tls", "tcp") or not host_of(place) or not place.rpartition(":")[2].isdigit():
            raise ConfigError(f"{self.address!r} is no Dask scheduler; write it as tls://HOST:PORT")
        if scheme == "tcp":
            raise ConfigError(
                f"{self.address} has no TLS, and Dask runs the code of all clients that reach it; start the scheduler "
                f"with 'fleet builder scheduler', which makes its certificates, and use tls://{place}"
            )
        self._check_certs()
        if importlib.util.find_spec("distributed") is None:
            raise ConfigError("Dask is not installed; install it with: pip install 'tvm-fleet[dask]'")

    async def reach(self, timeout_sec: float) -> str:
        """Connect once with our certificate and return the local address of the connection.

        Fails fast: Dask itself retries a refused handshake for half a minute.

        Raises:
            BuildersUnavailable: nothing listens there, or the certificates do not match.
        """
        host, _, port = self.address.removeprefix("tls://").rpartition(":")
        context = self.security().get_connection_args("client")["ssl_context"]
        try:
            async with asyncio.timeout(timeout_sec):
                _, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=context)
        except ssl.SSLError as error:
            raise BuildersUnavailable(
                f"{self.address} and {self.folder} do not belong together ({error.reason}): all processes of a cluster "
                "need a copy of the scheduler's folder of certificates, named with --dask-certs"
            ) from error
        except (OSError, TimeoutError) as error:
            reason = str(error) or f"no answer within {timeout_sec:g} s"
            raise BuildersUnavailable(
                f"no Dask scheduler listens at {self.address} ({reason}); start it: fleet builder scheduler"
            ) from error
        here = str(writer.get_extra_info("sockname")[0])
        writer.close()
        return here

    def security(self) -> Security:
        """Return the certificates as Dask's security settings."""
        from distributed import Security

        files = {
            f"tls_{role}_{kind}": str(self.folder / name)
            for role in ("client", "worker", "scheduler")
            for kind, name in (("cert", CERT), ("key", KEY))
        }
        return Security(tls_ca_file=str(self.folder / CA), require_encryption=True, **files)

    def _check_certs(self) -> None:
        missing = [name for name in (CA, CERT, KEY) if not (self.folder / name).is_file()]
        if missing and self.certs is None:
            raise ConfigError(
                f"{self.address} takes certificates, and this account has none in {self.folder}: start 'fleet builder "
                "scheduler' here, which makes them, or copy that folder from the scheduler's machine (another place is "
                "named with --dask-certs)"
            )
        if missing:
            raise ConfigError(
                f"{self.folder} lacks {', '.join(missing)}; copy the folder of the scheduler's machine, or give "
                "your own cluster's certificates these names"
            )
        if (self.folder / KEY).stat().st_mode & _OTHERS:
            raise ConfigError(
                f"other users can read {self.folder / KEY}, and with it run code on all machines of the cluster; make "
                f"new certificates if one did, else: chmod -R go= {self.folder}"
            )


def own_certs() -> Path:
    """Return the folder of this account's own certificates, made by its scheduler."""
    return credentials_dir() / "builders"


def versions() -> str:
    """Return the versions that client and builders must share, because they exchange pickled values."""
    return f"tvm-fleet {package_version()} with apache-tvm {tvm_version()}"


def settle() -> None:
    """Configure Dask for this process, and route its log to ours."""
    import dask.config
    import distributed  # noqa: F401 - sets up its own logging, which is undone below

    dask.config.set(_SETTINGS)
    for name in ("distributed", "distributed.client", "distributed.gc", "tornado", "tornado.application"):
        found = logging.getLogger(name)
        found.handlers.clear()
        found.propagate = True
        found.setLevel(logging.WARNING)
    # it logs each failed handshake, of which we report the last
    logging.getLogger("tornado.general").setLevel(logging.ERROR)
