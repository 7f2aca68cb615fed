"""A fleet for stock TVM clients and servers, without a configuration: `python -m fleet.testing.stock_fleet 9190 9199`.

Prints its port, one of the range, and ends with its starter, or on SIGTERM.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import fleet.aio
from fleet.base.scratch import scratch_dir
from fleet.base.signals import on_signals
from fleet.errors import ConfigError
from fleet.gateway.options import GatewayOptions
from fleet.gateway.server import serve_gateway

_HOST = "127.0.0.1"
_TARGET = {"kind": "llvm"}


@asynccontextmanager
async def serve_stock_fleet(ports: Iterable[int]) -> AsyncIterator[int]:
    """Serve clients and servers inside the block, on the first free port; yield it.

    Raises:
        ConfigError: no port is free.
        FleetError: the fleet did not start.
    """
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(scratch_dir("stock"))
        registrations = f"{_HOST}:{_free_port()}"
        config = folder / "agent.yaml"
        config.write_text(json.dumps(_agent_config(registrations)))
        local = await stack.enter_async_context(fleet.aio.LocalFleet(agent_config=config))
        client = await stack.enter_async_context(fleet.aio.connect(local.address))
        yield await _serve_gateway(stack, client, ports, folder / "gateway", registrations)


def _agent_config(registrations: str) -> dict[str, object]:
    """Return agent.yaml's content: servers of all keys are served."""
    entry = {"driver": "tvm_registered", "listen": registrations, "keys": {"*": {"target": _TARGET, "most": 64}}}
    return {"devices": [entry]}


async def _serve_gateway(
    stack: AsyncExitStack, client: fleet.aio.Fleet, ports: Iterable[int], folder: Path, registrations: str
) -> int:
    options = GatewayOptions(state_dir=folder, registrations=registrations)
    options.check()
    for port in ports:
        try:
            await stack.enter_async_context(serve_gateway(client, replace(options, port=port)))
        except ConfigError:
            continue  # in use
        return port
    raise ConfigError("no port of the range is free")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


async def _main(first: int, end: int) -> None:
    stopped = asyncio.Event()
    on_signals((signal.SIGTERM, signal.SIGINT), stopped.set)
    async with serve_stock_fleet(range(first, end)) as port:
        print(port, flush=True)  # noqa: T201 - read by the starter
        await stopped.wait()


if __name__ == "__main__":
    asyncio.run(_main(*map(int, sys.argv[1:])))
