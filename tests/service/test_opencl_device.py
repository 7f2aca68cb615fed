"""Real OpenCL kernels in real workers, on PoCL: numbers against numpy, device times, and every way to fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from device_agents.drivers.opencl.devices import find_opencl_devices
from device_agents.drivers.opencl.driver import target_of
from device_agents.jail.diagnosis import diagnose
from device_agents.machine.host import read_host
from fleet.v1 import measurement_pb2, session_service_pb2
from tests.programs import run_module
from tests.service.agent_bench import Bench, Holder, kind_of, request_for, serve_bench
from tests.service.opencl_presence import require_opencl
from tests.service.tensors import array_of, spec, tensor

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
DEVICE = "devices/cl"
SIZE = 48
MATMUL_ARGS = [spec("fill", SIZE, SIZE), spec("fill", SIZE, SIZE), spec("output", SIZE, SIZE)]
QUICK = measurement_pb2.Evaluator(number=3, repeat=3, min_repeat_ms=1)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require_opencl()
    target_json = json.dumps(target_of(find_opencl_devices()[0], read_host()))
    folder = tmp_path_factory.mktemp("opencl-models")
    run_module("tests.service.opencl_models", folder, target_json, timeout_sec=150)
    return folder


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    require_opencl()
    async with serve_bench(tmp_path, {"devices": [{"driver": "opencl", "name": "cl"}]}) as served:
        yield served


@pytest.fixture
def holder(bench: Bench) -> Holder:
    return bench.holding(epoch=1, device=DEVICE)


async def product(holder: Holder, library: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Return a library's product of two random matrices, and numpy's."""
    left, right = np.random.default_rng(3).standard_normal((2, SIZE, SIZE)).astype("float32")
    digest = await holder.put(library)
    request = session_service_pb2.CallRequest(
        artifact_digest=digest, args=[tensor(left), tensor(right), spec("output", SIZE, SIZE)]
    )
    response = await holder.call(request)
    assert not response.error, response.error_message
    return array_of(response.outputs[0]), left @ right


@pytest.mark.parametrize("name", ["matmul.so", "tuned.so"])
async def test_schedules_compute_the_same_as_numpy(name: str, holder: Holder, models: Path) -> None:
    """Both TVM's default schedule and one from MetaSchedule compute the right product."""
    found, expected = await product(holder, (models / name).read_bytes())

    np.testing.assert_allclose(expected, found, rtol=1e-4, atol=1e-4)


async def test_times_of_events_are_marked_as_not_proven(holder: Holder, models: Path) -> None:
    """Times of events exclude the launch of a kernel, which every clock outside of the device includes."""
    digest = await holder.put((models / "tuned.so").read_bytes())
    output = session_service_pb2.ProofArgument(spec=MATMUL_ARGS[2].output)
    request = session_service_pb2.ProveRequest(artifact_digest=digest, args=[output], claimed_sec=1e-3)

    proof = await holder.prove(request)

    assert proof.verdict == session_service_pb2.PROOF_VERDICT_IMPOSSIBLE
    assert "events" in proof.message


async def test_it_works_in_the_jail_and_reports_the_jail(bench: Bench, holder: Holder, models: Path) -> None:
    """The driver of the GPU is seen and compiles kernels, though the home of the agent's user is not there."""
    result = await holder.run((models / "tuned.so").read_bytes(), args=MATMUL_ARGS, evaluator=QUICK)

    layers = result.provenance.jail.split()
    assert kind_of(result) == "UNSPECIFIED", result.error_message
    (jail,) = await asyncio.to_thread(diagnose)
    assert set(layers) >= {"no_new_privs", "seccomp", "rlimits"}
    assert jail.seen.startswith(f"workers get {result.provenance.jail}")
    inventory = bench.tracker.hellos[-1].devices[0].inventory
    assert layers == inventory.facts["jail"].split()


async def test_functions_are_timed_by_the_device(holder: Holder, models: Path) -> None:
    """The times are the device's events, below the host's wait, and marked as such."""
    result = await holder.run((models / "tuned.so").read_bytes(), args=MATMUL_ARGS, evaluator=QUICK)

    assert kind_of(result) == "UNSPECIFIED", result.error_message
    assert result.time_source == "event"
    assert len(result.run_secs) == 3
    assert all(0 < sec < result.clocks.run.ToTimedelta().total_seconds() for sec in result.run_secs)


