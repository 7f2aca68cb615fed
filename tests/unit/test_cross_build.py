"""Programs become artifacts that compute the same results."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from cross.compile.library import build
from cross.targets.target import Target, host_target, parse_target
from fleet.artifacts.artifact import Artifact, elf_machine
from fleet.domain.measuring import ModuleKind
from fleet.errors import BuildError, ConfigError, DiskFull
from fleet.workloads.programs import matmul
from fleet.workloads.workload import module_of

pytestmark = pytest.mark.slow
TARGET = host_target()


def build_matmul(out_dir: Path, target: Target = TARGET) -> Artifact:
    workload = matmul(16)
    return build(module_of(workload.mod_json), target, out_dir, args=workload.args)


def test_artifact_computes_the_program(tmp_path: Path) -> None:
    """A built matrix product multiplies matrices."""
    import tvm

    artifact = build_matmul(tmp_path)
    left, right = np.random.default_rng(0).standard_normal((2, 16, 16)).astype("float32")
    arrays = [tvm.runtime.tensor(array) for array in (left, right, np.zeros((16, 16), "float32"))]
    tvm.runtime.load_module(str(artifact.path))[artifact.function](*arrays)

    np.testing.assert_allclose(left @ right, arrays[2].numpy(), rtol=1e-5, atol=1e-5)


def test_artifact_is_named_by_its_digest_and_keeps_its_facts(tmp_path: Path) -> None:
    """The file alone tells its digest, arguments, target and TVM version; no other files are left around."""
    artifact = build_matmul(tmp_path)

    assert artifact == Artifact.of_file(artifact.path)
    assert artifact.digest == f"sha256:{artifact.path.stem}"
    assert [spec.is_output for spec in artifact.args] == [False, False, True]
    assert artifact.module_kind == ModuleKind.FUNCTIONS
    assert TARGET.arch == elf_machine(artifact.path.read_bytes()[:20])
    assert {artifact.path.name, f"{artifact.path.name}.json"} == {path.name for path in tmp_path.iterdir()}


def test_same_program_gives_the_same_artifact(tmp_path: Path) -> None:
    """Builds are reproducible, so a device that has the artifact needs no second copy."""
    first, second = build_matmul(tmp_path), build_matmul(tmp_path)

    assert (first.digest, first.object_digest) == (second.digest, second.object_digest)


def test_a_library_that_checks_no_arguments_is_smaller_and_computes_the_same(tmp_path: Path) -> None:
    """Candidates run on the arguments that their artifact names, so their builds leave the comparisons out."""
    import tvm

    workload = matmul(16)
    checked = build_matmul(tmp_path)
    unchecked = build(module_of(workload.mod_json), TARGET, tmp_path, args=workload.args, checks_arguments=False)

    assert unchecked.path.stat().st_size < checked.path.stat().st_size
    assert len({checked.object_digest, unchecked.object_digest, ""}) == 3
    left = right = np.eye(16, dtype="float32")
    arrays = [tvm.runtime.tensor(array) for array in (left, right, np.zeros((16, 16), "float32"))]
    tvm.runtime.load_module(str(unchecked.path))[unchecked.function](*arrays)
    np.testing.assert_array_equal(np.eye(16, dtype="float32"), arrays[2].numpy())


def test_object_of_another_architecture_is_never_linked_for_this_one(tmp_path: Path) -> None:
    """A missing linker is an error with a remedy; a wrong one is an error with the linker's own message."""
    target = json.dumps({"kind": "llvm", "mtriple": "riscv64-linux-gnu"})

    with pytest.raises((ConfigError, BuildError)):
        build(module_of(matmul(16).mod_json), parse_target(target), tmp_path, linker="gcc")

    assert [path for path in tmp_path.iterdir() if path.suffix == ".so"] == []


def test_target_that_tvm_does_not_know_is_a_config_error(tmp_path: Path) -> None:
    """A typing error in a target's attribute is the user's, not the build's."""
    with pytest.raises(ConfigError, match="TVM refuses the target"):
        build_matmul(tmp_path, parse_target('{"kind": "llvm", "mcu": "x86-64-v3"}'))


def test_program_that_does_not_compile_is_a_build_error(tmp_path: Path) -> None:
    """TVM's errors become a BuildError with the reason, without a stack."""
    with pytest.raises(BuildError, match="does not compile") as caught:
        build("no module", TARGET, tmp_path)

    assert len(str(caught.value).splitlines()) < 15


def test_unwritable_folder_is_a_build_error(tmp_path: Path) -> None:
    """An output folder that cannot be made is named."""
    blocker = tmp_path / "file"
    blocker.write_text("in the way")

    with pytest.raises(BuildError, match=f"cannot write artifacts to {blocker}"):
        build_matmul(blocker / "out")


def test_a_folder_that_was_removed_meanwhile_stays_removed(tmp_path: Path) -> None:
    """After kill -9 of a command, its workers end later than the sweep of its folder, and would leave another one."""
    with pytest.raises(BuildError, match="No such file"):
        build_matmul(tmp_path / "swept")

    assert not (tmp_path / "swept").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="a small file system is mounted for it")
def test_a_full_disk_is_reported_before_the_compiler_fails(tmp_path: Path) -> None:
    """The process survives, and no partial file is left."""
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", tmp_path], check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        with pytest.raises(DiskFull, match=f"cannot write artifacts to {tmp_path}: No space left"):
            build_matmul(tmp_path)

        assert list(tmp_path.iterdir()) == []
    finally:
        subprocess.run(["umount", tmp_path], check=True)
