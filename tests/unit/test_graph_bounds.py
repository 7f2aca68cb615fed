"""Indices that a tensor does not have, in programs that are compiled: the nearest element, and never other memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from cross.targets.target import host_target, make_target
from fleet.graph.pipeline import lower
from fleet.models.model import import_model
from fleet.workloads.applying import apply_schedules
from tests.unit.onnx_cases import Array, loaded, model_of, theirs

pytestmark = pytest.mark.slow

HOST = host_target()
FAR = 10**12
TABLE = np.arange(60, dtype="float32").reshape(5, 12)
NEW = -np.arange(1, 25, dtype="float32").reshape(2, 12)


def scheduled(proto: object, folder: Path, *inputs: Array) -> Array:
    """Return the result of a model's compiled program."""
    import tvm
    from tvm import relax

    lowered = lower(import_model(loaded(proto, folder)), HOST)
    machine = relax.VirtualMachine(
        tvm.compile(apply_schedules(lowered, HOST, {}).mod, target=make_target(HOST)), tvm.cpu()
    )
    return machine["main"](*map(tvm.runtime.tensor, inputs)).numpy()


@pytest.mark.parametrize(
    ("operator", "given", "nearest", "attributes"),
    [
        ("Gather", [[FAR, -FAR, -1]], [[4, 0, 4]], {"axis": 0}),
        ("Gather", [FAR, -12, 3], [11, 0, 3], {"axis": 1}),
        ("GatherElements", [[FAR] * 12, [-FAR] * 12], [[4] * 12, [0] * 12], {"axis": 0}),
        ("GatherND", [[FAR, -1], [2, -FAR]], [[4, 11], [2, 0]], {}),
        ("ScatterElements", [[FAR] * 12, [-FAR] * 12], [[4] * 12, [0] * 12], {"axis": 0}),
        ("ScatterND", [[FAR], [-FAR]], [[4], [0]], {}),
    ],
)
def test_an_index_that_is_none_means_the_nearest(
    operator: str, given: list[int], nearest: list[int], attributes: dict[str, int], tmp_path: Path
) -> None:
    """The result is ONNX Runtime's for the nearest valid index; negative indices count from the end."""
    far, near = (np.array(indices, "int64") for indices in (given, nearest))
    new = ["new"] if operator.startswith("Scatter") else []
    weights = {"table": TABLE} | ({"new": NEW} if new else {})
    proto = model_of([helper.make_node(operator, ["table", "at", *new], ["y"], **attributes)], {"at": far}, weights)

    found = scheduled(proto, tmp_path, far)

    np.testing.assert_array_equal(found, theirs(loaded(proto, tmp_path), [near])[0])