async def test_caches_are_flushed_on_the_device(holder: Holder, models: Path) -> None:
    """Flushing is a copy within the device; asking for the processor's caches is no reason to touch a cl_mem."""
    flushing = measurement_pb2.Evaluator(number=1, repeat=2, cache_flush_bytes=1 << 20)
    flushing_cpu = measurement_pb2.Evaluator(number=1, repeat=2, flush_cpu_cache=True)
    content = (models / "matmul.so").read_bytes()

    results = [await holder.run(content, args=MATMUL_ARGS, evaluator=e) for e in (flushing, flushing_cpu)]

    assert ["UNSPECIFIED"] * 2 == [kind_of(result) for result in results], results[-1].error_message
    assert results[0].provenance.flushed == "l2"
    assert all(len(result.run_secs) == 2 for result in results)


async def test_a_model_runs_in_the_relax_vm(holder: Holder, models: Path) -> None:
    """Its result, host parts included, equals ONNX Runtime's, and the host's clock times the whole model."""
    import onnxruntime

    x = np.random.default_rng(8).standard_normal((1, 3, 8, 8)).astype("float32")
    session = onnxruntime.InferenceSession(str(models / "two_layers.onnx"), providers=["CPUExecutionProvider"])
    digest = await holder.put((models / "model.so").read_bytes())
    kind = measurement_pb2.MODULE_KIND_RELAX_VM

    response = await holder.call(
        session_service_pb2.CallRequest(artifact_digest=digest, args=[tensor(x)], module_kind=kind)
    )
    timing = await holder.measure([request_for(digest, args=[tensor(x)], module_kind=kind, evaluator=QUICK)])

    assert not response.error, response.error_message
    np.testing.assert_allclose(session.run(None, {"x": x})[0], array_of(response.outputs[0]), rtol=1e-3, atol=1e-4)
    assert timing[0].time_source == "wall"
    assert len(timing[0].run_secs) == 3


async def test_a_buffer_too_large_is_out_of_memory(holder: Holder, models: Path) -> None:
    """The failure has its own kind, and the worker goes on."""
    huge = [spec("fill", 1 << 20, 1 << 16), *MATMUL_ARGS[1:]]
    content = (models / "matmul.so").read_bytes()

    failed = await holder.run(content, args=huge, evaluator=QUICK)
    after = await holder.run(content, args=MATMUL_ARGS, evaluator=QUICK)

    assert kind_of(failed) == "OUT_OF_MEMORY", failed.error_message
    assert kind_of(after) == "UNSPECIFIED", after.error_message
    assert failed.provenance.worker_pid == after.provenance.worker_pid


async def test_the_log_of_a_kernel_that_does_not_build_comes_back(holder: Holder, models: Path) -> None:
    """The error contains the driver's log with the missing name, and the next candidate runs."""
    result = await holder.run(
        (models / "undefined.so").read_bytes(), args=[spec("fill", SIZE), spec("output", SIZE)], evaluator=QUICK
    )
    after = await holder.run((models / "matmul.so").read_bytes(), args=MATMUL_ARGS, evaluator=QUICK)

    assert kind_of(result) == "RUN_FAILED"
    assert "fleet_no_such_function" in result.error_message
    assert kind_of(after) == "UNSPECIFIED", after.error_message


async def test_several_devices_compute_each_on_its_own(
    tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two devices of one platform are served under two names, take turns on the cores, and both compute."""
    monkeypatch.setenv("POCL_DEVICES", "pthread basic")
    content = (models / "matmul.so").read_bytes()
    async with serve_bench(tmp_path, {"devices": [{"driver": "opencl", "name": "cl"}]}) as bench:
        names = [device.inventory.labels["model"] for hello in bench.tracker.hellos for device in hello.devices]
        results = [await product(bench.holding(epoch=1, device=f"devices/cl-{index}"), content) for index in range(2)]

    assert ["basic", "pthread"] == sorted(name.partition("-")[0] for name in names)
    for found, expected in results:
        np.testing.assert_allclose(expected, found, rtol=1e-4, atol=1e-4)
