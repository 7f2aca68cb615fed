"""A real NVIDIA GPU: real NVML, real kernels through the worker. Skipped on other machines."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cross.compile.library import build
from device_agents.drivers.cuda.driver import CudaDriver
from device_agents.drivers.cuda.nvml import Nvml
from fleet.workloads.default_schedule import default_schedule
from fleet.workloads.programs import matmul
from tests.system.fleet_processes import Fleet, run_fleet, running_fleet

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not any(Path("/proc/driver/nvidia/gpus").glob("*")), reason="this machine has no NVIDIA GPU"),
]


def wild_program() -> Any:
    """Return a program that reads four terabytes behind its argument."""
    import tvm
    from tvm import te

    source = te.placeholder((256,), name="source")
    far = tvm.tirx.const(1 << 40, "int64")
    return tvm.IRModule(
        {"main": te.create_prim_func([source, te.compute((256,), lambda i: source[i + far], name="out")])}
    )


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("fleet"), "devices: [{driver: cuda}]") as running:
        yield running


@pytest.fixture(scope="module")
def matmul_so(served: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    import tvm

    target_json = served.snapshot()["devices"][0]["inventory"]["target_json"]  # type: ignore[index]
    workload = matmul(256)
    mod = default_schedule(tvm.ir.load_json(workload.mod_json), target_json)
    return build(mod, target_json, tmp_path_factory.mktemp("built"), args=workload.args).path


def test_nvml_makes_no_cuda_context() -> None:
    """NVML only reads: the GPU does not list this process as a compute process, so the agent may use it."""
    nvml = Nvml()
    gpus = nvml.gpus()
    readings = [nvml.read(gpu.uuid) for gpu in gpus]
    complaints = [nvml.complaint(gpu.uuid) for gpu in gpus]
    computing = [pid for gpu in gpus for pid in nvml.compute_pids(gpu.uuid)]
    nvml.close()

    assert gpus
    assert all(reading.temp_c for reading in readings)
    assert not any(complaints)
    assert os.getpid() not in computing
    assert CudaDriver.find()


def test_a_kernel_runs_and_is_timed(served: Fleet, matmul_so: Path, tmp_path: Path) -> None:
    """numpy agrees, times are the GPU's own, and its readings are with them."""
    left, right = np.random.default_rng(1).uniform(-1, 1, (2, 256, 256)).astype("float32")
    np.save(tmp_path / "left.npy", left)
    np.save(tmp_path / "right.npy", right)
    where = ("--tracker", served.address)

    ran = run_fleet(
        *(*where, "run", str(matmul_so), "--on", "kind=cuda", "--output", str(tmp_path / "out.npz")),
        *("--input", str(tmp_path / "left.npy"), "--input", str(tmp_path / "right.npy")),
    )
    timed = run_fleet(*where, "time", str(matmul_so), "--on", "kind=cuda", "--flush-bytes", "1", "--json")

    assert ran.returncode == 0, ran.stderr
    np.testing.assert_allclose(np.load(tmp_path / "out.npz")["out0"], left @ right, rtol=1e-3, atol=1e-3)
    assert timed.returncode == 0, timed.stderr
    found = json.loads(timed.stdout)
    assert found["time_source"] == "event"
    assert 0 < found["median_sec"] < 0.1
    assert found["provenance"]["flushed"] == "l2"
    assert found["provenance"]["after"]["temp_c"] > 0
    assert not found["provenance"]["after"].get("foreign_processes")


def test_the_candidate_after_a_wild_read_is_clean(served: Fleet, matmul_so: Path, tmp_path: Path) -> None:
    """An illegal address breaks the CUDA context for good; only its worker ends with it."""
    target_json = served.snapshot()["devices"][0]["inventory"]["target_json"]  # type: ignore[index]
    wild = build(default_schedule(wild_program(), target_json), target_json, tmp_path)
    where = ("--tracker", served.address)

    broken = run_fleet(*where, "time", str(wild.path), "--on", "kind=cuda", "--args", "float32[256] float32[256]:out")
    fine = run_fleet(*where, "time", str(matmul_so), "--on", "kind=cuda", "--repeat", "2")

    assert broken.returncode == 1
    assert "illegal memory access" in broken.stderr or "ILLEGAL_ADDRESS" in broken.stderr
    assert fine.returncode == 0, fine.stderr


def test_a_convolution_is_tuned(tmp_path: Path) -> None:
    """Tuning goes from an ONNX file to checked records, on the GPU of this machine."""
    from benchmarks.tune_conv2d import RESNET18, write_model

    model = write_model(tmp_path / "conv.onnx", RESNET18[10:])

    done = run_fleet(
        *("tune", str(model), "--on", "kind=cuda", "--trials", "16", "--no-model", "--json"),
        *("--library", str(tmp_path / "library.sqlite")),
        timeout_sec=500,
    )

    assert done.returncode == 0, done.stderr
    (workload,) = [found for found in json.loads(done.stdout)["workloads"] if "conv2d" in found["name"]]
    assert workload["best_sec"] < workload["untuned_sec"]
