"""The instruction that sums products of 8-bit integers follows from a target's core and attributes."""

from __future__ import annotations

import json

import pytest

from cross.targets.integer_units import integer_unit
from cross.targets.target import host_target, parse_target


@pytest.mark.parametrize(
    ("target", "name", "widest"),
    [
        ({"mcpu": "x86-64-v4", "mattr": ["+avx512vnni"]}, "vpdpbusd", 16),
        ({"mcpu": "x86-64-v3", "mattr": ["+avxvnni"]}, "vpdpbusd", 8),
        ({"mcpu": "znver5"}, "vpdpbusd", 16),
        ({"mcpu": "x86-64-v4"}, "vpmaddwd", 16),
        ({"mcpu": "x86-64-v3"}, "vpmaddwd", 8),
        ({"mcpu": "cortex-a76", "mtriple": "aarch64-linux-gnu"}, "sdot", 4),
    ],
)
def test_the_instruction_follows_from_the_target(target: dict[str, object], name: str, widest: int) -> None:
    """The widest exact instruction is chosen."""
    unit = integer_unit(parse_target(json.dumps({"kind": "llvm", "mtriple": "x86_64-linux-gnu"} | target)))

    assert unit is not None
    assert (name, widest) == (unit.name, max(unit.widths))


@pytest.mark.parametrize(
    "target",
    [
        {"kind": "llvm", "mcpu": "x86-64", "mtriple": "x86_64-linux-gnu"},
        {"kind": "llvm", "mcpu": "cortex-a72", "mtriple": "aarch64-linux-gnu"},
        {"kind": "cuda", "arch": "sm_86"},
    ],
)
def test_others_have_none(target: dict[str, object]) -> None:
    """Float32 arithmetic is as fast on these targets."""
    assert integer_unit(parse_target(json.dumps(target))) is None


def test_vnni_of_the_host_is_a_target_attribute(monkeypatch: pytest.MonkeyPatch) -> None:
    """No level has VNNI, so it is an attribute of the target."""
    level = "avx2 fma bmi2 avx512f avx512bw avx512cd avx512dq avx512vl"
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("cross.targets.target._cpu_flags", lambda: set(f"{level} avx512_vnni".split()))

    assert host_target().options["mattr"] == ["+avx512vnni"]
