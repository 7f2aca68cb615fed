"""The figures of the models benchmark: operations, models by name, means over the models that both sides ran."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.model_list import ENTRIES, find_entries
from benchmarks.model_report import Effort, ModelFigures, figures_of
from benchmarks.operations import operations
from fleet.models.model import bundled_model
from fleet.testing.models import GENERATED, HELD_OUT, write

EFFORT = Effort(threads=2, rounds=5, block_sec=0.5, trials=None, minutes=None)
TUNED = Effort(threads=2, rounds=5, block_sec=0.5, trials=None, minutes=20.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "multiplications"),
    [("resnet18", 1.82e9), ("mobilenet_v2", 0.30e9), ("resnet50", 4.09e9), ("vgg19", 19.6e9)],
)
def test_operations_are_as_published(name: str, multiplications: float, tmp_path: Path) -> None:
    """The papers and torchvision count a multiplication with its addition as one."""
    path = write(name, tmp_path) if name in GENERATED else bundled_model(name)

    assert operations(path) == pytest.approx(2 * multiplications, rel=0.02)


def test_models_are_found_by_name() -> None:
    """Names keep their order and count once; "held_out" stands for all held-out models; every generated model is
    compared.
    """
    assert [entry.name for entry in find_entries("bert,squeezenet, bert")] == ["bert", "squeezenet"]
    assert tuple(entry.name for entry in find_entries("held_out")) == HELD_OUT
    assert {entry.name for entry in ENTRIES} >= set(GENERATED)
    with pytest.raises(KeyError, match="bret"):
        find_entries("bret")


def figures(name: str, ms: dict[str, float], effort: Effort = EFFORT, error: float = 0.0) -> ModelFigures:
    (entry,) = find_entries(name)
    errors = dict.fromkeys(ms.keys() - {"onnxruntime"}, error)
    return ModelFigures(entry=entry, operations=1e9, ms=ms, relative_errors=errors, problems={}, effort=effort)


def test_means_are_over_models_that_both_sides_ran() -> None:
    """A model that ran on one side only changes no mean, and is reported separately."""
    found = [
        figures("bert", {"onnxruntime": 2.0, "static": 4.0}),
        figures("vit", {"onnxruntime": 8.0, "static": 4.0, "openvino": 3.0}),
        figures("llama", {"onnxruntime": 100.0}),
    ]

    answer = figures_of(found, 1e12)

    assert (answer["peer"], answer["ours"], answer["ratio"], answer["openvino"]) == (4.0, 4.0, 1.0, 3.0)
    assert answer["budget"] == pytest.approx(6.0)
    assert answer["models"]["bert"]["times_faster_peer"] == 2.0
    assert answer["models"]["vit"]["times_faster_peer"] == pytest.approx(4 / 3, rel=1e-3)
    assert answer["times_faster_peer"] == pytest.approx((2 * 4 / 3) ** 0.5, rel=1e-3)
    assert answer["models"]["llama"]["static_ms"] is None
    assert answer["models"]["bert"]["share_of_peak"] == {"onnxruntime": 0.5, "static": 0.25}


def test_tuned_time_counts_as_ours_where_there_is_one() -> None:
    """With twenty minutes of tuning, the budget is the one for that."""
    found = figures("resnet50", {"onnxruntime": 10.0, "static": 15.0, "tuned": 9.0}, TUNED)

    assert (found.ours, found.ratio, found.budget) == ("tuned", 0.9, 1.0)


@pytest.mark.parametrize(("name", "error", "is_wrong"), [("bert", 2e-3, True), ("resnet18_int8", 2e-3, False)])
def test_different_outputs_are_reported_as_wrong(name: str, error: float, is_wrong: bool) -> None:
    """In float a thousandth is wrong; in int8 engines may round differently."""
    assert bool(figures(name, {"onnxruntime": 1.0, "static": 1.0}, error=error).wrong) is is_wrong
