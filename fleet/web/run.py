"""Serves the page until it is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import time
from collections.abc import Iterator

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from fleet.base.network import host_and_port
from fleet.client.aio import Fleet, connect
from fleet.errors import ConfigError, FleetError
from fleet.web.app import Site
from fleet.web.feed import Feed
from fleet.web.guard import Guard
from fleet.web.job_pages import JobPages
from fleet.web.login_file import link, login_file
from fleet.web.options import WebOptions
from fleet.web.sessions import Right, Sessions

_MOST_CONNECTIONS = 500
_MOST_HEAD_BYTES = 16 * 1024
_FIRST_REQUEST_SEC = 5.0
_END_SEC = 1


async def run_web(tracker: str, options: WebOptions, library: str | None, connect_timeout_sec: float) -> None:
    """Serve until cancelled. Prints the address once it listens.

    Raises:
        FleetError: an option is invalid, the tracker does not answer or refuses this account, or the port is in use.
    """
    options.check()
    async with connect(tracker, connect_timeout_sec=connect_timeout_sec) as client:
        await serve_web(client, options, library)


async def serve_web(client: Fleet, options: WebOptions, library: str | None) -> None:
    """Serve the pages of a client's fleet until cancelled.

    Raises:
        FleetError: the tracker refuses this account, or the port is in use.
    """
    with contextlib.closing(_listen(options)) as listener:
        port = listener.getsockname()[1]
        url, feed = options.address(port), Feed(client)
        with login_file(port, url) as secret:
            site = Site(client, feed, Sessions(secret), JobPages(library), cookie=options.cookie(port))
            server = _Server(_config(Guard(site.app(), options.hosts(port), url), options))
            _announce(url, secret, port)
            await _run_both(feed, server, listener)


async def _run_both(feed: Feed, server: _Server, listener: socket.socket) -> None:
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(feed.run(), name="fleet snapshots")
            tasks.create_task(_serve(server, listener), name="pages")
    except* FleetError as errors:
        raise errors.exceptions[0] from None


def _announce(url: str, secret: str, port: int) -> None:
    """Print the address; on a terminal, also a link to read with. Logs of services must not contain links."""
    sys.stdout.write(f"page listening on {url}\n")
    if sys.stdout.isatty():
        sys.stdout.write(f"read it, once within ten minutes: {link(url, secret, Right.READ, time.time())}\n")
    sys.stdout.write(f"to act there: fleet web login --port {port}; to read: fleet web login --read --port {port}\n")
    sys.stdout.flush()


def _listen(options: WebOptions) -> socket.socket:
    host, port = host_and_port(f"{options.listening_host}:{options.port}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}, port {port}: {error.strerror or error}; choose another with --port"
        ) from error


def _config(app: Guard, options: WebOptions) -> uvicorn.Config:
    certificate, key = options.files() or (None, None)
    return uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",
        access_log=False,  # addresses of sign-ins contain links
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        ws="none",
        http=_Protocol,
        h11_max_incomplete_event_size=_MOST_HEAD_BYTES,
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=_END_SEC,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )


class _Protocol(H11Protocol):
    """A connection that is closed unless its first request arrives in time."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(_FIRST_REQUEST_SEC, self._close_silent)

    def _close_silent(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.transport.close()


class _Server(uvicorn.Server):
    """A server that leaves signals to its process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _serve(server: _Server, listener: socket.socket) -> None:
    """Serve until cancelled, and let answers under way end."""
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        await asyncio.shield(serving)
    finally:
        server.should_exit = True
        await asyncio.wait([serving])
