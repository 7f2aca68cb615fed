"""Profiles of models with known times."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from fleet.cli.profile_view import render_profile
from fleet.domain.devices import Inventory, RuntimeKind
from fleet.domain.measuring import OperatorCall, TensorSpec
from fleet.domain.roofline import MemoryRate, Roofline
from fleet.domain.workload import Workload
from fleet.errors import InvalidRequest
from fleet.models.model import Model, ModelFormat
from fleet.models.reference_profile import ReferenceNode, ReferenceProfile, parse_nodes, profile_reference
from fleet.optimizer.profiling.profile import ModelProfile, OperatorGroup, group_of, join
from fleet.optimizer.profiling.run import refuse_unfit, runs_for

MATRIX = TensorSpec((100, 100), "float32")
ROOFLINE = Roofline(
    flop_per_sec=100e9, memory=(MemoryRate(size_bytes=2**20, bytes_per_sec=10e9),), source="measured for a test"
)


def workload(name: str, flop: float = 2e6) -> Workload:
    args = (MATRIX, MATRIX, TensorSpec((100, 100), "float32", is_output=True))
    return Workload(name=name, weight=1, mod_json="", shash=f"hash of {name}", flop=flop, args=args)


def call(function: str, sec: float) -> OperatorCall:
    return OperatorCall(function=function, min_sec=sec * 0.9, median_sec=sec)


CALLS = [
    call("vm.builtin.alloc_tensor", 1e-6),
    call("fused_matmul_add", 40e-6),
    call("matmul1", 200e-6),
    call("vm.builtin.alloc_tensor", 1e-6),
    call("fused_matmul_add", 60e-6),
    call("tvm.contrib.sort", 10e-6),
]
WORKLOADS = [workload("fused_matmul_add"), workload("matmul1")]
ALONE = {"hash of fused_matmul_add": call("", 30e-6), "hash of matmul1": call("", 190e-6)}


def profile(reference: ReferenceProfile | None = None) -> ModelProfile:
    return ModelProfile(
        title="two_layers",
        device="devices/pi4-03",
        device_model="Raspberry Pi 4 x4",
        tuned=2,
        total_sec=320e-6,
        instrumented_sec=330e-6,
        operators=join(CALLS, WORKLOADS, ALONE, ROOFLINE),
        vm_sec=2e-6,
        vm_calls=2,
        roofline=ROOFLINE,
        reference=reference,
        notes=("disturbed: 2 foreign processes",),
    )


def rendered(shown: ModelProfile, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(render_profile(shown, width=width))
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_the_largest_loss_against_standalone_comes_first() -> None:
    """Its loss is the possible gain of tuning; a costlier operator that runs as fast as alone comes after it."""
    slower, costlier, unknown = join(CALLS, WORKLOADS, ALONE, ROOFLINE)

    assert (slower.name, slower.count, slower.is_slower_in_place) == ("fused_matmul_add", 2, True)
    assert slower.in_place_sec == pytest.approx(100e-6)
    assert slower.in_place_min_sec == pytest.approx(90e-6)
    assert slower.alone_sec == pytest.approx(60e-6)
    assert slower.ratio == pytest.approx(100 / 60)
    assert slower.lost_sec == pytest.approx(36e-6)
    assert (costlier.name, costlier.is_slower_in_place, costlier.lost_sec) == ("matmul1", False, 0.0)
    assert (unknown.name, unknown.alone_sec, unknown.roofline_share) == ("tvm.contrib.sort", None, None)


def test_rates_and_shares_are_of_all_calls_together() -> None:
    """Two calls are twice the operations and twice the bytes in the time of both."""
    found = join(CALLS, WORKLOADS, ALONE, ROOFLINE)[0]

    assert found.flop == 4e6
    assert found.size_bytes == 2 * 3 * 40_000
    assert found.gflops == pytest.approx(40.0)
    assert found.roofline_share == pytest.approx(2 * 20e-6 / 100e-6)
    assert not found.is_memory_bound


def test_a_difference_that_every_call_pays_is_no_loss() -> None:
    """A tiny operator takes longer in the model by the price of the call: tuning it could gain nothing."""
    (found,) = join([call("matmul1", 3e-6)], WORKLOADS, {"hash of matmul1": call("", 1e-6)}, ROOFLINE)

    assert found.ratio == pytest.approx(3.0)
    assert not found.is_slower_in_place


@pytest.mark.parametrize("width", [80, 120, 220])
def test_a_profile_fits_its_terminal(width: int) -> None:
    """Names are cut, figures stay whole."""
    text = rendered(profile(), width)

    assert max(map(len, text.splitlines())) <= width
    assert all(figure in text for figure in ("100 us", "60 us", "1.67x", "40.0", "40%", "320 us"))
    assert "2 foreign processes" in text
    assert ("fused_matmul_add" in text) == (width == 220)


def test_onnx_runtime_stands_beside_the_model() -> None:
    """Operators of both engines are compared in common groups."""
    nodes = (
        ReferenceNode(name="a", op_type="FusedMatMul", median_sec=150e-6),
        ReferenceNode(name="b", op_type="Softmax", median_sec=30e-6),
    )
    found = profile(ReferenceProfile(nodes=nodes, median_sec=200e-6, threads=2))

    groups = {row["group"]: row for row in found.to_json()["groups"]}  # type: ignore[index,union-attr]
    assert groups["matrix products"]["ours_ms"] == pytest.approx(0.3)
    assert groups["matrix products"]["onnxruntime_ms"] == pytest.approx(0.15)
    assert "2.00x" in rendered(found, 80)


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("conv2d 3x3 64->128 56x56", OperatorGroup.CONVOLUTION),
        ("dwconv2d 3x3 64 56x56", OperatorGroup.CONVOLUTION),
        ("FusedConv", OperatorGroup.CONVOLUTION),
        ("batch_matmul 8 64x64x64", OperatorGroup.PRODUCT),
        ("Gemm", OperatorGroup.PRODUCT),
        ("mean 1000x13x13", OperatorGroup.REDUCTION),
        ("GlobalAveragePool", OperatorGroup.REDUCTION),
        ("LayerNormalization", OperatorGroup.REDUCTION),
        ("maximum 64", OperatorGroup.OTHER),
        ("Concat", OperatorGroup.OTHER),
    ],
)
def test_operators_of_both_engines_are_grouped(name: str, group: OperatorGroup) -> None:
    """Operators that compute the same are in one group, although their names differ."""
    assert group_of(name) is group


def test_the_nodes_of_a_profile_are_read_without_the_runs_that_warm_up() -> None:
    """The first two runs load code and grow arenas."""
    events = [{"cat": "Session", "name": "model_run", "dur": 5000.0}]
    for run in (900.0, 100.0, 7.0, 9.0, 8.0):
        events.append({"cat": "Node", "name": "n1_kernel_time", "dur": run, "args": {"op_name": "Conv"}})
        events.append({"cat": "Node", "name": "n1_fence_before", "dur": 1.0, "args": {"op_name": "Conv"}})

    (node,) = parse_nodes(events)  # type: ignore[arg-type]

    assert (node.name, node.op_type) == ("n1", "Conv")
    assert node.median_sec == pytest.approx(8e-6)


def test_other_formats_are_not_given_to_onnx_runtime(caplog: pytest.LogCaptureFixture) -> None:
    """It would refuse them, and a warning about that is of no use."""
    model = Model(
        title="m", format=ModelFormat.TORCH, digest="", input_names=(), inputs=(), output_names=(), stored=b"PK"
    )

    assert profile_reference(model, [], threads=1, runs=1) is None
    assert caplog.records == []


@pytest.mark.parametrize(
    ("inventory", "reason"),
    [
        (Inventory(kind="raspberry_pi", runtime=RuntimeKind.PLAIN), "no Relax VM"),
        (Inventory(kind="android", runtime=RuntimeKind.TVM_RPC), "TVM RPC"),
        (Inventory(kind="simulated"), "nothing really runs"),
    ],
)
def test_a_device_that_cannot_look_inside_is_refused_at_once(inventory: Inventory, reason: str) -> None:
    """The refusal comes before the model is compiled, and names an alternative."""
    with pytest.raises(InvalidRequest, match=reason):
        refuse_unfit("devices/it", inventory)


def test_other_devices_are_not_refused() -> None:
    """A Raspberry Pi with TVM's runtime and a GPU are profiled as any processor."""
    refuse_unfit("devices/it", Inventory(kind="raspberry_pi"))
    refuse_unfit("devices/it", Inventory(kind="cuda"))


def test_a_slow_model_runs_less_often() -> None:
    """A profile takes some seconds for any model."""
    assert runs_for(1e-3) == 50
    assert runs_for(0.5) == 10
    assert runs_for(60.0) == 3
