"""`fleet up`: runs a fleet on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Annotated

import typer

import fleet.aio
from fleet.base.config import TRACKER_PORT, data_dir
from fleet.cli import options
from fleet.errors import ConfigError
from fleet.gateway.options import GATEWAY_PORT, GatewayOptions
from fleet.gateway.server import serve_gateway


def up(
    port: Annotated[int, typer.Option(min=0, max=65535, help="The tracker's port; 0 takes a free one.")] = TRACKER_PORT,
    config: Annotated[
        Path | None,
        typer.Option(help="The agent's configuration, a YAML file. Default: the devices found on this machine."),
    ] = None,
    state_dir: Annotated[
        Path | None, typer.Option(help="Folder in which both keep their state across restarts.")
    ] = None,
    gateway_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port for stock TVM clients, see 'fleet gateway'; 0 takes a free one.")
    ] = GATEWAY_PORT,
) -> None:
    """Run a tracker and an agent for this machine until Ctrl-C, and a gateway for stock TVM clients.

    If the tracker or agent dies, it is started again. All end with this command.

    Example: fleet up
    """
    console = options.stderr()
    if config is not None and not config.is_file():
        raise ConfigError(f"there is no file {config}")

    async def work() -> None:
        local = fleet.aio.LocalFleet(
            state_dir=state_dir or data_dir() / "local",
            port=port,
            agent_config=config,
            restarts=True,
            on_change=console.print,
        )
        async with local, _gateway(local.address, gateway_port) as gateway:
            console.print(f"tracker on {local.address}, agent on {local.agent_address}, logs in {local.state_dir}/log")
            console.print(gateway)
            console.print("in another terminal:")
            flag = "" if port == TRACKER_PORT else f" --tracker {local.address}"
            console.print(f"  fleet status{flag}\n  fleet tune MODEL.onnx{flag}")
            console.print("Ctrl-C stops all")
            await asyncio.Event().wait()

    options.run_service(work())


@asynccontextmanager
async def _gateway(tracker: str, port: int) -> AsyncIterator[str]:
    """Serve stock TVM clients inside the block, and yield a sentence about it. A fleet without a gateway will do."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(fleet.aio.connect(tracker))
        try:
            address = await stack.enter_async_context(serve_gateway(client, GatewayOptions(port=port)))
        except ConfigError as error:
            sentence = f"no gateway for stock TVM clients: {error}"
        else:
            sentence = f"gateway for stock TVM clients on {address}"
        yield sentence
