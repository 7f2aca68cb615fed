"""Target descriptions and linkers."""

from __future__ import annotations

import json
import os
import pickle
import platform
from pathlib import Path

import pytest

from cross.compile.toolchains import Linker, find_linker, link
from cross.targets.target import host_target, make_target, parse_target, resolve_target, unscheduled_target
from device_agents.machine.host import read_host
from fleet.errors import BuildError, ConfigError

ARMV7 = {"kind": "llvm", "mtriple": "armv7l-linux-gnueabihf", "mcpu": "cortex-a9", "mfloat-abi": "hard"}


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ({"kind": "llvm", "mtriple": "x86_64-linux-gnu"}, "x86"),
        ({"kind": "llvm", "mtriple": "aarch64-linux-gnu"}, "arm_cpu"),
        ({"kind": "llvm", "mtriple": "aarch64-linux-android"}, "arm_cpu"),
        ({"kind": "llvm", "mtriple": "riscv64-linux-gnu"}, "riscv_cpu"),
        (ARMV7, "arm_cpu"),
        ({"kind": "cuda", "arch": "sm_86"}, "cuda"),
        ({"kind": "opencl"}, ""),
    ],
)
def test_instruction_family_follows_the_target(target: dict[str, object], expected: str) -> None:
    """A target loads the intrinsics of its own family, and a target without any loads none."""
    assert expected == parse_target(json.dumps(target)).intrinsics_family


def test_a_target_may_be_written_as_before_tvm_0_20() -> None:
    """Every tutorial of TVM uses this form: words after the kind, each -key=value."""
    target = resolve_target("llvm -mcpu=skylake -num-cores=4 -mattr=+avx2,+fma")

    assert target.options == {"kind": "llvm", "mcpu": "skylake", "num-cores": 4, "mattr": ["+avx2", "+fma"]}
    with pytest.raises(ConfigError, match=r"'-mcpu' in the target 'llvm -mcpu skylake' is not of the form -key=value"):
        resolve_target("llvm -mcpu skylake")


def test_boards_are_suggested_whatever_the_case() -> None:
    """Users may type RPI4-64."""
    with pytest.raises(ConfigError, match="did you mean 'rpi4-64'"):
        resolve_target("RPI4-64")


def test_architecture_speaks_like_uname() -> None:
    """Architectures are named as in a device's label, for all spellings of the triple."""
    named = {"armv7l-linux-gnueabihf": "armv7l", "arm64-apple": "aarch64", "x86_64-linux-gnu": "x86_64"}
    for llvm_triple, expected in named.items():
        target = {"kind": "llvm", "mtriple": llvm_triple, "mfloat-abi": "hard"}
        assert expected == parse_target(json.dumps(target)).arch
    assert platform.machine() == parse_target('{"kind": "llvm"}').arch


def test_host_of_a_gpu_names_the_triple() -> None:
    """A library linked for a GPU target runs on its host."""
    target = parse_target(json.dumps({"kind": "cuda", "host": {"kind": "llvm", "mtriple": "aarch64-linux-gnu"}}))

    assert (target.triple, target.arch) == ("aarch64-linux-gnu", "aarch64")
    assert not target.is_processor


def test_soft_float_arm_is_refused() -> None:
    """A 32-bit ARM target without hard floats never builds: its code answers with garbage."""
    soft = {key: value for key, value in ARMV7.items() if key != "mfloat-abi"}

    with pytest.raises(ConfigError, match='add "mfloat-abi": "hard"'):
        parse_target(json.dumps(soft))
    assert parse_target(json.dumps(ARMV7)).options == ARMV7


@pytest.mark.parametrize("text", ["llvm -mcpu=x", "[]", "{}", '{"kind": 3}', ""])
def test_an_invalid_target_is_refused(text: str) -> None:
    """The old command-line form and other nonsense get an error that shows the right form."""
    with pytest.raises(ConfigError, match=r'write \{"kind": "llvm"'):
        parse_target(text)


def test_own_target_is_a_processor_with_all_its_cores() -> None:
    """Programs built without an inventory run on this machine."""
    assert (host_target().is_processor, host_target().cores) == (True, os.cpu_count())


