"""The README's commands work as they are written there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import readme_runner
from fleet_processes import environment

from cross.build import build
from fleet.workloads.programs import matmul
from fleet.workloads.workload import module_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(580)]


def test_every_command_of_the_readme_runs(tmp_path: Path, two_products: Path) -> None:
    """A new user's first hour: each line is typed as it stands, on a machine whose ports are free."""
    (tmp_path / "model.onnx").write_bytes(two_products.read_bytes())
    artifact = build(module_of(matmul(256).mod_json), '{"kind": "llvm"}', tmp_path)
    (tmp_path / "kernel.so").write_bytes(artifact.path.read_bytes())
    new_network = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--net"]

    done = subprocess.run(
        [*new_network, sys.executable, readme_runner.__file__],
        cwd=tmp_path,
        env={**environment(), "FLEET_DATA_DIR": str(tmp_path / "data"), "FLEET_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout.endswith("README done\n"), done.stdout + done.stderr
    assert len(readme_runner.commands()) >= 12
    assert readme_runner.snippets()
