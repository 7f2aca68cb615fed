"""Credentials for registries, from the files that `docker login` and `podman login` write.

Read are the variable DOCKER_AUTH_CONFIG (the content of such a file), then the file that REGISTRY_AUTH_FILE names, then
podman's and docker's own. Credentials that are kept by a helper program of docker are not found.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleet.errors import ConfigError
from fleet.packs.addresses import InRegistry

_MOST_BYTES = 1024**2
_CHALLENGE = re.compile(r'([A-Za-z_]+)="([^"]*)"')
_DOCKER_HUB = {"docker.io": "https://index.docker.io/v1/"}
"""Registries that these files name otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """A registry's demand for credentials."""

    scheme: str
    """In lower case: "bearer" or "basic"."""

    realm: str = ""
    """URL of its token service."""

    service: str = ""
    scope: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """User and password for one registry."""

    encoded: str = field(repr=False)
    """Base64 of "user:password"; empty: none."""

    @property
    def header(self) -> dict[str, str]:
        """The header of HTTP's basic scheme; empty without credentials."""
        return {"Authorization": f"Basic {self.encoded}"} if self.encoded else {}


def parse_challenge(header: str) -> Challenge:
    """Return the challenge in a header `WWW-Authenticate`."""
    scheme, _, rest = header.strip().partition(" ")
    parts = dict(_CHALLENGE.findall(rest))
    return Challenge(
        scheme=scheme.lower(),
        realm=parts.get("realm", ""),
        service=parts.get("service", ""),
        scope=parts.get("scope", ""),
    )


def credentials_for(address: InRegistry, environ: Mapping[str, str] = os.environ) -> Credentials:
    """Return the user's credentials for a registry.

    Raises:
        ConfigError: a file of credentials cannot be read.
    """
    for place, content in _contents(environ):
        if encoded := _encoded(_auths(place, content), address, place):
            return Credentials(encoded=encoded)
    return Credentials(encoded="")


def _contents(environ: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each source of credentials."""
    if given := environ.get("DOCKER_AUTH_CONFIG"):
        yield "DOCKER_AUTH_CONFIG", given.encode()
    for file in _files(environ):
        try:
            with file.open("rb") as opened:
                yield str(file), opened.read(_MOST_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise ConfigError(f"cannot read the credentials in {file}: {error.strerror}") from error


def _files(environ: Mapping[str, str]) -> Iterator[Path]:
    home = Path(environ.get("HOME") or "/")
    if named := environ.get("REGISTRY_AUTH_FILE"):
        yield Path(named)
    if runtime := environ.get("XDG_RUNTIME_DIR"):
        yield Path(runtime, "containers", "auth.json")
    yield Path(environ.get("XDG_CONFIG_HOME") or home / ".config", "containers", "auth.json")
    yield Path(environ.get("DOCKER_CONFIG") or home / ".docker", "config.json")


def _auths(place: str, content: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(content)
        auths = found.get("auths", {})
    except (ValueError, AttributeError, RecursionError):
        raise ConfigError(f"the credentials in {place} are not in the form of docker's config.json") from None
    return auths if isinstance(auths, dict) else {}


def _encoded(auths: Mapping[str, Any], address: InRegistry, place: str) -> str:
    """Return the credentials of the longest entry for an address; empty without one."""
    parts = f"{address.host}/{address.repository}".split("/")
    names = ["/".join(parts[:count]) for count in range(len(parts), 0, -1)]
    names += [f"https://{address.host}", f"https://{address.host}/", _DOCKER_HUB.get(address.host, "")]
    entry: dict[str, Any] = next((auths[name] for name in names if isinstance(auths.get(name), dict)), {})
    encoded = entry.get("auth") or ""
    if isinstance(entry.get("username"), str) and isinstance(entry.get("password"), str):
        encoded = encoded or base64.b64encode(f"{entry['username']}:{entry['password']}".encode()).decode()
    if not isinstance(encoded, str) or not re.fullmatch(r"[A-Za-z0-9+/=]*", encoded):
        raise ConfigError(f"the credentials for {address.host} in {place} are not in base64")
    return encoded
