"""`fleet build` and `fleet targets` as commands."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cross.targets.boards import load_boards
from cross.targets.target import parse_target
from device_agents.driver import NoStrays
from device_agents.drivers.cpu import CpuDriver
from fleet.artifacts.artifact import Artifact, elf_machine
from fleet.base.scratch import remove_abandoned
from fleet.cli.build import BuildOrder, choose_operator, run_build
from fleet.cli.main import app
from fleet.domain.keys import canonical_target
from fleet.domain.scope import RecordScope, ScopeFilter
from fleet.domain.tvm_versions import tvm_version
from fleet.errors import ConfigError
from fleet.export.compiling import compile as compile_model
from fleet.export.targets import target_of
from fleet.library import Library, Record, RecordKind, StoredWorkload
from fleet.models.model import bundled_model
from fleet.packs.making import PackOrder, make_pack
from fleet.packs.shelf import Shelf
from fleet.testing import eventually_sync
from tests.packs import ANYONE
from tests.system.stored_records import store_record

slow = pytest.mark.slow


@pytest.fixture(autouse=True)
def own_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty library of this test."""
    monkeypatch.setenv("FLEET_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.delenv("FLEET_LIBRARY", raising=False)


def fleet(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fleet.cli.main", *words], capture_output=True, text=True, timeout=120, check=False
    )


@slow
@pytest.mark.parametrize(
    ("board", "machine"), [("rpi4-64", "aarch64"), ("pynq-z2", "armv7l"), ("adreno-6xx", "aarch64"), ("sm_90", None)]
)
def test_a_named_workload_is_built_for_a_board(board: str, machine: str | None, tmp_path: Path) -> None:
    """The library is at the path of -o, with its side file and no other files."""
    output = tmp_path / "matmul.so"
    done = fleet("build", "matmul-32", "--target", board, "-o", str(output), "--json")

    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("reading matmul-32\n")
    assert "\ncompiling matmul" in done.stderr
    said = json.loads(done.stdout)
    artifact = Artifact.of_file(output)
    assert said["digest"] == artifact.digest
    assert said["workload"] == "matmul_32"
    assert json.loads(artifact.target_json) == load_boards()[board].target
    assert [spec.shape for spec in artifact.args] == [(32, 32)] * 3
    assert artifact.linker
    if machine:
        assert elf_machine(output.read_bytes()[:20]) == machine
    assert {"matmul.so", "matmul.so.json", "data"} >= {path.name for path in tmp_path.iterdir()}


@slow
def test_an_operator_of_a_model_takes_the_best_schedule_of_the_library(tmp_path: Path) -> None:
    """The fastest checked record of the target wins; --untuned leaves it alone. The same record of a pack gives equal
    bytes without an own record, and --checked leaves it out.
    """
    from fleet.workloads.programs import matmul
    from fleet.workloads.traces import trace_json
    from fleet.workloads.workload import module_of

    workload, target = matmul(32), '{"kind": "llvm", "num-cores": 2}'
    from tvm.s_tir import Schedule

    schedule = Schedule(module_of(workload.mod_json))
    loops = schedule.get_loops(schedule.get_sblock("C"))
    schedule.parallel(loops[0])
    with Library.open(tmp_path / "records.sqlite") as library:
        library.add_workload(
            StoredWorkload(shash=workload.shash, name=workload.name, mod_json=workload.mod_json, flop=workload.flop)
        )
        library.add_record(
            Record(
                workload=workload.shash,
                scope=RecordScope(
                    target_json=canonical_target(target), device_model="it", tvm_version=tvm_version() or ""
                ),
                trace_json=trace_json(schedule),
                run_secs=(1e-6,),
                checked=True,
            )
        )

    def order(**more: object) -> BuildOrder:
        values: dict[str, object] = {"workload": "matmul-32", "target": parse_target(target), "shapes": {}, **more}
        return BuildOrder(output=tmp_path / "it.so", library=str(tmp_path / "records.sqlite"), **values)  # type: ignore[arg-type]

    tuned = run_build(order())
    assert tuned.schedule == "library"
    untuned = run_build(order(is_untuned=True))
    assert untuned.schedule == "static"
    assert tuned.artifact.digest != untuned.artifact.digest
    elsewhere = '{"kind": "llvm", "num-cores": 7}'
    assert run_build(order(target=parse_target(elsewhere))).schedule == "static"
    assert run_build(order(target=parse_target(elsewhere), within=ScopeFilter(device_model="it"))).schedule == "library"

    with Library.open(tmp_path / "records.sqlite") as library:
        make_pack(library, PackOrder(scopes=library.scopes(), title="it"), tmp_path / "it.pack")
    Shelf().add(tmp_path / "it.pack", ANYONE)
    (tmp_path / "records.sqlite").rename(tmp_path / "theirs.sqlite")
    packed = run_build(order())
    assert (packed.schedule, packed.artifact.digest) == ("pack", tuned.artifact.digest)
    assert run_build(order(is_checked=True)).schedule == "static"


@slow
def test_a_model_is_built_as_it_is_exported(two_heads: Path, tmp_path: Path) -> None:
    """The build has no schedule slower than the static one, and none of another TVM, which may not even fit."""
    library_path = tmp_path / "records.sqlite"
    operator = f"{two_heads}:{store_record(two_heads, library_path)}"

    def built(workload: str = str(two_heads)) -> str:
        output, library = tmp_path / "it.so", str(library_path)
        return run_build(
            BuildOrder(workload=workload, target=target_of("host"), output=output, shapes=(), library=library)
        ).artifact.digest

    def exported() -> str:
        manifest = compile_model(two_heads, library=library_path).manifest
        return f"sha256:{manifest.files[manifest.library].sha256}"

    tuned, tuned_operator = built(), built(operator)
    assert tuned == exported()
    with Library.open(library_path) as library:
        [record] = library.best(library.find_workloads()[0].shash, checked_only=True)
        library.add_record(
            Record(workload=record.workload, scope=record.scope, run_secs=(1e-7,), kind=RecordKind.BASELINE)
        )
        older = replace(record.scope, tvm_version="0.26.0")
        library.add_record(
            Record(workload=record.workload, scope=older, trace_json="[[9],[]]", run_secs=(1e-8,), checked=True)
        )
    assert built() == exported() != tuned
    assert built(operator) != tuned_operator


@slow
def test_an_operator_of_a_model_is_built_by_its_pattern(tmp_path: Path) -> None:
    """It can be built for another machine than this one, too."""
    output = tmp_path / "conv.so"
    workload = f"{bundled_model('squeezenet')}:fused_conv2d1_*"
    done = CliRunner().invoke(app, ["build", workload, "--target", "rpi3-32", "-o", str(output)])
    assert done.exit_code == 0, done.output
    assert elf_machine(output.read_bytes()[:20]) == "armv7l"


@slow
def test_the_facts_of_an_operator_match_those_of_its_packed_weights(two_heads: Path, tmp_path: Path) -> None:
    """Its schedule takes weights in tiles: arguments with the model's own shapes would be read past their end."""
    order = BuildOrder(workload=f"{two_heads}:*conv2d*", target=target_of("host"), output=tmp_path / "it.so", shapes={})

    built = run_build(order)

    weights = built.artifact.args[1].shape
    assert len(weights) == 5
    assert math.prod(weights) >= 4 * 3 * 3 * 3
    assert built.artifact == Artifact.of_file(tmp_path / "it.so")


def test_a_pattern_has_to_fit_one_operator() -> None:
    """Several are listed; for none, the nearest is named."""
    names = ["fused_conv2d_relu", "fused_conv2d1_relu", "max_pool2d"]
    assert choose_operator(names, "max*", "m.onnx") == "max_pool2d"
    with pytest.raises(ConfigError, match=r"2 operators of m\.onnx: fused_conv2d_relu, fused_conv2d1_relu; name one"):
        choose_operator(names, "fused*", "m.onnx")
    with pytest.raises(ConfigError, match="has no operator 'max_pool'; did you mean 'max_pool2d'"):
        choose_operator(names, "max_pool", "m.onnx")


async def test_host_is_the_target_that_this_machines_agent_tells() -> None:
    """`fleet build` thus finds the records of `fleet tune` on this machine."""
    driver = CpuDriver.from_config({}, where="here", host_name="here")[0]
    await driver.open(NoStrays())
    inventory = driver.inventory()
    await driver.close()
    assert dict(target_of("host").options) == json.loads(inventory.target_json)


@slow
def test_a_module_file_is_built(tmp_path: Path) -> None:
    """A file of tvm.ir.save_json is built, and any other is refused."""
    from fleet.workloads.programs import matmul

    module = tmp_path / "mine.json"
    module.write_text(matmul(16).mod_json)
    done = CliRunner().invoke(app, ["build", str(module), "-o", str(tmp_path / "mine.so")])
    assert done.exit_code == 0, done.output

    module.write_text('{"no": "module"}')
    refused = CliRunner().invoke(app, ["build", str(module), "-o", str(tmp_path / "mine.so")])
    assert refused.exit_code == 2
    assert "is not a module as tvm.ir.save_json writes it" in refused.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["matmul-8", "--target", "rpi4"], "unknown board 'rpi4'; did you mean 'rpi4-64'?"),
        (["matmul-8", "--target", '{"kind": "llvm", "mcpu": "x86-64-v7"}'], "x86-64-v7"),
        (["matmul", "--target", "host"], "unknown workload 'matmul'"),
        (["matmul-8", "--target", '{"kind": "cuda", "arch": "sm_20"}'], "compiles CUDA code for sm_20"),
        (["matmul-8", "--linker", "no-such-ld"], "'no-such-ld' (from --linker) is not on PATH"),
        (["matmul-8", "-o", "no/such/folder/it.so"], "there is no folder"),
        (["gone.json"], "cannot read gone.json"),
    ],
)
def test_bad_input_is_one_line(words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Bad input ends with exit code 2 and a remedy."""
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["build", *words])
    assert done.exit_code == 2, done.output
    assert said in done.output
    assert not list(tmp_path.glob("*.so"))


def test_targets_are_listed_and_shown() -> None:
    """All targets are listed with their differences; one is shown in full, as a table and as JSON."""
    listed = CliRunner().invoke(app, ["targets", "--json"])
    assert [board["name"] for board in json.loads(listed.stdout)["targets"]] == list(load_boards())

    table = CliRunner().invoke(app, ["targets"], env={"COLUMNS": "120"})
    assert "rpi4-64" in table.stdout
    assert "llvm cortex-a72" in table.stdout

    one = CliRunner().invoke(app, ["targets", "show", "jetson-orin", "--json"])
    assert json.loads(one.stdout)["target"] == load_boards()["jetson-orin"].target
    shown = CliRunner().invoke(app, ["targets", "show", "jetson-orin"], env={"COLUMNS": "200"})
    assert "nvidia,tegra234" in shown.stdout
    assert "https://" in shown.stdout
    wrong = CliRunner().invoke(app, ["targets", "show", "jetson-orion"])
    assert wrong.exit_code == 2
    assert "did you mean 'jetson-orin'" in wrong.output


@slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_an_ended_build_leaves_no_files(number: signal.Signals, tmp_path: Path) -> None:
    """The output's folder is clean; after kill -9, the next command removes the temporary folder."""
    temporary, output = tmp_path / "tmp", tmp_path / "out"
    temporary.mkdir()
    output.mkdir()
    linker = tmp_path / "linker"
    linker.write_text(f"#!/bin/sh\ntouch {tmp_path}/linking\nexec sleep 60\n")
    linker.chmod(0o755)
    words = ["build", "matmul-16", "-o", str(output / "m.so"), "--linker", str(linker)]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    process = subprocess.Popen([sys.executable, "-m", "fleet", *words], env=environment, start_new_session=True)
    eventually_sync((tmp_path / "linking").exists, 60.0)

    process.send_signal(number)

    assert process.wait(60) == (-9 if number == signal.SIGKILL else 130 if number == signal.SIGINT else 128 + number)
    assert list(output.iterdir()) == []
    if number == signal.SIGKILL:
        assert [path.name[:12] for path in temporary.iterdir()] == ["fleet-build-"]
        remove_abandoned(temporary)
    assert list(temporary.iterdir()) == []


@slow
def test_unchecked_schedules_are_reported_and_can_be_excluded(tmp_path: Path) -> None:
    """Outputs of imported records were never compared; before, a build used them without a message."""
    from tvm.s_tir import Schedule

    from fleet.workloads.programs import matmul
    from fleet.workloads.traces import trace_json
    from fleet.workloads.workload import module_of

    workload, target = matmul(32), '{"kind": "llvm", "num-cores": 2}'
    schedule = Schedule(module_of(workload.mod_json))
    schedule.parallel(schedule.get_loops(schedule.get_sblock("C"))[0])
    scope = RecordScope(target_json=canonical_target(target), device_model="theirs", tvm_version=tvm_version() or "")
    path = tmp_path / "library.sqlite"
    with Library.open(path) as library:
        library.add_workload(StoredWorkload(shash=workload.shash, name=workload.name, mod_json=workload.mod_json))
        trace = trace_json(schedule)
        library.add_record(Record(workload=workload.shash, scope=scope, trace_json=trace, run_secs=(1e-6,)))
    words = ("build", "matmul-32", "--target", target, "--library", str(path), "-o", str(tmp_path / "a.so"))

    taken, refused = fleet(*words), fleet(*words, "--checked", "--json")

    assert (taken.returncode, refused.returncode) == (0, 0)
    assert "1 schedule was never checked against the unscheduled program; --checked leaves such out" in taken.stderr
    said = json.loads(refused.stdout)
    assert (said["schedule"], said["unchecked_schedules"]) == ("static", 0)
    assert json.loads(fleet(*words, "--json").stdout)["unchecked_schedules"] == 1
