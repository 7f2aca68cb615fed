"""Models exported for GPUs: built for all of them, and run by the loader where OpenCL runs on a processor."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

import fleet.runtime
from cross.targets.target import parse_target
from device_agents.drivers.opencl.devices import find_opencl_devices
from device_agents.drivers.opencl.driver import target_of
from device_agents.machine.host import read_host
from fleet.errors import ArtifactRefused, ConfigError, InvalidRequest
from fleet.export.service import Exported
from tests.programs import here
from tests.service.opencl_presence import require_opencl

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

_RUN = """
import sys, numpy as np, fleet.runtime
model = fleet.runtime.load(sys.argv[1])
inputs = model.stored_arrays(model.manifest.check.inputs)
first, again = model(*inputs), model(*inputs)
assert model.check().is_right, model.check()
assert all(np.array_equal(one, other) for one, other in zip(first, again))
assert not np.shares_memory(first[0], again[0])
"""


def test_a_model_for_opencl_runs_from_python(exporting: Callable[..., Exported]) -> None:
    """Inputs are copied to the device and outputs back; host and kernels are in one library."""
    require_opencl()
    target = target_of(find_opencl_devices()[0], read_host())

    exported = exporting("opencl.fleet", target=parse_target(json.dumps(target)))

    assert exported.manifest.device_type == "opencl"
    subprocess.run([sys.executable, "-c", _RUN, exported.path], check=True, env=here(), timeout=150)


def test_a_model_for_a_gpu_that_is_not_here_is_refused(exporting: Callable[..., Exported]) -> None:
    """It is built for the host that its target names; the loader reports the missing GPU."""
    target = {"kind": "cuda", "arch": "sm_90", "host": {"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 3}}

    exported = exporting("cuda.fleet", target=parse_target(json.dumps(target)))

    manifest = exported.manifest
    assert (manifest.device_type, manifest.machine, manifest.threads) == ("cuda", "x86_64", 3)
    assert "avx2" in manifest.cpu_features
    with pytest.raises((ConfigError, ArtifactRefused), match="cuda"):
        fleet.runtime.load(exported.path)


def test_a_kind_without_a_runtime_is_refused(exporting: Callable[..., Exported]) -> None:
    """The export is refused before anything is compiled."""
    with pytest.raises(InvalidRequest, match="vulkan is none of them"):
        exporting("vulkan.fleet", target=parse_target('{"kind": "vulkan"}'))
