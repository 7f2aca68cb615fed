"""Explanations of models by `fleet explain`, and the sources of its limits."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from cross.targets.target import parse_target
from fleet.cli.explain_view import estimated_sec, render_explanation
from fleet.domain.roofline import MemoryRate
from fleet.graph.concats import CopyReason
from fleet.graph.explaining import Explanation, GraphStage, Program, Scheduled, explain
from fleet.spaces.limits import expected_roofline
from tests.unit.graph_models import function_of, random_array

if TYPE_CHECKING:
    from tvm.relax import Expr

    from tests.unit.graph_models import Emit

AVX2 = parse_target('{"kind": "llvm", "mcpu": "x86-64-v3", "mtriple": "x86_64-linux-gnu", "num-cores": 2}')


def network(x: Expr, emit: Emit) -> Expr:
    """A convolution with its bias and activation, and the mean of the image."""
    from tvm import relax

    convolved = relax.op.nn.conv2d(x, relax.const(random_array(16, 8, 1, 1)))
    biased = relax.op.add(convolved, relax.const(random_array(1, 16, 1, 1)))
    return relax.op.mean(relax.op.nn.relu(biased), [2, 3])


@pytest.mark.slow
def test_a_model_is_explained_from_its_operators_to_its_programs() -> None:
    """Operators, layouts and transposes of each stage, and the fused programs with their operations and bytes."""
    mod = function_of([(1, 8, 6, 6)], network)

    found = explain(mod, AVX2)

    before, after = found.stages[0], found.stages[-1]
    assert {"conv2d": 1, "add": 1, "relu": 1, "mean": 1} == before.operators
    assert {"NCHW": 1} == before.convolution_layouts
    assert {"NHWC": 1} in [stage.convolution_layouts for stage in found.stages]
    assert after.transposes == 1, "of the input"
    assert after.moved_bytes < before.moved_bytes
    convolution = found.programs[0]
    assert ("conv2d", "add", "relu") == convolution.fused
    assert "conv2d 1x1 8->16 6x6" == convolution.operator
    assert 2 * 6 * 6 * 8 * 16 <= convolution.flop < 3 * 6 * 6 * 8 * 16
    assert 4 * (8 * 16 + 16) == convolution.constant_bytes
    assert 4 * (6 * 6 * (8 + 16) + 8 * 16 + 16) == convolution.moved_bytes


@pytest.mark.slow
def test_a_lookup_moves_the_rows_that_it_reads() -> None:
    """Before, an embedding's whole table counted as moved, a hundred times the size of the two rows that were read."""
    from tvm import relax

    def embedding(x: Expr, emit: Emit) -> Expr:
        rows = relax.op.take(relax.const(random_array(1_000, 128)), relax.const([3, 5], "int32"), axis=0)
        return relax.op.add(relax.op.multiply(rows, x), x)

    found = explain(function_of([(2, 128)], embedding), AVX2)

    assert found.stages[0].moved_bytes < 20_000
    assert all(program.moved_bytes < 20_000 for program in found.programs)


@pytest.mark.slow
def test_a_gpu_keeps_the_layout_of_the_model() -> None:
    """Its rules expect channels first."""
    found = explain(function_of([(1, 8, 6, 6)], network), parse_target('{"kind": "cuda", "arch": "sm_86"}'))

    assert not found.stages[-1].transposes


def test_limits_of_a_processor_come_from_its_target() -> None:
    """Two cores with two units of eight lanes do 64 operations in a cycle; the assumed clock is marked as such."""
    roofline = expected_roofline(AVX2)

    assert 64 * 2e9 == roofline.flop_per_sec
    assert "128 GFLOP/s from 2 cores x 8 lanes x 2 units at 2 GHz (assumed); 10 GB/s assumed" == roofline.source


def test_limits_that_are_given_count() -> None:
    """Given limits replace estimates; a GPU has no assumed limits."""
    gpu = parse_target('{"kind": "cuda", "arch": "sm_86"}')

    assert "100 GFLOP/s as given; 20 GB/s as given" == expected_roofline(AVX2, peak_gflops=100, bandwidth_gbs=20).source
    assert "not known" == expected_roofline(gpu).source
    assert 900e9 == expected_roofline(gpu, bandwidth_gbs=900).memory[0].bytes_per_sec


def test_a_small_program_is_estimated_at_the_rate_of_its_cache() -> None:
    """Rates are measured by size; a larger working set than the largest measured one has the last rate."""
    measured = (MemoryRate(size_bytes=1_000, bytes_per_sec=50e9), MemoryRate(size_bytes=100_000, bytes_per_sec=5e9))
    roofline = expected_roofline(AVX2, clock_ghz=3, measured=measured)

    assert [1_000 / 50e9, 2_000 / 5e9, 1e6 / 5e9] == [roofline.memory_sec(size) for size in (1_000, 2_000, 1e6)]
    assert roofline.source.endswith("3 GHz; 50 GB/s in 1 kB, 5 GB/s in 100 kB, measured, one core copying")
    assert "2 GB/s as given" in expected_roofline(AVX2, bandwidth_gbs=2, measured=measured).source


def test_the_estimate_is_that_of_the_tighter_limit() -> None:
    """The estimate covers all calls of a program, and the table names the limit."""
    stage = GraphStage(
        name="fuse",
        reason="why",
        operators={"conv2d+relu": 2},
        convolution_layouts={},
        transposes=0,
        moved_bytes=2_000_000,
    )
    program = Program(
        name="fused_conv2d_relu",
        operator="conv2d 3x3",
        kind="conv2d 3x3",
        fused=("conv2d", "relu"),
        calls=2,
        flop=2e6,
        moved_bytes=1_000_000,
        constant_bytes=1_000,
    )
    roofline = expected_roofline(AVX2, peak_gflops=1, bandwidth_gbs=1)
    console = Console(file=StringIO(), width=120, color_system=None)

    scheduled = Scheduled(
        loop_nests=("cumsum",), concats_in_place=2, concats_copied=(CopyReason.SHARED, CopyReason.SHARED)
    )
    found = Explanation(stages=(stage,), programs=(program,), scheduled=scheduled)
    console.print(render_explanation(found, roofline, title="m", width=120))

    assert pytest.approx(4e-3) == estimated_sec(program, roofline)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "4 ms" in shown
    assert "at best" not in shown, "several cores or a nearer cache are faster"
    assert "arithmetic" in shown
    assert "conv2d + relu" in shown
    assert "not scheduled, so plain loops: cumsum" in shown
    assert "concats: 2 of 4 written in place; 2 copied: an operand has its place elsewhere" in shown
