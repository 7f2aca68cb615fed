"""Stock TVM RPC servers and proxies, each a process of its own, register with an agent and become devices."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import fleet.aio
from device_agents.agent import Agent, Home
from device_agents.config import make_drivers, parse_config
from fleet.artifacts.artifact import Artifact
from fleet.domain.measuring import ErrorKind, Evaluator, TensorSpec
from fleet.errors import MeasurementError
from fleet.gateway.server import GatewayOptions, serve_gateway
from fleet.testing import ServedTracker, eventually, serve_tracker
from tests.android.rpc_servers import RpcServer, kill_group, serve_rpc
from tests.service.gateway_site import VERSION
from tests.system.stock_client_process import run_client

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the modules are built for x86_64"),
]
TARGET = {"kind": "llvm", "mtriple": "x86_64-linux-gnu"}
_START_SEC = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A tracker, and an agent where servers register."""

    tracker: ServedTracker
    agent: Agent
    client: fleet.aio.Fleet
    port: int
    """Port for registrations."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


@asynccontextmanager
async def serve_site(folder: Path, *keys: str) -> AsyncIterator[Site]:
    port = free_port()
    entry = {
        "driver": "tvm_registered",
        "listen": f"127.0.0.1:{port}",
        "keys": {key: {"target": TARGET} for key in keys},
    }
    config = parse_config({"devices": [entry]})
    async with AsyncExitStack() as stack:
        tracker = await stack.enter_async_context(serve_tracker())
        agent = Agent(config, make_drivers(config), Home(tracker=tracker.address, state_dir=folder / "agent"))
        await stack.enter_async_context(agent)
        assert await agent.wait_attached(60.0)
        client = await stack.enter_async_context(fleet.aio.connect(tracker.address))
        yield Site(tracker=tracker, agent=agent, client=client, port=port)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def name_of(server: RpcServer, key: str = "board") -> str:
    return f"devices/{key}-{server.address.replace(':', '-')}"


async def is_listed(site: Site, name: str, *, is_faulted: bool = False) -> bool:
    """Tell whether the tracker has a device, healthy or not."""
    device = {device.name: device for device in await site.client.devices()}.get(name)
    return device is not None and bool(device.reason) == is_faulted


async def check_product(site: Site, name: str, models: Path) -> None:
    """Time a matrix product on a device under a lease of its own, and compare its result with numpy's."""
    left, right = (np.random.default_rng(seed).random((16, 16), np.float32) for seed in (1, 2))
    output = TensorSpec(shape=(16, 16), dtype="float32", is_output=True)
    artifact = Artifact.of_file(models / "matmul.so")
    async with site.client.acquire(f"name={name.removeprefix('devices/')}") as device:
        timed = await device.time(artifact, [left, right, output], evaluator=Evaluator(number=3, repeat=2))
        outputs = await device.call(artifact, [left, right, output])
    assert all(0 < sec < 1 for sec in timed.run_secs)
    np.testing.assert_allclose(outputs[-1], left @ right, rtol=1e-5)


async def test_a_server_keeps_its_name_over_restarts(tmp_path: Path, agent_models: Path) -> None:
    """Each lease has sessions of its own. A server that is killed makes its device faulted until it is back."""
    async with serve_site(tmp_path, "board") as site:
        with serve_rpc("python", tmp_path / "server", tracker=site.address) as server:
            name = name_of(server)
            await eventually(partial(is_listed, site, name), _START_SEC)
            await check_product(site, name, agent_models)
            await check_product(site, name, agent_models)
            kill_group(server.process)
            await eventually(partial(is_listed, site, name, is_faulted=True), _START_SEC)
        port = int(server.address.rpartition(":")[2])
        with serve_rpc("python", tmp_path / "server", tracker=site.address, port=port):
            await eventually(partial(is_listed, site, name), _START_SEC)
            await check_product(site, name, agent_models)

        assert site.agent.device_names == [name]


