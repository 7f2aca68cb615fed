"""Boards that only speak TVM RPC: real sessions with TVM's own Python server and with one in C++, and every bad end."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import pytest

from fleet.testing import eventually
from fleet.v1 import measurement_pb2, session_service_pb2
from tests.android.rpc_servers import RpcServer, kill_group, serve_rpc
from tests.service.agent_bench import Bench, Holder, kind_of, request_for, serve_bench
from tests.service.tensors import spec, tensor

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the modules are built for x86_64"),
]
DEVICE = "devices/board"
MATMUL = [spec("fill", 16, 16), spec("fill", 16, 16), spec("output", 16, 16)]
_TRIAL_SEC = 60.0
"""Only a hang takes so long; on a busy machine a moment may take ten seconds."""

_BAD_SOURCE = r"""
#include <csignal>
#include <unistd.h>
extern "C" int __tvm_ffi_main(void*, void*, int, void*) { raise(SIGSEGV); return 0; }
extern "C" int __tvm_ffi_hang(void*, void*, int, void*) { for (;;) pause(); }
"""


def config_of(server: RpcServer, **more: object) -> dict[str, object]:
    target = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "num-cores": 2}
    entry = {"driver": "tvm_rpc", "name": "board", "address": server.address, "key": "board", "target": target}
    return {"devices": [{**entry, **more}]}


@pytest.fixture
def models(agent_models: Path) -> Path:
    return agent_models


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("bad")
    (folder / "bad.cc").write_text(_BAD_SOURCE)
    subprocess.run(["g++", "-shared", "-fPIC", "-o", "bad.so", "bad.cc"], cwd=folder, check=True, timeout=60)
    return (folder / "bad.so").read_bytes()


@pytest.fixture
def cpp(tmp_path: Path) -> Iterator[RpcServer]:
    with serve_rpc("cpp", tmp_path / "server") as server:
        yield server


@pytest.fixture
async def bench(tmp_path: Path, cpp: RpcServer) -> AsyncIterator[Bench]:
    async with serve_bench(tmp_path / "state", config_of(cpp, session_sec=3)) as served:
        yield served


async def measure_matmul(holder: Holder, models: Path) -> measurement_pb2.Measurement:
    evaluator = measurement_pb2.Evaluator(number=3, repeat=5)
    return await holder.run(
        (models / "matmul.so").read_bytes(), args=MATMUL, evaluator=evaluator, timeout_sec=_TRIAL_SEC
    )


@pytest.mark.parametrize("kind", ["cpp", "python"])
async def test_candidates_are_timed_and_computed_over_there(kind: str, tmp_path: Path, models: Path) -> None:
    """With the server that TVM's package brings as with one in C++: times, and numbers that agree with numpy."""
    with serve_rpc(kind, tmp_path / "server") as server:
        async with serve_bench(tmp_path / "state", config_of(server)) as bench:
            holder = bench.holding(epoch=1, device=DEVICE)
            timed = await measure_matmul(holder, models)
            left, right = (np.random.default_rng(seed).random((16, 16), np.float32) for seed in (1, 2))
            digest = await holder.put((models / "matmul.so").read_bytes())
            called = await holder.call(
                session_service_pb2.CallRequest(
                    artifact_digest=digest, args=[tensor(left), tensor(right), spec("output", 16, 16)]
                )
            )

    assert kind_of(timed) == "UNSPECIFIED", timed.error_message
    assert len(timed.run_secs) == 5
    assert all(0 < secs < 1 for secs in timed.run_secs)
    product = np.frombuffer(called.outputs[0].content, np.float32).reshape(16, 16)
    np.testing.assert_allclose(product, left @ right, rtol=1e-5)


async def test_whole_models_run_over_there(bench: Bench, models: Path) -> None:
    """The Relax VM is the board's: models are timed, and all their results come back."""
    holder = bench.holding(epoch=1, device=DEVICE)
    left, right = np.random.default_rng(1).random((4, 8), np.float32) - 0.5, np.ones((8, 8), np.float32)
    content = (models / "vm.so").read_bytes()

    timed = await holder.run(
        content,
        args=[spec("fill", 4, 8), spec("fill", 8, 8)],
        module_kind=measurement_pb2.MODULE_KIND_RELAX_VM,
        timeout_sec=_TRIAL_SEC,
    )
    called = await holder.call(
        session_service_pb2.CallRequest(
            artifact_digest=await holder.put(content),
            args=[tensor(left), tensor(right)],
            module_kind=measurement_pb2.MODULE_KIND_RELAX_VM,
        )
    )

    assert kind_of(timed) == "UNSPECIFIED", timed.error_message
    assert not called.error, called.error_message
    rectified, product = (np.frombuffer(output.content, np.float32).reshape(4, 8) for output in called.outputs)
    np.testing.assert_allclose(product, left @ right, rtol=1e-5)
    np.testing.assert_allclose(rectified, np.maximum(product, 0), rtol=1e-5)


