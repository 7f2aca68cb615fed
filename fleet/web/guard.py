"""Checks and headers of every request: the Host against DNS rebinding, and a strict content security policy."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Middleware around all pages."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str], origin: str) -> None:
        """Keep the rules.

        Args:
            hosts: accepted values of Host.
            origin: address of the page; its scheme is that of all accepted origins.
        """
        self._app = app
        self._hosts = hosts
        self._scheme = origin.partition("://")[0]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        """Return the answer to a request that must not reach the pages."""
        headers = Headers(scope=scope)
        host, origins = headers.get("host", "").lower(), headers.getlist("origin")
        if len(headers.getlist("host")) != 1 or host not in self._hosts:
            return PlainTextResponse("This page has another name; use the address that fleet web printed.\n", 421)
        if any(origin != f"{self._scheme}://{host}" for origin in origins):
            return PlainTextResponse("Forms of other pages are refused.\n", 403)
        return None
