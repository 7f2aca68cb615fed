"""The reference kernel of devices behind TVM RPC: times of real servers, without the link, and with disturbances."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from fleet.testing import eventually
from fleet.v1 import measurement_pb2
from tests.android.rpc_servers import RpcServer, library_folders, serve_rpc
from tests.service.agent_bench import Holder, kind_of, request_for, serve_bench
from tests.service.tensors import spec

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the modules are built for x86_64"),
]
DEVICE = "devices/board"
LINK_DELAY_SEC = 0.03
INTERRUPTER = """
import os, signal, sys, time
while True:
    for number, pause_sec in ((signal.SIGSTOP, 0.003), (signal.SIGCONT, 0.0001)):
        os.killpg(int(sys.argv[1]), number)
        time.sleep(pause_sec)
"""

CHANGED_SERVER = r"""
#include <tvm/ffi/function.h>
#include <time.h>
#include <unistd.h>
using tvm::ffi::Function;
constexpr const char* kWork = "tvm.contrib.random.random_fill";
__attribute__((constructor)) static void change() {
  CHANGE;
}
"""
WITHOUT_IT = "Function::RemoveGlobal(kWork)"
STEADY = """
  Function::SetGlobal(kWork, Function::FromPacked([](tvm::ffi::PackedArgs, tvm::ffi::Any*) {
    auto now_ns = [] {
      timespec now;
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
      return now.tv_sec * 1000000000LL + now.tv_nsec;
    };
    auto end_ns = now_ns() + 200000;
    while (now_ns() < end_ns);
  }), true)
"""
"""Always takes the same processor time: no clock or cache of a shared machine changes it, an interruption does."""

DYING_IN_IT = """
  Function::SetGlobal(kWork, Function::FromPacked([](tvm::ffi::PackedArgs, tvm::ffi::Any*) { _exit(3); }), true)
"""


def config_of(address: str) -> dict[str, object]:
    target = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "num-cores": 2}
    return {
        "devices": [{"driver": "tvm_rpc", "name": "board", "address": address, "key": "board", "target": target}],
    }


async def measure(holder: Holder, matmul: bytes, count: int = 1) -> list[measurement_pb2.Measurement]:
    """Measure this many times, each in a separate batch: the reference kernel runs after each."""
    args = [spec("fill", 16, 16), spec("fill", 16, 16), spec("output", 16, 16)]
    digest = await holder.put(matmul)
    results = await holder.measure([request_for(digest, args=args, timeout_sec=60.0, ends_batch=True)] * count)
    assert ["UNSPECIFIED"] * count == [kind_of(result) for result in results], results
    return results


def has_drifted(result: measurement_pb2.Measurement) -> bool:
    return any(
        found.kind == measurement_pb2.DISTURBANCE_KIND_REFERENCE_DRIFT for found in result.provenance.disturbances
    )


@pytest.mark.parametrize("kind", ["cpp", "python"])
async def test_it_is_in_the_record_and_in_the_telemetry(kind: str, tmp_path: Path, matmul: bytes) -> None:
    """The record and the telemetry have it with TVM's own server, and with one in C++."""
    with serve_rpc(kind, tmp_path / "server") as server:
        async with serve_bench(tmp_path / "state", config_of(server.address)) as bench:
            (result,) = await measure(bench.holding(epoch=1, device=DEVICE), matmul)
            await eventually(lambda: bench.tracker.reports[DEVICE].telemetry.reference_sec > 0)

    assert 1e-6 < result.provenance.before.reference_sec < 1
    assert 1e-6 < result.provenance.after.reference_sec < 1


@pytest.mark.measures
async def test_a_slow_link_is_not_in_its_times(tmp_path: Path, matmul: bytes) -> None:
    """The server measures its times; measured here they would exceed the link's delay."""
    with serve_rpc("cpp", tmp_path / "server") as server:
        async with slow_link(server) as address, serve_bench(tmp_path / "state", config_of(address)) as bench:
            (result,) = await measure(bench.holding(epoch=1, device=DEVICE), matmul)

    assert 0 < result.provenance.after.reference_sec < LINK_DELAY_SEC


