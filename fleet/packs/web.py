"""HTTP requests to servers of strangers.

Plain HTTP stays on this machine unless allowed, redirects lead to HTTPS or stay with their server, credentials stay
with their server, and neither a silent nor a slow server holds a request for long. Callers limit the bytes that they
read.
"""

from __future__ import annotations

import http.client
import ipaddress
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import BinaryIO, cast

from fleet.base.text import sanitize
from fleet.errors import InvalidRequest, RegistryError

_TIMEOUT_SEC = 30.0
"""Of a connection, and of each pause in a response."""

_GRACE_SEC = 60.0
_LEAST_BYTES_PER_SEC = 1024
"""A response has to be this fast after the grace period."""

_MOST_REDIRECTS = 5
_MOST_CHARS = 200
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_REDIRECTED = frozenset({"GET", "HEAD"})
_AUTHORIZATION = "Authorization"


@dataclass(slots=True)
class Answer:
    """A response. Close it."""

    status: int
    headers: Message
    body: Body

    @property
    def size_bytes(self) -> int | None:
        """Length of the body; None if the server does not say."""
        found = self.headers.get("Content-Length", "")
        return int(found) if found.isascii() and found.isdecimal() and len(found) < 20 else None

    def close(self) -> None:
        """Close the connection, with whatever the server still sends."""
        self.body.close()


class Body:
    """The bytes of a response, with a time limit."""

    def __init__(self, response: http.client.HTTPResponse, shown: str) -> None:
        self._response = response
        self._shown = shown
        self._started = time.monotonic()
        self._count = 0

    def read(self, size: int = -1, /) -> bytes:
        """Return up to `size` bytes; fewer only at the end.

        Raises:
            RegistryError: the server is too slow, or the connection broke.
        """
        parts = []
        while size > 0 and (part := self._read_some(size)):
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        """Close the connection."""
        self._response.close()

    def _read_some(self, most: int) -> bytes:
        try:
            part = self._response.read1(most)
        except (OSError, http.client.HTTPException) as error:
            raise RegistryError(f"{self._shown} broke off: {_reason(error)}") from error
        self._count += len(part)
        if time.monotonic() - self._started > _GRACE_SEC + self._count / _LEAST_BYTES_PER_SEC:
            raise RegistryError(f"{self._shown} is slower than {_LEAST_BYTES_PER_SEC} bytes/s")
        return part


class Web:
    """Sends requests."""

    def __init__(self, *, allows_plain_http: bool = False) -> None:
        """Args: allows_plain_http: also to other machines."""
        self.allows_plain_http = allows_plain_http
        self._opener = _opener()

    def is_allowed(self, url: str) -> bool:
        """Tell whether requests may go there: by HTTPS, or to this machine."""
        parts = urllib.parse.urlsplit(url)
        return parts.scheme == "https" or (
            parts.scheme == "http" and (self.allows_plain_http or is_loopback(parts.hostname or ""))
        )

    def send(
        self, method: str, url: str, headers: Mapping[str, str] | None = None, content: bytes | Path | None = None
    ) -> Answer:
        """Send a request, and return the response with any status other than that of a redirect.

        Args:
            headers: Authorization stays with this server.

        Raises:
            InvalidRequest: the address, or one that the server redirects to, is not allowed.
            RegistryError: the server does not answer.
        """
        if not self.is_allowed(url):
            raise InvalidRequest(f"{shown(url)} is not https; --plain-http allows that, and anyone on the way reads it")
        sent = dict(headers or {})
        for _ in range(_MOST_REDIRECTS + 1):
            answer = self._send_once(method, url, sent, content)
            target = answer.headers.get("Location", "")
            if answer.status not in _REDIRECTS or method not in _REDIRECTED or not target:
                return answer
            answer.close()
            url, earlier = resolved(url, target), url
            if not is_same_server(earlier, url):
                sent.pop(_AUTHORIZATION, None)
        raise InvalidRequest(f"{shown(url)} redirects more than {_MOST_REDIRECTS} times")

    def _send_once(self, method: str, url: str, headers: Mapping[str, str], content: bytes | Path | None) -> Answer:
        try:
            if not isinstance(content, Path):
                return self._open(method, url, headers, content)
            with content.open("rb") as file:
                length = {"Content-Length": str(content.stat().st_size)}
                return self._open(method, url, {**headers, **length}, file)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise RegistryError(f"{shown(url)} does not answer: {_reason(error)}") from error

    def _open(self, method: str, url: str, headers: Mapping[str, str], content: bytes | BinaryIO | None) -> Answer:
        request = urllib.request.Request(  # noqa: S310 - is_allowed has checked the scheme
            url, content, {"User-Agent": "tvm-fleet", "Accept-Encoding": "identity", **headers}, method=method
        )
        response = cast("http.client.HTTPResponse", self._opener.open(request, timeout=_TIMEOUT_SEC))
        return Answer(response.status, response.headers, Body(response, shown(url)))


def resolved(url: str, location: str) -> str:
    """Return the address that a response of `url` refers to. Raises InvalidRequest if no request may go there."""
    try:
        target = urllib.parse.urljoin(url, location)
        is_fit = urllib.parse.urlsplit(target).scheme == "https" or is_same_server(url, target)
    except ValueError as error:
        raise InvalidRequest(f"{shown(url)} refers to something that is no address") from error
    if not is_fit:
        raise InvalidRequest(f"{shown(url)} refers to {shown(target)}, which is neither https nor the same server")
    return target


def is_loopback(host: str) -> bool:
    """Tell whether a host is this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_same_server(one: str, other: str) -> bool:
    """Tell whether two URLs have the same scheme, host and port."""
    first, second = (urllib.parse.urlsplit(url) for url in (one, other))
    return (first.scheme, first.netloc) == (second.scheme, second.netloc)


def shown(url: str) -> str:
    """Return a URL for messages: without a query, which may be a secret."""
    parts = urllib.parse.urlsplit(url)
    text = urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    return sanitize(text, _MOST_CHARS)


def _opener() -> urllib.request.OpenerDirector:
    """Return an opener for HTTP alone: without files, FTP, redirects, cookies, or proxies for plain HTTP."""
    opener = urllib.request.OpenerDirector()
    proxies = {scheme: proxy for scheme, proxy in urllib.request.getproxies().items() if scheme == "https"}
    opener.add_handler(urllib.request.ProxyHandler(proxies))
    opener.add_handler(urllib.request.HTTPHandler())
    opener.add_handler(urllib.request.HTTPSHandler())
    return opener


def _reason(error: Exception) -> str:
    found = getattr(error, "reason", None) or error
    if isinstance(found, TimeoutError):
        return f"nothing came for {_TIMEOUT_SEC:g} s"
    return sanitize(getattr(found, "strerror", None) or str(found) or type(found).__name__, _MOST_CHARS)
