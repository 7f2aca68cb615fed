"""The runtime for boards without TVM's: real modules in a real worker, against numpy and against TVM's own runtime."""

from __future__ import annotations

import contextlib
import platform
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from device_agents.driver import WorkerSpec
from device_agents.workers.handle import WorkerHandle
from device_agents.workers.limits import WorkerLimits
from device_agents.workers.pool import WorkerPool
from fleet.v1 import measurement_pb2, session_service_pb2, tensor_pb2, worker_pb2
from tests.programs import run_module
from tests.service.tensors import array_of, spec, tensor

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the modules are built for x86_64"),
]
TARGET = '{"kind": "llvm", "mcpu": "x86-64-v2"}'
PLAIN = "device_agents.runtimes.plain.runtime:PlainRuntime"
TVM = "device_agents.runtimes.tvm:TvmRuntime"
_GIB = 1024**3


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    run_module("tests.service.plain_models", folder, TARGET)
    return folder


@contextlib.asynccontextmanager
async def worker_of(folder: Path, runtime: str, **environment: str) -> AsyncIterator[WorkerHandle]:
    preload = runtime.partition(":")[0]
    pool = WorkerPool(folder / preload, [preload], WorkerLimits(memory_bytes=_GIB, disk_bytes=_GIB))
    await pool.open()
    try:
        spec = WorkerSpec(runtime=runtime, environment={"TVM_NUM_THREADS": "2", **environment})
        yield await pool.start_worker(spec, lambda _: None)
    finally:
        await pool.close()


@pytest.fixture
async def worker(tmp_path: Path) -> AsyncIterator[WorkerHandle]:
    async with worker_of(tmp_path, PLAIN) as started:
        yield started


async def call(worker: WorkerHandle, path: Path, *args: tensor_pb2.Argument) -> session_service_pb2.CallResponse:
    request = session_service_pb2.CallRequest(artifact_digest=f"sha256:{path.name}", args=args)
    order = worker_pb2.WorkerRequest(call=request, artifact_path=str(path))
    return (await worker.exchange(order.SerializeToString(), 60.0)).call


async def measure(worker: WorkerHandle, path: Path, *args: Any, **fields: Any) -> measurement_pb2.Measurement:
    request = measurement_pb2.MeasureRequest(candidate_id="c", artifact_digest=path.name, args=args, **fields)
    order = worker_pb2.WorkerRequest(measure=request, artifact_path=str(path))
    return (await worker.exchange(order.SerializeToString(), 60.0)).measurement


def only_output(response: session_service_pb2.CallResponse) -> np.ndarray[Any, Any]:
    assert response.error_message == ""
    (output,) = response.outputs
    return array_of(output)