async def test_failures_in_a_lease_are_told_apart(tmp_path: Path, agent_models: Path) -> None:
    """A candidate that crashes ends its session, and the server registers again. A server that dies is away."""
    good, args = Artifact.of_file(agent_models / "matmul.so"), [np.zeros((16, 16), np.float32)] * 3
    async with serve_site(tmp_path, "board") as site:
        with serve_rpc("cpp", tmp_path / "server", tracker=site.address) as server:
            name = name_of(server)
            await eventually(partial(is_listed, site, name), _START_SEC)
            async with site.client.acquire(f"name={name.removeprefix('devices/')}") as device:
                with pytest.raises(MeasurementError) as crashed:
                    await device.time(crashing(tmp_path), [])
                await device.time(good, args)
                kill_group(server.process)
                with pytest.raises(MeasurementError) as lost:
                    await device.time(good, args)
            await eventually(partial(is_listed, site, name, is_faulted=True), _START_SEC)

        assert (crashed.value.kind, lost.value.kind) == (ErrorKind.CRASHED, ErrorKind.DEVICE_FAULTED)


def crashing(folder: Path) -> Artifact:
    """Build a library with a function that crashes."""
    source = (
        "#include <csignal>\n" + 'extern "C" int __tvm_ffi_main(void*, void*, int, void*) { return raise(SIGSEGV); }'
    )
    (folder / "bad.cc").write_text(source)
    subprocess.run(["g++", "-shared", "-fPIC", "-o", "bad.so", "bad.cc"], cwd=folder, check=True, timeout=60)
    return Artifact.of_file(folder / "bad.so")


@contextmanager
def serve_proxy(folder: Path, tracker: str, *keys: str) -> Iterator[int]:
    """Run a stock proxy that registers, and a stock server behind it for each key. Yield its port."""
    port = free_port()
    proxy = ("tvm.exec.rpc_proxy", f"--port={port}", f"--port-end={port + 1}", "--web-port=0", f"--tracker={tracker}")
    with ExitStack() as stack:
        log = stack.enter_context((folder / "proxy.log").open("wb"))
        stack.enter_context(running(log.fileno(), *proxy))
        for key in keys:
            server = ("tvm.exec.rpc_server", "--host=127.0.0.1", f"--port={port}", f"--key={key}", "--through-proxy")
            stack.enter_context(running(log.fileno(), *server))
        yield port


@contextmanager
def running(log: int, module: str, *options: str) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", module, *options],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env={**os.environ, "TVM_USE_RUNTIME_LIB": "1"},
        start_new_session=True,
    )
    try:
        yield
    finally:
        kill_group(process)


async def test_boards_behind_a_stock_proxy_become_devices(tmp_path: Path, agent_models: Path) -> None:
    """One connection carries several keys, and two boards of one key; the proxy describes itself afterwards."""
    async with serve_site(tmp_path, "board", "other") as site:
        with serve_proxy(tmp_path, site.address, "board", "other", "board") as port:
            names = [f"devices/{key}" for key in (f"board-127.0.0.1-{port}", f"other-127.0.0.1-{port}")]
            names.append(f"{names[0]}-2")
            for name in names:
                await eventually(partial(is_listed, site, name), _START_SEC)
            for name in (*names, names[0]):
                await check_product(site, name, agent_models)

        assert sorted(site.agent.device_names) == sorted(names)


async def test_stock_clients_reach_registered_boards(tmp_path: Path) -> None:
    """Through a gateway, by the key that the server registered with."""
    async with serve_site(tmp_path, "board") as site:
        options = GatewayOptions(tvm_version=VERSION, port=0)
        with serve_rpc("cpp", tmp_path / "server", tracker=site.address) as server:
            await eventually(partial(is_listed, site, name_of(server)), _START_SEC)
            async with serve_gateway(site.client, options) as address:
                found = await run_client(int(address.rpartition(":")[2]), "sessions")

        assert found == {"sessions": "10"}
        assert server.log.read_text().count("session finished") >= 10
