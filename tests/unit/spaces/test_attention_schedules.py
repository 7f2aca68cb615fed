"""Schedules of attention: right for lengths that no vector divides, shared heads and masks, on every processor."""

from __future__ import annotations

import functools
import itertools
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from cross.targets.target import host_target, parse_target
from fleet.graph.attention_program import ATTRIBUTE, LOWEST, Attention, attend, padded_to_vectors
from fleet.spaces.fallback_rules import unscheduled
from fleet.spaces.space import finished, schedules, static_schedule

pytestmark = pytest.mark.slow

HOST = host_target()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    tokens: int
    seen: int
    heads: int = 2
    shared: int = 2
    width: int = 16
    value_width: int = 16
    bias: tuple[int, ...] = ()
    diagonal: int | None = None
    cores: int = 2
    hidden: bool = False
    """The first batch sees nothing: its bias is the lowest number everywhere."""

    @property
    def attention(self) -> Attention:
        return Attention(heads=self.heads, shared_heads=self.shared, scale=0.3, diagonal=self.diagonal)

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        query = (2, self.tokens, self.heads * self.width)
        key, value = ((2, self.seen, self.shared * width) for width in (self.width, self.value_width))
        return [query, key, value, *([self.bias] if self.bias else [])]


CASES = {
    "whole blocks of rows": Case(tokens=24, seen=32),
    "a row and a key too many": Case(tokens=25, seen=33),
    "one query": Case(tokens=1, seen=40),
    "more cores than heads": Case(tokens=24, seen=33, cores=16),
    "more cores than heads, a row too many": Case(tokens=25, seen=20, cores=16),
    "shared keys, narrow values": Case(tokens=9, seen=16, heads=6, shared=3, width=7, value_width=12),
    "bias and causal": Case(tokens=17, seen=17, bias=(1, 2, 17, padded_to_vectors(17)), diagonal=0),
    "mask of keys": Case(tokens=8, seen=20, bias=(2, 1, 1, padded_to_vectors(20))),
    "nothing to see": Case(tokens=8, seen=20, bias=(2, 1, 1, padded_to_vectors(20)), hidden=True),
}


def module_of(case: Case) -> Any:
    """Return the program as the graph's pass makes it, with indices of 64 bits."""
    from tvm import relax

    from fleet.workloads.applying import workload_module

    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType(shape, "float32")) for i, shape in enumerate(case.shapes)]
    program = functools.partial(attend, attention=case.attention)
    with builder.function("main", params):
        call = builder.call_te(program, *params, primfunc_name_hint="attention", primfunc_attrs={ATTRIBUTE: 1})
        builder.emit_func_output(builder.emit(call))
    mod = builder.get()
    return workload_module(mod["attention"])


def expected(case: Case, arrays: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    heads = [
        array.reshape(*array.shape[:2], count, -1).transpose(0, 2, 1, 3).repeat(case.heads // count, axis=1)
        for array, count in zip(arrays, (case.heads, case.shared, case.shared), strict=False)
    ]
    scores = heads[0] @ heads[1].transpose(0, 1, 3, 2) * case.attention.scale
    scores = scores + (arrays[3][..., : case.seen] if case.bias else 0)
    if case.diagonal is not None:
        scores = np.where(np.tri(case.tokens, case.seen, case.diagonal, dtype=bool), scores, -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = powers / powers.sum(-1, keepdims=True) @ heads[2]
    return mixed.transpose(0, 2, 1, 3).reshape(2, case.tokens, -1)


def run(mod: Any, arrays: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    import tvm

    tensors = [tvm.runtime.tensor(array) for array in arrays]
    tvm.compile(finished(mod, HOST), target=tvm.target.Target(dict(HOST.options)))["main"](*tensors)
    result: np.ndarray[Any, Any] = tensors[-1].numpy()
    return result


@pytest.mark.parametrize("name", CASES)
def test_attention_is_right(name: str) -> None:
    """The padding of keys, of masks and of the last rows is never seen."""
    case, draw = CASES[name], np.random.default_rng(0)
    arrays = [draw.standard_normal(shape).astype("float32") for shape in case.shapes]
    if case.hidden:
        arrays[3][0] = LOWEST
    schedule = static_schedule(
        module_of(case), parse_target(json.dumps({**dict(HOST.options), "num-cores": case.cores}))
    )

    assert schedule is not None
    assert () == unscheduled(schedule)
    result = run(schedule.mod, [*arrays, np.zeros((2, case.tokens, case.heads * case.value_width), "float32")])
    np.testing.assert_allclose(expected(case, arrays), result, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("core", ["x86-64", "x86-64-v4"])
def test_other_tiles_are_tried_after_the_static_one(core: str) -> None:
    """The design space has several schedules for every processor."""
    target = json.dumps({"kind": "llvm", "mcpu": core, "num-cores": 2})

    found = itertools.islice(schedules(module_of(CASES["whole blocks of rows"]), parse_target(target)), 3)

    assert 3 == len({str(schedule.mod) for schedule in found})
