"""The HTTP page of metrics: its answers, and connections of strangers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from prometheus_client import CollectorRegistry, Gauge

from fleet.base import metrics
from fleet.base.metrics import check_metrics, serving_metrics
from fleet.base.version import package_version
from fleet.errors import ConfigError
from fleet.testing import eventually


@pytest.fixture
async def port(caplog: pytest.LogCaptureFixture) -> AsyncIterator[int]:
    """Port of a page with the gauge `answer`."""

    def register(registry: CollectorRegistry) -> None:
        Gauge("answer", "Of everything.", registry=registry).set(42)

    with caplog.at_level("INFO"):
        async with serving_metrics("127.0.0.1:0", register):
            (url,) = [record.url for record in caplog.records if record.message == "metrics are served"]  # type: ignore[attr-defined]
            yield int(url.rpartition(":")[2].partition("/")[0])


async def answer(port: int, request: bytes) -> bytes:
    """Send a request and return the whole response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        return await asyncio.wait_for(reader.read(), 60)
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_the_page_has_the_metrics_and_the_version(port: int) -> None:
    """A GET of /metrics returns text; HEAD returns its header alone."""
    head, _, body = (await answer(port, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")).partition(b"\r\n\r\n")
    only_head = await answer(port, b"HEAD /metrics HTTP/1.1\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    assert b"answer 42.0\n" in body
    assert f'fleet_build_info{{version="{package_version()}"}} 1.0'.encode() in body
    assert b"process_resident_memory_bytes" in body
    assert only_head.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"HTTP/1.1 404 "),
        (b"GET /metrics/../../etc/passwd HTTP/1.1\r\n\r\n", b"HTTP/1.1 404 "),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 9\r\n\r\n", b"HTTP/1.1 405 "),
        (b"\r\n\r\n", b"HTTP/1.1 405 "),
        (b"\xff\x00" * 5_000, b""),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 20_000, b""),
    ],
)
async def test_other_requests_are_refused(port: int, request_: bytes, status: bytes) -> None:
    """Unknown paths and methods have an answer; a header without an end does not."""
    found = await answer(port, request_)

    assert found.startswith(status)
    assert found or not status
    assert b"answer 42.0" not in found


async def test_silent_connections_are_bounded_and_closed(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections beyond the limit are closed at once, the others after a time limit; then the page is served again."""
    monkeypatch.setattr(metrics, "_REQUEST_SEC", 0.5)
    async with AsyncExitStack() as stack:
        readers = []
        for _ in range(metrics._MOST_CONNECTIONS):  # noqa: SLF001 - the limit
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.close)
            readers.append(reader)
        assert await answer(port, b"GET /metrics HTTP/1.1\r\n\r\n") == b""
        assert [await reader.read() for reader in readers] == [b""] * len(readers)

    async def is_served() -> bool:
        return b"answer 42.0" in await answer(port, b"GET /metrics HTTP/1.1\r\n\r\n")

    await eventually(is_served)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("nowhere", "write it like 127.0.0.1:9290"),
        ("127.0.0.1:65536", "write it like"),
        ("0.0.0.0:9301", "other machines reach '0.0.0.0'.*or add --allow-network"),
        ("[::]:9301", "other machines reach"),
    ],
)
def test_invalid_and_reachable_addresses_are_refused(address: str, words: str) -> None:
    """Metrics have no password: beyond the loopback they need the option."""
    with pytest.raises(ConfigError, match=words):
        check_metrics(address, is_network_allowed=False)


def test_with_allow_network_any_address_will_do() -> None:
    """A Prometheus on another machine is the usual case in a lab."""
    check_metrics("0.0.0.0:9301", is_network_allowed=True)
    check_metrics("127.0.0.1:0")
    check_metrics(None)


async def test_a_port_in_use_is_named(port: int) -> None:
    """The message says the address and the option."""
    with pytest.raises(ConfigError, match=rf"cannot serve metrics on 127.0.0.1:{port}: .* with --metrics"):
        async with serving_metrics(f"127.0.0.1:{port}", lambda registry: None):
            pass
