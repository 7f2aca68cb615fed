"""Metrics of a process for Prometheus, served over HTTP at /metrics.

Values are collected when they are read, so a process that nobody watches does no work for it. prometheus_client is
imported only with --metrics. Labels are classes, kinds and board models: no names of people, leases or requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING

from fleet.base.extras import advice_for
from fleet.base.network import address_of, check_address, host_and_port, host_of, is_loopback
from fleet.base.version import package_version
from fleet.errors import ConfigError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

logger = logging.getLogger(__name__)

HELP = "Serve metrics for Prometheus at http://HOST:PORT/metrics. Port 0: a free one, which the log names."

_MOST_HEAD_BYTES = 8 * 1024
_REQUEST_SEC = 5.0
"""Time limit of one request and its answer."""

_MOST_CONNECTIONS = 16


def check_metrics(address: str | None, *, is_network_allowed: bool | None = None) -> None:
    """Check a process's --metrics before it starts.

    Args:
        address: None: no metrics.
        is_network_allowed: None: the process has no option --allow-network.

    Raises:
        ConfigError: the address is invalid or reaches beyond this machine, or prometheus_client is not installed.
    """
    if address is None:
        return
    check_address(address, "the address of --metrics", least_port=0)
    if not is_network_allowed and not is_loopback(host_of(address)):
        raise ConfigError(
            f"other machines reach {host_of(address)!r}, and anybody may read metrics there; listen on 127.0.0.1"
            f"{'' if is_network_allowed is None else ', or add --allow-network'}"
        )
    try:
        import prometheus_client  # noqa: F401 - as every serving process does
    except ModuleNotFoundError as error:
        raise ConfigError(f"--metrics needs the package {error.name}; {advice_for(error)}") from error


@asynccontextmanager
async def serving_metrics(address: str | None, register: Callable[[CollectorRegistry], object]) -> AsyncIterator[None]:
    """Serve a process's metrics inside the block; None serves nothing.

    Args:
        address: one that `check_metrics` accepted.
        register: registers the process's own metrics.

    Raises:
        ConfigError: the address cannot be listened on.
    """
    if address is None:
        yield
        return
    server = await _listen(address, _Page(_make_registry(register)))
    try:
        yield
    finally:
        server.close()


def _make_registry(register: Callable[[CollectorRegistry], object]) -> CollectorRegistry:
    from prometheus_client import CollectorRegistry, Gauge, ProcessCollector

    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    build = Gauge("fleet_build_info", "1, labelled with the version of tvm-fleet.", ["version"], registry=registry)
    build.labels(package_version()).set(1)
    register(registry)
    return registry


async def _listen(address: str, page: _Page) -> asyncio.Server:
    host, port = host_and_port(address)
    try:
        server = await asyncio.start_server(page.serve, host, port, limit=_MOST_HEAD_BYTES)
    except OSError as error:
        raise ConfigError(
            f"cannot serve metrics on {address}: {error.strerror or error}; choose another address with --metrics"
        ) from error
    port = server.sockets[0].getsockname()[1]
    logger.info("metrics are served", extra={"url": f"http://{address_of(host, port)}/metrics"})
    return server


class _Page:
    """Answers one request per connection."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._connection_count = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, and close it."""
        self._connection_count += 1
        try:
            if self._connection_count <= _MOST_CONNECTIONS:
                async with asyncio.timeout(_REQUEST_SEC):
                    writer.write(self._answer(await reader.readuntil(b"\r\n\r\n")))
                    await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError) as error:
            logger.debug("request for metrics not answered", extra={"reason": str(error)})
        except asyncio.CancelledError:
            logger.debug("request for metrics ended with the process")  # asyncio's own callback would log a traceback
        finally:
            self._connection_count -= 1
            writer.close()

    def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b"\r\n")[0].partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method not in (b"GET", b"HEAD"):
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, b"", extra="Allow: GET, HEAD\r\n")
        if path != b"/metrics":
            return _response(HTTPStatus.NOT_FOUND, b"the metrics are at /metrics\n")
        from prometheus_client import generate_latest

        return _response(HTTPStatus.OK, generate_latest(self._registry), is_head=method == b"HEAD")


def _response(status: HTTPStatus, content: bytes, *, extra: str = "", is_head: bool = False) -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
        f"Content-Length: {len(content)}\r\nConnection: close\r\n{extra}\r\n"
    )
    return head.encode() + (b"" if is_head else content)
