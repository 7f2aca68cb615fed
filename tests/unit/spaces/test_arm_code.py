"""Static schedules for ARM, checked in the compiled assembly, which needs no board."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from cross.compile.lowering import tir_pipeline
from cross.targets.target import make_target, parse_target
from fleet.graph.marking import ATTRIBUTE as CONSTANTS
from fleet.graph.winograd_algorithm import OUTPUTS
from fleet.spaces.space import finished, static_schedule
from tests.unit.spaces.test_winograd_schedules import convolution

if TYPE_CHECKING:
    from tvm.ir import IRModule

pytestmark = pytest.mark.slow

AARCH64 = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72", "num-cores": 4}
ARMV7 = {
    "kind": "llvm",
    "mtriple": "armv7l-linux-gnueabihf",
    "mcpu": "cortex-a9",
    "mattr": ["+neon"],
    "mfloat-abi": "hard",
    "num-cores": 2,
}


def pointwise() -> IRModule:
    """Return a 1x1 convolution with an activation."""
    import tvm
    from tvm import te, topi

    data, weights = te.placeholder((1, 12, 12, 32), name="data"), te.placeholder((1, 1, 32, 32), name="weights")
    result = topi.nn.relu(topi.nn.conv(data, weights, 1, 0, 1, 1, "NHWC", "HWIO"))
    return tvm.IRModule({"main": te.create_prim_func([data, weights, result]).with_attr(CONSTANTS, [1])})


def assembly(mod: IRModule, options: dict[str, object]) -> str:
    """Return the assembly of a function's static schedule."""
    import tvm

    target = parse_target(json.dumps(options))
    schedule = static_schedule(mod, target)
    assert schedule is not None
    library: Any = tvm.compile(
        finished(schedule.mod, target),
        target=make_target(target),
        tir_pipeline=tir_pipeline(target),
    ).mod
    return str(library.inspect_source("asm"))


def loops_with(instruction: str, text: str) -> list[list[str]]:
    """Return the blocks with at least six lines in which a pattern is found."""
    borders = re.compile(r"^\.L\w+:|^\s+b\.?[a-z]{2}\s.*$", re.MULTILINE)
    blocks = [block.splitlines() for block in borders.split(text)]
    return [block for block in blocks if sum(bool(re.search(instruction, line)) for line in block) >= 6]


def test_64_bit_arm_multiplies_by_lanes_without_spills() -> None:
    """A number of the data needs no register of its own, and the tile fits the 32 registers."""
    loops = loops_with("fmla", assembly(pointwise(), AARCH64))

    assert loops
    for loop in loops:
        products = [line for line in loop if "fmla" in line]
        assert sum(bool(re.search(r"\.s\[\d\]", line)) for line in products) >= len(products) * 2 // 3
        assert not [line for line in loop if "[sp" in line]


@pytest.mark.parametrize("outputs", OUTPUTS)
def test_64_bit_arm_multiplies_winograds_products_by_lanes(outputs: int) -> None:
    """They are tiled as any product; the transforms around them compute in vectors, too."""
    text = assembly(convolution(outputs, (12, 12), 32, 32), AARCH64)
    loops = loops_with(r"fmla.*\.s\[\d\]", text)

    assert loops
    assert not [line for loop in loops for line in loop if "[sp" in line]
    assert not re.findall(r"^\s+f(?:m?add|n?m?sub|n?mul|max|min)\w*\s+[sd]\d.*$", text, re.MULTILINE)


def test_32_bit_arm_has_room_for_products() -> None:
    """It multiplies and adds apart: tiles of ten sums moved five registers to the stack and back in each step."""
    loops = loops_with(r"vmul\.f32", assembly(pointwise(), ARMV7))

    assert loops
    assert max(sum(line.strip().startswith("vstm") for line in loop) for loop in loops) <= 1
