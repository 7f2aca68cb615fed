"""`fleet time` and `fleet run`: one step alone, on a real artifact and real processes."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cross.compile.library import build
from cross.targets.target import host_target
from fleet.workloads.programs import matmul
from tests.system.fleet_processes import FLEET, Fleet, run_fleet, running_fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

SIZE = 64


@pytest.fixture(scope="module")
def matmul_so(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import tvm

    workload = matmul(SIZE)
    artifact = build(
        tvm.ir.load_json(workload.mod_json), host_target(), tmp_path_factory.mktemp("built"), args=workload.args
    )
    return artifact.path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("fleet"), "devices: [{driver: cpu}]") as running:
        yield running


def fleet(*words: str | Path, tracker: str | None = None) -> subprocess.CompletedProcess[str]:
    return run_fleet(*(("--tracker", tracker) if tracker else ()), *map(str, words))


def test_time_starts_an_agent_if_no_tracker_runs(matmul_so: Path) -> None:
    """The side file has the arguments, `--on` the driver; times and provenance are printed as JSON."""
    done = fleet("time", matmul_so, "--on", "kind=cpu", "--repeat", "3", "--min-repeat-ms", "5", "--json")

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found["run_secs"]) == 3
    assert 0 < found["min_sec"] <= found["median_sec"] <= found["max_sec"]
    assert found["min_sec"] < 0.1
    assert found["args"] == [f"float32[{SIZE},{SIZE}]"] * 3
    assert found["provenance"]["worker_pid"] > 0
    assert found["device"].startswith("devices/")


def test_run_computes_the_same_as_numpy(matmul_so: Path, served: Fleet, tmp_path: Path) -> None:
    """Inputs from files go to the device, outputs come back as a file."""
    rng = np.random.default_rng(1)
    left, right = rng.uniform(-1, 1, (2, SIZE, SIZE)).astype("float32")
    np.save(tmp_path / "left.npy", left)
    np.save(tmp_path / "right.npy", right)
    files = [word for name in ("left", "right") for word in ("--input", tmp_path / f"{name}.npy")]

    done = fleet("run", matmul_so, "--on", "cpu", *files, "--output", tmp_path / "out.npz", tracker=served.address)

    assert done.returncode == 0, done.stderr
    assert "out0" in done.stdout
    np.testing.assert_allclose(np.load(tmp_path / "out.npz")["out0"], left @ right, rtol=1e-4, atol=1e-4)


def test_random_inputs_are_the_same_for_the_same_seed(matmul_so: Path, served: Fleet, tmp_path: Path) -> None:
    """An artifact without a side file runs on arguments that are written down, and repeats bit for bit."""
    bare = tmp_path / "bare.so"
    shutil.copy(matmul_so, bare)
    spec = f"float32[{SIZE},{SIZE}]"
    words = ("run", bare, "--on", "cpu", "--args", f"{spec} {spec} {spec}:out", "--json")

    first, again, other = (fleet(*words, "--random", seed, tracker=served.address) for seed in ("1", "1", "2"))

    digests = [json.loads(done.stdout)["outputs"][0]["sha256"] for done in (first, again, other)]
    assert digests[0] == digests[1] != digests[2]


def test_under_acquire_the_held_device_is_used(matmul_so: Path, served: Fleet) -> None:
    """`fleet acquire cpu -- fleet time ...` does not queue behind itself."""
    done = fleet("acquire", "cpu", "--", FLEET, "time", matmul_so, "--repeat", "2", tracker=served.address)

    assert done.returncode == 0, done.stderr
    assert "median" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["time", "missing.so"], "missing.so"),
        (["time", "{so}", "--args", "float32[3,3]", "--args", "float32[3,3]"], "expected float32[64,64]"),
        (["time", "{so}", "--args", "float32(3)"], "write a tensor like"),
        (["run", "{so}"], "--random"),
        (["run", "{so}", "--input", "{small}"], "expected float32[64,64], the file has float64[2]"),
        (["run", "{so}", "--input", "{so}"], "is not a .npy file"),
        (["time", "{bare}"], "--args"),
        (["time", "{broken}"], "side file"),
        (["time", "{foreign}", "--args", "float32[1]"], "aarch64"),
        (["time", "{so}", "--function", "nothing", "--args", "float32[1]"], "no function 'nothing'"),
    ],
)
def test_invalid_input_is_a_one_line_error(
    words: list[str], said: str, matmul_so: Path, served: Fleet, tmp_path: Path
) -> None:
    """Missing files, wrong shapes and the wrong architecture: an error that names them, no traceback."""
    np.save(tmp_path / "small.npy", np.zeros(2))
    for name in ("bare", "broken", "foreign"):
        shutil.copy(matmul_so, tmp_path / f"{name}.so")
    (tmp_path / "broken.so.json").write_text('{"args": 3}')
    content = bytearray(matmul_so.read_bytes())
    content[18:20] = (183).to_bytes(2, "little")
    (tmp_path / "foreign.so").write_bytes(content)
    places = {name: tmp_path / f"{name}.so" for name in ("bare", "broken", "foreign")}
    places |= {"so": matmul_so, "small": tmp_path / "small.npy"}

    done = fleet(*(word.format(**places) for word in words), tracker=served.address)

    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert "Traceback" not in done.stderr
