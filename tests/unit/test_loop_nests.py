"""Programs that no schedule reaches are named."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from cross.targets.target import Target, parse_target
from fleet.graph.pipeline import lower
from fleet.models.model import import_model, load_model
from fleet.testing.models import write
from fleet.workloads.applying import apply_schedules
from fleet.workloads.loop_nests import blocks_left
from tests.unit.graph_models import TARGET, function_of, random_array, run

if TYPE_CHECKING:
    from tvm.relax import Expr

    from tests.unit.graph_models import Emit

AVX2 = parse_target('{"kind": "llvm", "mcpu": "x86-64-v3", "mtriple": "x86_64-linux-gnu", "num-cores": 2}')
CORTEX_A72 = parse_target('{"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72", "num-cores": 4}')
CUDA = parse_target('{"kind": "cuda", "arch": "sm_86"}')


def scan(x: Expr, emit: Emit) -> Expr:
    """A running sum, and something that is scheduled."""
    from tvm import relax

    return relax.op.nn.relu(emit(relax.op.cumsum(x, axis=1)))


@pytest.mark.slow
def test_an_unscheduled_operator_is_named() -> None:
    """A scan is left to TVM and reported; without static schedules, or for a GPU, nothing is reported."""
    mod = lower(function_of([(1, 64)], scan), AVX2)

    assert apply_schedules(mod, AVX2, {}).loop_nests == ("cumsum",)
    assert apply_schedules(mod, AVX2, {}, is_static=False).loop_nests == ()
    assert apply_schedules(mod, CUDA, {}).loop_nests == ()


@pytest.mark.slow
def test_rows_that_are_left_to_the_compiler_are_scheduled() -> None:
    """The bias of ten classes: only pairs divide a row of ten, and the compiler takes it as a whole."""

    def head(x: Expr, emit: Emit) -> Expr:
        from tvm import relax

        return relax.op.add(emit(relax.op.matmul(x, relax.const(random_array(32, 10)))), relax.const(random_array(10)))

    mod, x = function_of([(4, 32)], head), random_array(4, 32)

    applied = apply_schedules(lower(mod, TARGET), TARGET, {})

    assert applied.loop_nests == ()
    np.testing.assert_allclose(run(applied.mod, x), run(mod, x), rtol=1e-5)


@pytest.mark.slow
def test_padded_channels_of_one_pixel_are_scheduled() -> None:
    """Squeeze and excitation: twenty channels fill a vector and a part of one, and there are no pixels to share."""

    def squeezed(x: Expr, emit: Emit) -> Expr:
        from tvm import relax

        convolved = emit(relax.op.nn.conv2d(x, relax.const(random_array(20, 48, 1, 1))))
        biased = emit(relax.op.add(convolved, relax.const(random_array(1, 20, 1, 1))))
        return relax.op.multiply(biased, emit(relax.op.sigmoid(biased)))

    mod, x = function_of([(1, 48, 1, 1)], squeezed), random_array(1, 48, 1, 1)

    applied = apply_schedules(lower(mod, TARGET), TARGET, {})

    assert applied.loop_nests == ()
    np.testing.assert_allclose(run(applied.mod, x), run(mod, x), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_program_is_named_with_the_blocks_that_its_schedule_leaves_alone() -> None:
    """A trace that touches one block only; no schedule at all is the whole program."""
    from tvm.s_tir import Schedule

    from fleet.workloads.programs import matmul
    from fleet.workloads.workload import module_of

    schedule = Schedule(module_of(matmul(16).mod_json))

    assert blocks_left("matmul", schedule) == ["matmul (C)"]
    assert blocks_left("matmul", None) == ["matmul"]
    schedule.parallel(schedule.get_loops(schedule.get_sblock("C"))[0])
    assert blocks_left("matmul", schedule) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["efficientnet", "gru", "keyword_spotting", "llama", "lstm", "segformer", "tabular"])
@pytest.mark.parametrize("target", [AVX2, CORTEX_A72], ids=["avx2", "cortex-a72"])
def test_models_of_all_kinds_are_scheduled_as_a_whole(name: str, target: Target, tmp_path: Path) -> None:
    """None of their programs is left as a bare loop nest."""
    model = import_model(load_model(write(name, tmp_path)))

    assert apply_schedules(lower(model, target), target, {}).loop_nests == ()
