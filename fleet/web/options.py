"""Options of the page. Imported by the command line: kept free of gRPC and Starlette."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from fleet.base.command_line import Option
from fleet.base.config import at_home
from fleet.base.network import is_loopback, listening_host
from fleet.errors import ConfigError

WEB_PORT = 8080


@dataclass(frozen=True, slots=True, kw_only=True)
class WebOptions:
    """Options of the page."""

    host: Annotated[str | None, Option("Address to listen on. Default: 127.0.0.1, with --allow-network all.")] = None
    port: Annotated[int, Option("Port to listen on; 0 takes a free one.", least=0, most=65535)] = WEB_PORT
    url: Annotated[
        str | None,
        Option(
            "Address of the page for browsers elsewhere: https://fleet.example.org. Requests for other names are "
            "refused.",
            metavar="URL",
        ),
    ] = None
    is_network_allowed: Annotated[
        bool,
        Option("Listen beyond this machine. Needs --certificate or --behind-proxy.", flag="--allow-network"),
    ] = False
    certificate: Annotated[Path | None, Option("Certificate of the page's name, PEM.", metavar="FILE")] = None
    key: Annotated[Path | None, Option("Private key of the certificate, PEM.", metavar="FILE")] = None
    is_behind_proxy: Annotated[
        bool, Option("A proxy speaks TLS with browsers at --url, and passes the Host on.", flag="--behind-proxy")
    ] = False

    @property
    def listening_host(self) -> str:
        """Address to listen on."""
        return listening_host(self.host, is_network_allowed=self.is_network_allowed)

    @property
    def is_encrypted(self) -> bool:
        """True if browsers use HTTPS, so that the cookie may be sent by HTTPS only."""
        return self.certificate is not None or self.is_behind_proxy

    def address(self, port: int) -> str:
        """Return the address of the page for browsers, without a path.

        Args:
            port: the port that it listens on.
        """
        scheme = "https" if self.certificate else "http"
        return self.url.rstrip("/") if self.url else f"{scheme}://127.0.0.1:{port}"

    def cookie(self, port: int) -> str:
        """Return the name of the cookie. Pages on several ports of a host have their own; HTTPS keeps it from HTTP."""
        return f"{'__Host-' if self.is_encrypted else ''}fleet-{port}"

    def hosts(self, port: int) -> frozenset[str]:
        """Return the values of the header Host that are answered."""
        own = {f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}"}
        return frozenset(own | ({urlsplit(self.url).netloc.lower()} if self.url else set()))

    def files(self) -> tuple[str, str] | None:
        """Return the absolute paths of certificate and key."""
        if self.certificate is None or self.key is None:
            return None
        return str(at_home(self.certificate).resolve()), str(at_home(self.key).resolve())

    def check(self) -> None:
        """Refuse invalid settings.

        Raises:
            ConfigError: they are invalid, or other machines could connect without encryption.
        """
        if (self.certificate is None) is not (self.key is None):
            raise ConfigError("--certificate and --key go together; give both")
        if self.certificate and self.is_behind_proxy:
            raise ConfigError("--certificate and --behind-proxy exclude each other; TLS ends here or at the proxy")
        for path in self.files() or ():
            if not Path(path).is_file():
                raise ConfigError(f"there is no file {path}; name the certificate and its key as PEM files")
        self._check_reach()
        self._check_url()

    def _check_reach(self) -> None:
        if is_loopback(self.listening_host):
            return
        if not self.is_network_allowed:
            raise ConfigError(
                f"other machines reach {self.listening_host!r}; listen on 127.0.0.1, or add --allow-network"
            )
        if not self.is_encrypted:
            raise ConfigError("--allow-network needs encryption: add --certificate and --key, or --behind-proxy")

    def _check_url(self) -> None:
        is_needed = self.is_behind_proxy or not is_loopback(self.listening_host)
        if self.url is None and is_needed:
            raise ConfigError("browsers elsewhere need the page's address; add --url https://HOST")
        if self.url is None:
            return
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.path not in ("", "/") or parts.query:
            raise ConfigError(f"--url {self.url!r} is no address of a page; write it like https://fleet.example.org")
        if self.is_encrypted is not (parts.scheme == "https"):
            raise ConfigError(f"--url {self.url!r} must begin with {'https' if self.is_encrypted else 'http'}:// here")
