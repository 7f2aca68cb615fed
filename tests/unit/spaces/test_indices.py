"""Programs with indices of 64 bits, as models have them, are split at borders, unless they need these indices."""

from __future__ import annotations

from typing import Any

import pytest

from fleet.spaces.indices import with_narrow_indices
from fleet.spaces.loops import SPLIT_HINT, split_at_borders

pytestmark = pytest.mark.slow


def padding(*, dtype: str = "float32", splits: bool = True) -> Any:
    """Return a copy with a border of zeros, as models count: in 64 bits."""
    import tvm
    from tvm import s_tir, te, topi
    from tvm.tirx import IntImm

    data = te.placeholder([IntImm("int64", 56)], name="data", dtype=dtype)
    mod = tvm.IRModule({"main": te.create_prim_func([data, topi.nn.pad(data, [1])])})
    schedule = s_tir.Schedule(mod)
    if splits:
        split_at_borders(schedule, schedule.get_loops(schedule.get_sblock("PadInput"))[0])
    return schedule.mod


def lowered(mod: Any) -> str:
    """Return a program as TVM has it once loops are split."""
    import tvm
    from tvm import s_tir, tirx

    passes = [
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.LowerOpaqueBlock(),
        tirx.transform.FlattenBuffer(),
        tirx.transform.NarrowDataType(32),
        s_tir.transform.LoopPartition(),
        tirx.transform.StmtSimplify(),
    ]
    return str(tvm.transform.Sequential(passes)(mod).script())


def test_a_loop_is_split_at_its_borders() -> None:
    """The hint survives, though TVM loses it when it narrows indices; conditions in a tile cost half of its speed."""
    assert "if_then_else" not in lowered(with_narrow_indices(padding()))


def test_integers_of_64_bits_stay_whole() -> None:
    """Such integers would not fit, and TVM cannot split a loop over them where a single step is left."""
    mod = with_narrow_indices(padding(dtype="int64"))

    assert "int64" in str(mod.script())
    assert SPLIT_HINT not in str(mod.script())


def test_a_program_without_loops_to_split_stays() -> None:
    """TVM narrows such a program when it lowers it."""
    mod = padding(splits=False)

    assert with_narrow_indices(mod).same_as(mod)