async def test_results_equal_those_of_tvms_runtime(models: Path, tmp_path: Path) -> None:
    """Results are equal bit for bit, parallel loops and workspaces included."""
    random = np.random.default_rng(1)
    wide, square = random.random(2**16, np.float32), random.random((64, 64), np.float32)
    cases = {
        "matmul.so": (tensor(square), tensor(square.T.copy()), spec("output", 64, 64)),
        "parallel.so": (tensor(wide), spec("output", 2**16)),
        "workspace.so": (tensor(wide), spec("output", 2**16)),
        "exp.so": (tensor(wide[:8]), spec("output", 8)),
    }
    found = {}
    for runtime in (PLAIN, TVM):
        async with worker_of(tmp_path, runtime) as worker:
            found[runtime] = [only_output(await call(worker, models / name, *args)) for name, args in cases.items()]

    for ours, theirs in zip(found[PLAIN], found[TVM], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_allclose(found[PLAIN][0], square @ square.T, rtol=1e-4)
    np.testing.assert_array_equal(found[PLAIN][1], wide * 2)
    np.testing.assert_allclose(found[PLAIN][2], (wide[::-1] + 1) * 3, rtol=1e-6)


async def test_parallel_loops_come_right_time_after_time(worker: WorkerHandle, models: Path) -> None:
    """Threads that are late for one round must not take tasks of the next."""
    measurement = await measure(
        worker, models / "parallel.so", spec("fill", 2**16), spec("output", 2**16),
        evaluator=measurement_pb2.Evaluator(number=3000, repeat=2),
    )  # fmt: skip
    wide = np.arange(2**16, dtype=np.float32)

    assert measurement.error_message == ""
    np.testing.assert_array_equal(
        only_output(await call(worker, models / "parallel.so", tensor(wide), spec("output", 2**16))), wide * 2
    )


@pytest.mark.measures
async def test_times_match_those_of_tvms_evaluator(models: Path, tmp_path: Path) -> None:
    """The same kernel takes about the same time; here a factor of three covers a busy machine."""
    args = (spec("fill", 64, 64), spec("fill", 64, 64), spec("output", 64, 64))
    best = {}
    for runtime in (PLAIN, TVM):
        async with worker_of(tmp_path, runtime) as worker:
            evaluator = measurement_pb2.Evaluator(number=3, repeat=7, min_repeat_ms=5)
            measurement = await measure(worker, models / "matmul.so", *args, evaluator=evaluator)
            assert len(measurement.run_secs) == 7
            best[runtime] = min(measurement.run_secs)

    assert best[TVM] / 3 < best[PLAIN] < best[TVM] * 3


async def test_a_minimum_time_is_kept(worker: WorkerHandle, models: Path) -> None:
    """The number of runs grows until a repeat lasts as long, and rests are rests."""
    evaluator = measurement_pb2.Evaluator(repeat=3, min_repeat_ms=20, cooldown_interval_ms=50)
    measurement = await measure(worker, models / "exp.so", spec("fill", 8), spec("output", 8), evaluator=evaluator)

    assert measurement.clocks.run.ToTimedelta().total_seconds() >= 3 * 0.02 + 2 * 0.05


async def test_a_cold_cache_is_made_before_each_run(worker: WorkerHandle, models: Path) -> None:
    """Flushes take measurable time before each run, and the provenance names them."""
    cold = await measure(
        worker,
        models / "exp.so",
        spec("fill", 8),
        spec("output", 8),
        evaluator=measurement_pb2.Evaluator(repeat=15, cache_flush_bytes=64 * 2**20),
    )

    terabyte_per_sec = 1e12
    assert cold.provenance.flushed == "cpu"
    assert len(cold.run_secs) == 15
    assert cold.clocks.run.ToTimedelta().total_seconds() > 15 * 64 * 2**20 / terabyte_per_sec


@pytest.mark.parametrize(
    ("name", "args", "kind", "message"),
    [
        ("matmul.so", (spec("fill", 8, 8),) * 3, "BAD_ARGUMENTS", "main"),
        ("matmul.so", (spec("fill", 64, 64),), "BAD_ARGUMENTS", "main"),
        ("exp.so", (spec("fill", 8, dtype="int8"), spec("output", 8)), "BAD_ARGUMENTS", "float32"),
        ("exp.so", (spec("fill", 8, dtype="string"), spec("output", 8)), "BAD_ARGUMENTS", "not a tensor type"),
        ("exp.so", (spec("output", 2**40), spec("output", 8)), "OUT_OF_MEMORY", "argument 0"),
        ("packed.so", (spec("fill", 8), spec("output", 8)), "RUN_FAILED", "Cannot find function fabric.double"),
        ("nowhere.so", (), "LOAD_FAILED", "cannot load"),
    ],
)
async def test_errors_keep_the_message_of_the_compiled_code(
    worker: WorkerHandle, models: Path, name: str, args: tuple[Any, ...], kind: str, message: str
) -> None:
    """Errors keep the message of the compiled code, if it has one; the worker goes on."""
    response = await call(worker, models / name, *args)

    assert measurement_pb2.ErrorKind.Name(response.error) == f"ERROR_KIND_{kind}"
    assert message in response.error_message
    assert only_output(await call(worker, models / "exp.so", spec("fill", 8), spec("output", 8))).shape == (8,)


async def test_a_relax_executable_is_refused_with_the_reason(worker: WorkerHandle, models: Path) -> None:
    """It would need the virtual machine of TVM's runtime."""
    measurement = await measure(worker, models / "exp.so", module_kind=measurement_pb2.MODULE_KIND_RELAX_VM)

    assert measurement.error == measurement_pb2.ERROR_KIND_LOAD_FAILED
    assert "Relax VM executable needs TVM's runtime" in measurement.error_message


def test_artifacts_call_registered_functions(models: Path) -> None:
    """Functions are found by name and take addresses; their exceptions become failures of the candidate."""
    code = f"""
import ctypes
from device_agents.runtimes.plain.runtime import PlainRuntime
from device_agents.runtimes.contract import CandidateFailed
from fleet.domain.measuring import Call, TensorSpec

runtime = PlainRuntime()
def double(source, target, count):
    if count != 8 or broken:
        raise ValueError("the fabric is on fire")
    values = (ctypes.c_float * count).from_address(source)
    (ctypes.c_float * count).from_address(target)[:] = [2 * value for value in values]
runtime.register("fabric.double", double)
args = (TensorSpec((8,), "float32"), TensorSpec((8,), "float32", is_output=True))
request = Call(artifact_digest="d", args=args)
broken = False
output = runtime.call(request, {str(models / "packed.so")!r})[0].content
broken = True
try:
    runtime.call(request, {str(models / "packed.so")!r})
except CandidateFailed as failure:
    print([value for value in (ctypes.c_float * 8).from_buffer_copy(output)][:1] != [0.0], failure)
"""

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)

    assert done.stdout.strip() == "True RuntimeError: the fabric is on fire"