def test_a_target_travels_as_its_text_alone() -> None:
    """Tasks carry targets to workers: they pickle small, arrive equal, and keep the spelling that records have."""
    text = json.dumps({"num-cores": 4, "kind": "llvm", "mattr": ["+avx2"]}, indent=1)
    target = parse_target(text)

    arrived = pickle.loads(pickle.dumps(target))  # noqa: S301 - written one call earlier

    assert (arrived, hash(arrived), arrived.json) == (target, hash(target), text)
    assert arrived.options == {"kind": "llvm", "mattr": ["+avx2"], "num-cores": 4}
    assert len(pickle.dumps(target)) < len(text) + 100


@pytest.mark.parametrize(("options", "cores"), [({"num-cores": 4}, 4), ({}, None), ({"num-cores": "4"}, None)])
def test_cores_are_known_only_if_the_target_states_a_number(options: dict[str, object], cores: int | None) -> None:
    """Without a number, schedules assume one core, and builds use this machine's."""
    assert parse_target(json.dumps({"kind": "llvm", **options})).cores == cores


@pytest.mark.parametrize(
    ("options", "level"),
    [({"kind": "llvm"}, 2), ({"kind": "llvm", "opt-level": 1}, 1), ({"kind": "cuda", "arch": "sm_86"}, None)],
)
def test_unscheduled_programs_of_processors_are_compiled_with_less_optimization(
    options: dict[str, object], level: int | None
) -> None:
    """A level in the target stays, and so do targets without LLVM's levels."""
    target = unscheduled_target(parse_target(json.dumps(options)))

    assert target.options.get("opt-level") == level
    assert {**target.options, "opt-level": None} == {**options, "opt-level": None}
    make_target(target)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="levels are those of x86-64")
def test_this_machine_is_the_target_that_its_agent_says() -> None:
    """Else programs that are built here would miss AVX-512, and the records that were made for it."""
    assert host_target().options.get("mcpu", "x86-64") == read_host().mcpu.replace("x86-64-v2", "x86-64")


def test_a_missing_linker_is_reported_with_its_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If PATH has no linker, the error names packages that bring one."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("cross.compile.tools.importlib.util.find_spec", lambda _: None)

    with pytest.raises(ConfigError, match=r"install riscv64-linux-gnu-gcc, lld \(ld.lld\), or .* ziglang"):
        find_linker(parse_target('{"kind": "llvm", "mtriple": "riscv64-linux-gnu"}'))


def test_unknown_explicit_linker_is_a_config_error() -> None:
    """A linker that the user names and that is not there is not replaced in silence."""
    with pytest.raises(ConfigError, match=r"'no-such-linker-here' .from --linker. is not on PATH"):
        find_linker(parse_target('{"kind": "llvm"}'), "no-such-linker-here --fast")


def test_failed_link_carries_command_and_reason(tmp_path: Path) -> None:
    """A link error shows the command and the linker's own last words."""
    broken = tmp_path / "broken.o"
    broken.write_bytes(b"no object")
    linker = find_linker(parse_target('{"kind": "llvm"}'))

    with pytest.raises(BuildError, match=r"-shared.*broken\.o.* exited with \d+") as caught:
        link(linker, [broken], tmp_path / "out.so")

    assert "broken.o" in str(caught.value).split("exited with")[1]
    assert caught.value.kind == "BUILD_FAILED"


def test_linker_that_cannot_run_is_a_build_error(tmp_path: Path) -> None:
    """A linker that vanished after it was found fails the build, not the process."""
    with pytest.raises(BuildError, match="cannot run"):
        link(Linker(name="gone", command=(str(tmp_path / "gone"),)), [], tmp_path / "out.so")


@pytest.mark.parametrize(
    "target",
    [
        {"kind": "llvm", "mcpu": "nope"},
        {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "nope"},
        {"kind": "cuda", "arch": "sm_90", "host": {"kind": "llvm", "mcpu": "nope"}},
    ],
)
def test_a_core_that_is_unknown_is_refused_by_one_line(
    target: dict[str, object], capfd: pytest.CaptureFixture[str]
) -> None:
    """Before, TVM printed a line of its own first, and a GPU's host got code for a generic core without an error."""
    with pytest.raises(ConfigError, match="LLVM knows no core 'nope'"):
        make_target(parse_target(json.dumps(target)))

    assert capfd.readouterr() == ("", "")
