"""Addresses of packs: text to values and back. No I/O.

rpi4.pack, folder/                          a file or a folder of this machine
oci://host[:port]/name[:tag][@sha256:hex]   an OCI registry
https://host/folder/                        a layout on a web server
package:NAME                                a folder of an installed Python package
"""

from __future__ import annotations

import re
import urllib.parse
from dataclasses import dataclass
from pathlib import Path

from fleet.errors import InvalidRequest

_REGISTRY, _PACKAGE = "oci://", "package:"
_WEB = ("https://", "http://")

_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(?::[0-9]{1,5})?"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_IN_REGISTRY = re.compile(
    rf"oci://(?P<host>{_HOST})/(?P<repository>{_PART}(?:/{_PART})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_ON_WEB = re.compile(rf"https?://{_HOST}(?:/[A-Za-z0-9._~!$&'()*+,;=:@%-]*)*")
_MOST_CHARS = 1024
_DEFAULT_TAG = "latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class InRegistry:
    """A pack in an OCI registry."""

    host: str
    """With its port, if that is not the usual one."""

    repository: str
    tag: str = _DEFAULT_TAG
    digest: str = ""
    """Digest of the manifest; empty: the tag names the manifest."""

    @property
    def reference(self) -> str:
        """Digest or tag, as in the path of a request."""
        return self.digest or self.tag

    def __str__(self) -> str:
        return f"{_REGISTRY}{self.host}/{self.repository}{'@' if self.digest else ':'}{self.reference}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OnWeb:
    """A layout on a web server."""

    url: str
    """Of its folder, with a "/" at the end."""

    def __str__(self) -> str:
        return self.url


@dataclass(frozen=True, slots=True, kw_only=True)
class InPackage:
    """A pack that an installed Python package brings."""

    name: str
    """Of its entry point."""

    def __str__(self) -> str:
        return f"{_PACKAGE}{self.name}"


Address = Path | InRegistry | OnWeb | InPackage


def parse_address(text: str) -> Address:
    """Return the address in a text.

    Raises:
        InvalidRequest: an address of a registry or web server has another form.
    """
    if text.startswith(_PACKAGE):
        return InPackage(name=text.removeprefix(_PACKAGE))
    if text.startswith(_REGISTRY):
        return _in_registry(text)
    return _on_web(text) if text.startswith(_WEB) else Path(text)


def registry_address(text: str) -> InRegistry:
    """Return the address of a pack in a registry. Raises InvalidRequest."""
    return _in_registry(text)


def name_at(address: Address) -> str:
    """Return the default name of a pack from there."""
    if isinstance(address, InPackage):
        return address.name
    if isinstance(address, Path):
        return address.resolve().name.removesuffix(".tar").removesuffix(".pack")
    path = address.repository if isinstance(address, InRegistry) else urllib.parse.urlsplit(address.url).path
    return path.rstrip("/").rpartition("/")[2].removesuffix(".pack")


def _in_registry(text: str) -> InRegistry:
    found = _IN_REGISTRY.fullmatch(text) if len(text) <= _MOST_CHARS else None
    if found is None:
        raise InvalidRequest("an address in a registry has the form oci://host/name:tag or oci://host/name@sha256:hex")
    return InRegistry(
        host=found["host"],
        repository=found["repository"],
        tag=found["tag"] or _DEFAULT_TAG,
        digest=found["digest"] or "",
    )


def _on_web(text: str) -> OnWeb:
    if len(text) > _MOST_CHARS or not _ON_WEB.fullmatch(text):
        raise InvalidRequest("an address on a web server has the form https://host/folder/, without a user or a query")
    return OnWeb(url=f"{text.rstrip('/')}/")
