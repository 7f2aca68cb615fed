"""`fleet profile` as a command, on a real local fleet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.system.fleet_processes import run_fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def test_every_operator_of_a_model_is_timed_in_its_place_and_alone(two_products: Path, tmp_path: Path) -> None:
    """The parts add up to the whole, the device's limits are measured, and ONNX Runtime stands beside it."""
    library = str(tmp_path / "library.sqlite")

    done = run_fleet("profile", str(two_products), "--on", "cpu", "--runs", "5", "--library", library, "--json")

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    operators = found["operators"]
    assert len(operators) == 2
    assert {"matrix products"} == {item["group"] for item in operators}
    for item in operators:
        assert item["count"] == 1
        assert 0 < item["in_place_min_sec"] <= item["in_place_sec"]
        assert item["alone_sec"] > 0
        assert item["flop"] > 1e5
        assert item["bytes"] > 1e4
        assert item["gflops"] > 0
        assert item["roofline_share"] > 0
    assert found["operators_sec"] == pytest.approx(sum(item["in_place_sec"] for item in operators))
    assert found["vm_calls"] > 0
    assert found["total_sec"] > 0
    assert found["instrumented_sec"] > 0
    assert found["roofline"]["flop_per_sec"] > 1e8
    assert [item["op_type"] for item in found["onnxruntime"]["by_op_type"]].count("MatMul") == 1
    assert found["onnxruntime"]["total_sec"] > 0
    assert found["tuned"] == 0


def test_the_tables_and_bars_are_for_people(two_products: Path, tmp_path: Path) -> None:
    """The output without --json has tables and bars; --no-alone halves the time."""
    library = str(tmp_path / "library.sqlite")

    done = run_fleet("profile", str(two_products), "--runs", "3", "--no-alone", "--library", library)

    assert done.returncode == 0, done.stderr
    for words in ("matmul 48x64x80", "in place", "ONNX Runtime", "roofline", "█"):
        assert words in done.stdout
    assert "alone" not in done.stdout.partition("\n\n")[0]


def test_a_simulated_device_is_refused_before_anything_is_built(two_products: Path) -> None:
    """The message names the device, the reason, and a command that works there."""
    done = run_fleet("profile", str(two_products), "--on", "kind=simulated")

    assert done.returncode == 2
    assert "nothing really runs on it" in done.stderr
    assert "fleet tune" in done.stderr