async def test_operators_cannot_be_timed_in_their_place_over_there(bench: Bench, models: Path) -> None:
    """TVM RPC has no callbacks: the answer reports it, and the session goes on."""
    holder = bench.holding(epoch=1, device=DEVICE)
    vm = measurement_pb2.MODULE_KIND_RELAX_VM
    args = [spec("fill", 4, 8), spec("fill", 8, 8)]

    refused = await holder.run((models / "vm.so").read_bytes(), args=args, module_kind=vm, operator_runs=3)
    after = await measure_matmul(holder, models)

    assert kind_of(refused) == "BAD_ARGUMENTS"
    assert "takes no instrument" in refused.error_message
    assert kind_of(after) == "UNSPECIFIED", after.error_message


async def test_a_session_that_grows_old_is_replaced(bench: Bench, cpp: RpcServer, models: Path) -> None:
    """No candidate runs into the end that the server puts to a session; the worker lives on."""
    holder = bench.holding(epoch=1, device=DEVICE)
    digest = await holder.put((models / "matmul.so").read_bytes())
    evaluator = measurement_pb2.Evaluator(number=1, repeat=2, cooldown_interval_ms=600)
    ended_before = cpp.log.read_text().count("session finished")

    results = await holder.measure([request_for(digest, args=MATMUL, evaluator=evaluator, timeout_sec=_TRIAL_SEC)] * 4)

    assert ["UNSPECIFIED"] * 4 == [kind_of(result) for result in results], results[-1].error_message
    assert len({result.provenance.worker_pid for result in results}) == 1
    assert cpp.log.read_text().count("session finished") > ended_before


async def test_a_candidate_that_crashes_over_there_ends_alone(bench: Bench, models: Path, bad: bytes) -> None:
    """It is the candidate's fault, and the next candidate finds a clean session."""
    holder = bench.holding(epoch=1, device=DEVICE)

    crashed = await holder.run(bad, timeout_sec=_TRIAL_SEC)
    after = await measure_matmul(holder, models)

    assert kind_of(crashed) == "CRASHED", crashed.error_message
    assert "ended the process on the device" in crashed.error_message
    assert kind_of(after) == "UNSPECIFIED", after.error_message


async def test_a_candidate_that_hangs_over_there_blocks_the_board_no_longer_than_its_session(
    bench: Bench, models: Path, bad: bytes
) -> None:
    """The device is reported as busy meanwhile; then it measures again."""
    holder = bench.holding(epoch=1, device=DEVICE)

    hung = await holder.run(bad, function="hang", timeout_sec=0.5)
    after = await eventually(lambda: succeeded(holder, models), timeout_sec=60)

    assert kind_of(hung) == "TIMEOUT"
    assert after


async def test_a_board_that_goes_is_at_fault_and_comes_back(tmp_path: Path, models: Path) -> None:
    """The candidate is not blamed; the device is unhealthy with the reason until its server runs again."""
    with serve_rpc("cpp", tmp_path / "server") as server:
        port = int(server.address.rpartition(":")[2])
        async with serve_bench(tmp_path / "state", config_of(server)) as bench:
            holder = bench.holding(epoch=1, device=DEVICE)
            digest = await holder.put((models / "matmul.so").read_bytes())
            await holder.measure([request_for(digest, args=MATMUL, timeout_sec=_TRIAL_SEC)])
            kill_group(server.process)
            lost = (await holder.measure([request_for(digest, args=MATMUL, timeout_sec=_TRIAL_SEC)]))[0]
            await eventually(lambda: "start the TVM RPC server" in reason_of(bench))
            with serve_rpc("cpp", tmp_path / "server", port=port):
                back = await eventually(lambda: succeeded(holder, models), timeout_sec=60)

    assert kind_of(lost) == "DEVICE_FAULTED"
    assert back


async def test_a_server_with_another_key_is_named_as_such(tmp_path: Path, cpp: RpcServer) -> None:
    """The reason names the setting; the agent keeps serving."""
    async with serve_bench(tmp_path / "state", config_of(cpp, key="other")) as bench:
        await eventually(lambda: "has another key than 'other'" in reason_of(bench))

    assert cpp.process.poll() is None


async def test_a_server_that_is_busy_is_waited_for(tmp_path: Path, cpp: RpcServer) -> None:
    """Another client's session makes the device unhealthy, and no connection is given up half-way."""
    os.kill(cpp.process.pid, signal.SIGSTOP)
    async with serve_bench(tmp_path / "state", config_of(cpp)) as bench:
        await eventually(lambda: "takes no session now" in reason_of(bench))
        os.kill(cpp.process.pid, signal.SIGCONT)
        await eventually(lambda: DEVICE in bench.tracker.reports and not reason_of(bench))

    assert cpp.process.poll() is None


async def succeeded(holder: Holder, models: Path) -> bool:
    return kind_of(await measure_matmul(holder, models)) == "UNSPECIFIED"


def reason_of(bench: Bench) -> str:
    report = bench.tracker.reports.get(DEVICE)
    return report.reason if report else ""
