"""What static schedules become on ARM, read off the compiled code: no board is at hand, and none is needed for this."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from cross.build.lowering import tir_pipeline
from cross.targets.target import make_target
from fleet.graph.marking import ATTRIBUTE as CONSTANTS
from fleet.spaces.choose import finished, static_schedule

pytest.importorskip("tvm")
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


def loops_of_products(target: dict[str, object], instruction: str) -> list[list[str]]:
    """Return the blocks of a compiled 1x1 convolution that have at least six multiplications, as instructions."""
    import tvm
    from tvm import te, topi

    target_json = json.dumps(target)
    data, weights = te.placeholder((1, 12, 12, 32), name="data"), te.placeholder((1, 1, 32, 32), name="weights")
    result = topi.nn.relu(topi.nn.conv(data, weights, 1, 0, 1, 1, "NHWC", "HWIO"))
    mod = tvm.IRModule({"main": te.create_prim_func([data, weights, result]).with_attr(CONSTANTS, [1])})
    schedule = static_schedule(mod, target_json)
    assert schedule is not None
    library: Any = tvm.compile(
        finished(schedule.mod, target_json), target=make_target(target_json), tir_pipeline=tir_pipeline(target_json)
    ).mod
    borders = re.compile(r"^\.L\w+:|^\s+b\.?[a-z]{2}\s.*$", re.MULTILINE)
    blocks = [block.splitlines() for block in borders.split(library.inspect_source("asm"))]
    return [block for block in blocks if sum(instruction in line for line in block) >= 6]


def test_64_bit_arm_multiplies_by_lanes_without_spills() -> None:
    """A number of the data needs no register of its own, and the tile fits the 32 registers."""
    loops = loops_of_products(AARCH64, "fmla")

    assert loops
    for loop in loops:
        products = [line for line in loop if "fmla" in line]
        assert sum(bool(re.search(r"\.s\[\d\]", line)) for line in products) >= len(products) * 2 // 3
        assert not [line for line in loop if "[sp" in line]


def test_32_bit_arm_has_room_for_products() -> None:
    """It multiplies and adds apart: tiles of ten sums moved five registers to the stack and back in each step."""
    loops = loops_of_products(ARMV7, "vmul.f32")

    assert loops
    assert max(sum(line.strip().startswith("vstm") for line in loop) for loop in loops) <= 1
