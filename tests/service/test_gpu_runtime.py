"""The runtime of GPUs in real workers; TVM's CPU stands in for the device where that makes no difference."""

from __future__ import annotations

import contextlib
import gc
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cross.compile.library import build
from cross.targets.target import host_target
from device_agents.driver import WorkerSpec
from device_agents.runtimes.check import explain, tvm_library_folder, why_not
from device_agents.runtimes.contract import CandidateFailed
from device_agents.runtimes.gpu import GpuContext
from device_agents.workers.handle import WorkerHandle
from device_agents.workers.limits import WorkerLimits
from device_agents.workers.pool import WorkerPool
from fleet.base.digests import digest_of
from fleet.domain.measuring import ErrorKind
from fleet.v1 import measurement_pb2, worker_pb2
from fleet.wire.measurements import argument_to_proto
from fleet.workloads.programs import matmul

pytestmark = pytest.mark.slow

RUNTIME = "device_agents.runtimes.gpu:GpuRuntime"
FAILING = """
extern void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message);
int __tvm_ffi_main(void *self, const void *args, int count, void *result) {
    TVMFFIErrorSetRaisedFromCStr("CUDAError", "%s");
    return -1;
}
"""
"""An artifact that fails like TVM's CUDA runtime after a device error."""


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[WorkerPool]:
    pool = WorkerPool(
        tmp_path / "workers", ["device_agents.runtimes.gpu"], WorkerLimits(memory_bytes=1 << 30, disk_bytes=1 << 30)
    )
    await pool.open()
    yield pool
    await pool.close()


async def start(pool: WorkerPool, **settings: Any) -> WorkerHandle:
    spec = WorkerSpec(runtime=RUNTIME, settings={"device_type": "cpu", **settings}, limits_address_space=False)
    return await pool.start_worker(spec, lambda _: None)


async def measure(
    worker: WorkerHandle, path: Path, args: Any = (), **evaluator: Any
) -> tuple[measurement_pb2.Measurement, worker_pb2.WorkerResponse]:
    request = worker_pb2.WorkerRequest(
        measure=measurement_pb2.MeasureRequest(
            candidate_id="c",
            artifact_digest=digest_of(path),
            args=[argument_to_proto(spec) for spec in args],
            evaluator=measurement_pb2.Evaluator(**evaluator),
        ),
        artifact_path=str(path),
    )
    response = await worker.exchange(request.SerializeToString(), 20.0)
    return response.measurement, response


def failing_artifact(folder: Path, message: str) -> Path:
    compiler = shutil.which("cc") or pytest.fail("no C compiler: install the Debian package gcc")
    source, output = folder / "failing.c", folder / "failing.so"
    source.write_text(FAILING % message)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", output, source], check=True)
    return output


async def test_a_flush_is_one_of_the_l2_cache(pool: WorkerPool, tmp_path: Path) -> None:
    """Arguments lie in the device's memory, so a flush of caches flushes the device's."""
    import tvm

    workload = matmul(32)
    artifact = build(tvm.ir.load_json(workload.mod_json), host_target(), tmp_path, args=workload.args)
    worker = await start(pool, l2_bytes=1 << 20)

    plain, _ = await measure(worker, artifact.path, workload.args, repeat=2)
    flushed, _ = await measure(worker, artifact.path, workload.args, repeat=2, cache_flush_bytes=4)
    also, _ = await measure(worker, artifact.path, workload.args, repeat=2, flush_cpu_cache=True)

    assert [found.provenance.flushed for found in (plain, flushed, also)] == ["", "l2", "l2"]
    assert all(len(found.run_secs) == 2 and found.time_source == "event" for found in (plain, flushed, also))


@pytest.mark.parametrize(
    ("message", "kind", "is_last"),
    [
        ("CUDA: an illegal memory access was encountered", "RUN_FAILED", True),
        ("cuLaunchKernel failed with error: CUDA_ERROR_LAUNCH_FAILED", "RUN_FAILED", True),
        ("CUDA: uncorrectable ECC error encountered", "DEVICE_FAULTED", True),
        ("CUDA: out of memory", "OUT_OF_MEMORY", False),
        ("CUDA: too many resources requested for launch", "RUN_FAILED", False),
    ],
)
async def test_an_error_that_stays_ends_the_worker(
    pool: WorkerPool, tmp_path: Path, message: str, kind: str, is_last: bool
) -> None:
    """The worker ends after its answer, so that the failure keeps its message; other errors cost no worker."""
    worker = await start(pool)

    measurement, response = await measure(worker, failing_artifact(tmp_path, message))

    assert measurement_pb2.ErrorKind.Name(measurement.error) == f"ERROR_KIND_{kind}"
    assert message in measurement.error_message
    assert response.is_last is is_last
    assert worker.is_usable is not is_last


@pytest.mark.parametrize(("message", "stays"), [("illegal memory access", True), ("out of memory", False)])
def test_arrays_of_a_broken_context_are_not_freed(message: str, stays: bool) -> None:
    """Freeing them fails in a destructor, which would end the worker before it has answered."""
    context = GpuContext()
    freed = []

    class Array:
        def __del__(self) -> None:
            freed.append(self.__class__.__name__)

    def run() -> None:
        array = Array()
        raise CandidateFailed(ErrorKind.RUN_FAILED, f"{message} with {array}")

    with contextlib.suppress(CandidateFailed), context.explained():
        run()
    gc.collect()

    assert freed == ([] if stays else ["Array"])


async def test_a_runtime_that_does_not_load_is_the_devices_fault(pool: WorkerPool, tmp_path: Path) -> None:
    """No candidate is blamed for a missing driver, and the message names the library."""
    worker = await start(pool, libraries=[str(tmp_path / "libtvm_runtime_cuda.so")])

    measurement, response = await measure(worker, failing_artifact(tmp_path, "not reached"))

    assert measurement.error == measurement_pb2.ERROR_KIND_DEVICE_FAULTED
    assert "libtvm_runtime_cuda.so" in measurement.error_message
    assert response.is_last


async def test_the_wheels_cuda_runtime_fails_cleanly_without_a_driver() -> None:
    """The message names the package to install; the check runs in a process of its own."""
    folder = tvm_library_folder()
    assert folder is not None
    library = folder / "libtvm_runtime_cuda.so"
    if not library.exists():
        pytest.skip("this TVM was built without CUDA")

    reason = await why_not([str(library)], {"libcuda.so": "install the driver", "libcudart": "install CUDA's runtime"})

    if Path("/proc/driver/nvidia/version").exists():  # noqa: ASYNC240 - a test waits for nothing else
        assert "libcuda.so" not in reason
    else:
        assert reason.endswith(("install the driver", "install CUDA's runtime"))


async def test_a_loadable_runtime_has_no_complaint() -> None:
    """TVM's own runtime alone."""
    assert await why_not([], {}) == ""


def test_the_remedy_follows_the_loaders_complaint() -> None:
    """The last line names the library that is missing."""
    said = explain("noise\nlibcuda.so.1: cannot open shared object file", {"libcuda.so": "install the driver"})

    assert said.endswith("libcuda.so.1: cannot open shared object file; install the driver")