@pytest.mark.measures
@pytest.mark.timeout(300)
async def test_a_busy_processor_over_there_disturbs_and_is_over_when_it_is_idle(
    tmp_path: Path, matmul: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference kernel is the only evidence: such a server has no sensors, and the worker here waits for no
    processor.
    """
    monkeypatch.setenv("TVM_RPC_PRELOAD", str(build_change(tmp_path, STEADY)))
    with serve_rpc("cpp", tmp_path / "server") as server:
        async with serve_bench(tmp_path / "state", config_of(server.address)) as bench:
            holder = bench.holding(epoch=1, device=DEVICE)

            async def is_disturbed() -> bool:
                return has_drifted((await measure(holder, matmul))[0])

            async def is_calm() -> bool:
                return not await is_disturbed()

            await eventually(is_calm, timeout_sec=90)
            with busy_processor(server):
                await eventually(is_disturbed, timeout_sec=90)
            await eventually(is_calm, timeout_sec=90)


@pytest.mark.measures
async def test_a_server_without_the_function_has_none(
    tmp_path: Path, matmul: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server built without TVM's random numbers measures without reporting drift."""
    monkeypatch.setenv("TVM_RPC_PRELOAD", str(build_change(tmp_path, WITHOUT_IT)))
    with serve_rpc("cpp", tmp_path / "server") as server:
        async with serve_bench(tmp_path / "state", config_of(server.address)) as bench:
            results = await measure(bench.holding(epoch=1, device=DEVICE), matmul, 3)

    assert not any(result.provenance.after.HasField("reference_sec") for result in results)
    assert not any(has_drifted(result) for result in results)
    assert len({result.provenance.worker_pid for result in results}) == 1


async def test_a_server_that_dies_in_it_costs_workers_and_no_candidate(
    tmp_path: Path, matmul: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker ends with its session, as in a candidate; after several failures the reference is no longer
    measured.
    """
    monkeypatch.setenv("TVM_RPC_PRELOAD", str(build_change(tmp_path, DYING_IN_IT)))
    with serve_rpc("cpp", tmp_path / "server") as server:
        async with serve_bench(tmp_path / "state", config_of(server.address)) as bench:
            results = await measure(bench.holding(epoch=1, device=DEVICE), matmul, 4)

    workers = [result.provenance.worker_pid for result in results]
    assert not any(result.provenance.after.HasField("reference_sec") for result in results)
    assert workers[0] != workers[1]
    assert workers[2] == workers[3]


@contextlib.contextmanager
def busy_processor(server: RpcServer) -> Iterator[None]:
    """Interrupt a server's processes every moment, as other processes do.

    Real ones do so by chance only: a run of the kernel is shorter than a turn of the scheduler.
    """
    interrupter = subprocess.Popen([sys.executable, "-c", INTERRUPTER, str(server.process.pid)])
    try:
        yield
    finally:
        interrupter.kill()
        interrupter.wait()
        os.killpg(server.process.pid, signal.SIGCONT)


@contextlib.asynccontextmanager
async def slow_link(server: RpcServer) -> AsyncIterator[str]:
    """Forward a port to the server, delaying its answers."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_sec: float) -> None:
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(65536):
                await asyncio.sleep(delay_sec)
                writer.write(piece)
                await writer.drain()
        writer.close()

    async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = server.address.rpartition(":")
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        await asyncio.gather(pump(reader, far_writer, 0.0), pump(far_reader, writer, LINK_DELAY_SEC))

    link = await asyncio.start_server(lead, "127.0.0.1", 0)
    async with link:
        yield f"127.0.0.1:{link.sockets[0].getsockname()[1]}"


def build_change(folder: Path, change: str) -> Path:
    """Build a library that changes a server's function before its first session."""
    source, library = folder / "change.cc", folder / "change.so"
    source.write_text(CHANGED_SERVER.replace("CHANGE", change))
    ffi = library_folders()[0]
    words = ["g++", "-std=c++17", "-shared", "-fPIC", "-o", library, source, f"-I{ffi.parent / 'include'}"]
    subprocess.run([*words, f"-L{ffi}", "-ltvm_ffi"], check=True, timeout=100)
    return library
