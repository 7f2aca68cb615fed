"""The ONNX operators that docs/reference/models.md excepts, checked against the specification's own examples.

Every operator's first example is imported, built with static schedules, and its outputs compared. Examples give axes
and shapes as inputs; models have them as constants, and so do these.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from cross.compile.lowering import tir_pipeline
from cross.targets.target import host_target, make_target, parse_target
from fleet.graph.pipeline import lower
from fleet.models.model import Model, import_model
from fleet.workloads.applying import apply_schedules
from fleet.workloads.concats import join_concats
from tests.unit.onnx_cases import loaded

HOST = host_target()
PAGE = Path(__file__).parents[2] / "docs/reference/models.md"
CONSTANT = frozenset(
    {"depth", "iou_threshold", "k", "pads", "roi", "scales", "score_threshold", "sizes", "threshold", "value"}
)
ELEMENTWISE = frozenset(
    {"Add", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Gather"}
) | frozenset({"Greater", "Less", "Max", "Min", "Mod", "Mul", "Pow", "Sub"})
"""Operators with a second operand that is no parameter, though it may be a short vector of integers."""

Case: TypeAlias = "tuple[onnx.ModelProto, list[NDArray[np.generic]], list[NDArray[np.generic]]]"


def listed(heading: str) -> list[str]:
    """Return the operators that the page names under a heading."""
    section = re.search(rf"^### {heading}\n(.*?)(?=^#|\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return re.findall(r"`(\w+)`", section[1]) if section else []


IN_PART, NOT_IMPORTED = listed("In part"), listed("Not imported")


@functools.cache
def cases() -> dict[str, Case]:
    """Return each operator's first example with plain arrays as inputs and outputs."""
    from onnx.backend.test.case.node import collect_testcases

    found: dict[str, Case] = {}
    for case in collect_testcases(None):
        if not case.data_sets or "_expanded" in case.name:
            continue
        given, expected = case.data_sets[0]
        op_type = case.model.graph.node[0].op_type
        arrays = [*given, *expected]
        if (
            case.model.graph.node[0].domain
            or op_type in found
            or any(isinstance(item, list) or np.asarray(item).dtype.kind not in "fiub" for item in arrays)
        ):
            continue
        found[op_type] = with_constants(case.model, list(map(np.asarray, given)), list(map(np.asarray, expected)))
    return found


def with_constants(
    model: onnx.ModelProto, given: list[NDArray[np.generic]], expected: list[NDArray[np.generic]]
) -> Case:
    """Make vectors of integers and inputs named in `CONSTANT` constants, unless no input would be left."""
    pairs = list(zip(model.graph.input, given, strict=True))
    constant = [
        value.name in CONSTANT or (place > 0 and array.dtype.kind == "i" and array.ndim < 2)
        for place, (value, array) in enumerate(pairs)
    ]
    kept = [pair for pair, is_constant in zip(pairs, constant, strict=True) if not is_constant]
    if not kept or model.graph.node[0].op_type in ELEMENTWISE:
        return model, given, expected
    for (value, array), is_constant in zip(pairs, constant, strict=True):
        if is_constant:
            model.graph.initializer.append(numpy_helper.from_array(array, value.name))
    inputs = [value for value, _ in kept]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    return model, [array for _, array in kept], expected


def built(model: Model, inputs: Sequence[NDArray[np.generic]]) -> list[NDArray[np.generic]]:
    """Return the outputs of a model built like `fleet build` does, but without LLVM's optimizations."""
    import tvm
    from tvm import relax

    lowered = lower(import_model(model), HOST)
    scheduled = join_concats(apply_schedules(lowered, HOST, {}).mod, HOST).mod
    quick = make_target(parse_target(json.dumps(dict(HOST.options) | {"opt-level": 0})))
    executable = tvm.compile(scheduled, target=quick, tir_pipeline=tir_pipeline(HOST))
    result = relax.VirtualMachine(executable, tvm.cpu())["main"](*map(tvm.runtime.tensor, inputs))
    return [item.numpy() for item in (result if len(model.output_names) > 1 else [result])]


def is_right(op_type: str, folder: Path) -> bool:
    """Tell whether the first example of an operator is imported, compiles, and computes the right result."""
    proto, given, expected = cases()[op_type]
    try:
        outputs = built(loaded(proto, folder), given)
    except Exception:  # noqa: BLE001 - whatever TVM or a kernel raises: it is not right
        return False
    return len(outputs) == len(expected) and all(
        actual.shape == wanted.shape
        and actual.dtype == wanted.dtype
        and np.allclose(actual, wanted, rtol=1e-3, atol=1e-5, equal_nan=True)
        for actual, wanted in zip(outputs, expected, strict=True)
    )


def test_the_page_names_each_exception_once() -> None:
    """The exceptions are sorted, and few."""
    excepted = [*IN_PART, *NOT_IMPORTED]

    assert [sorted(found) for found in (IN_PART, NOT_IMPORTED)] == [IN_PART, NOT_IMPORTED]
    assert len(set(excepted)) == len(excepted)
    assert 1 <= len(excepted) <= 40


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the examples come with warnings of their own
@pytest.mark.timeout(600)
def test_the_exceptions_are_the_operators_that_are_not_right(tmp_path: Path) -> None:
    """The first examples of all other operators are right."""
    wrong = [op_type for op_type in sorted(cases()) if not is_right(op_type, tmp_path)]

    assert wrong == sorted([*IN_PART, *NOT_IMPORTED])
