"""Logarithms of 1 + x for small x."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from onnx import helper

from cross.targets.target import host_target
from fleet.graph.pipeline import lower
from fleet.models.model import import_model
from fleet.workloads.applying import apply_schedules
from tests.function_errors import MOST_ULP, errors
from tests.unit.graph_models import function_of, run
from tests.unit.onnx_cases import loaded, model_of

if TYPE_CHECKING:
    from tvm.ir import IRModule

pytestmark = pytest.mark.slow

HOST = host_target()
X = np.linspace(-80, 80, 4096, dtype=np.float32).reshape(1, -1)


def of_onnx(folder: Path) -> IRModule:
    return import_model(loaded(model_of([helper.make_node("Softplus", ["x"], ["y"])], {"x": X}), folder))


def of_an_operator(_: Path) -> IRModule:
    from tvm import relax

    return function_of([X.shape], lambda x, _: relax.op.nn.softplus(x))


@pytest.mark.parametrize("make", [of_onnx, of_an_operator])
def test_softplus_is_right_for_very_negative_numbers(make: object, tmp_path: Path) -> None:
    """Before, it was 0 below -17, where the error is that of its last place now."""
    lowered = lower(make(tmp_path), HOST)  # type: ignore[operator]

    found = run(apply_schedules(lowered, HOST, {}).mod, X)

    assert errors(found, np.log1p(np.exp(X.astype(np.float64)))).max() <= MOST_ULP
