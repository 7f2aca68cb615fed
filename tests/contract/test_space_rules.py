"""The contract of every rule for design spaces: ours, and the example of docs/how-to/add-a-design-space.md."""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fleet
from cross.targets.intrinsics import load_intrinsics
from cross.targets.target import Target, host_target, resolve_target
from fleet.domain.measuring import TensorSpec
from fleet.domain.trace_check import check_trace
from fleet.errors import InvalidRequest
from fleet.graph.marking import ATTRIBUTE as CONSTANTS
from fleet.optimizer.tasks.propose import ProposeTask, propose
from fleet.optimizer.tasks.search_state import SearchState
from fleet.spaces import rules
from fleet.spaces.attention import attention_space
from fleet.spaces.design_space import Facts, Space, SpaceRule
from fleet.spaces.facts import GpuFacts, facts_of
from fleet.spaces.fallback_rules import fallback_space
from fleet.spaces.packing import pack_all, packings_of
from fleet.spaces.product_space import product_space
from fleet.spaces.recurrent import recurrence_space
from fleet.spaces.rules import OnProcessors
from fleet.spaces.space import finished
from fleet.spaces.winograd import winograd_space
from fleet.workloads.traces import replay, trace_json
from fleet.workloads.workload import argument_specs, workload_of
from tests.contract.installed import install
from tests.programs import REPOSITORY
from tests.unit.quick_compile import compile_quickly

pytestmark = pytest.mark.slow

HOST, CUDA = host_target(), resolve_target("sm_86")
EXAMPLE = REPOSITORY / "examples/space"


def of_tensors(make: Callable[[], list[Any]], constants: tuple[int, ...] = ()) -> Any:
    import tvm
    from tvm import te

    function = te.create_prim_func(make())
    return tvm.IRModule({"main": function.with_attr(CONSTANTS, list(constants)) if constants else function})


def product(dtype: str = "float32", sums: str = "float32") -> list[Any]:
    from tvm import te, topi

    data, weights = te.placeholder((24, 32), dtype, name="data"), te.placeholder((32, 64), "int8", name="weights")
    weights = te.placeholder((32, 64), "float32", name="weights") if dtype == "float32" else weights
    k = te.reduce_axis((0, 32), name="k")
    cast = functools.partial(topi.cast, dtype=sums)
    left, right = (data, weights) if dtype == sums else (cast(data), cast(weights))
    return [data, weights, te.compute((24, 64), lambda i, j: te.sum(left[i, k] * right[k, j], axis=k), name="out")]


def softmax() -> list[Any]:
    from tvm import te, topi

    data = te.placeholder((12, 40), name="data")
    return [data, topi.nn.softmax(data)]


def sum_of_two() -> list[Any]:
    from tvm import te

    data = te.placeholder((12, 40), name="data")
    return [data, te.compute((12, 40), lambda i, j: data[i, j] + 1.0, name="out")]


def transpose() -> list[Any]:
    from tvm import te

    data = te.placeholder((48, 64), name="data")
    return [data, te.compute((64, 48), lambda i, j: data[j, i], name="out")]


def attention() -> Any:
    from tests.unit.spaces.test_attention_schedules import CASES, module_of

    return module_of(CASES["whole blocks of rows"])


def winograd() -> Any:
    from tests.unit.spaces.test_likeness import winograd_convolution

    return winograd_convolution(8)


def recurrence() -> Any:
    from tvm.tirx import PrimFunc

    from fleet.graph.pipeline import lower
    from fleet.models.model import import_model
    from fleet.spaces.recurrent import is_recurrence
    from fleet.workloads.applying import workload_module
    from tests.unit.test_recurrent_program import layer

    lowered = lower(import_model(layer("GRU", 3, 1, 16)), HOST)
    programs = [workload_module(one) for one in lowered.functions.values() if isinstance(one, PrimFunc)]
    return next(program for program in programs if is_recurrence(program))


def example_rule() -> SpaceRule:
    sys.path.insert(0, str(EXAMPLE))
    try:
        from tiled_transpose import TransposeRule  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(EXAMPLE))
    rule: SpaceRule = TransposeRule()
    return rule


@dataclass(frozen=True, slots=True)
class Member:
    """A rule with an operator that it is for."""

    rule: Callable[[], SpaceRule]
    operator: Callable[[], Any]
    target: Target = HOST


def on_processors(make: Any) -> Callable[[], SpaceRule]:
    return functools.partial(OnProcessors, make)


MEMBERS = {
    "attention": Member(on_processors(attention_space), attention),
    "recurrence": Member(on_processors(recurrence_space), recurrence),
    "winograd": Member(on_processors(winograd_space), winograd),
    "product": Member(on_processors(product_space), lambda: of_tensors(product)),
    "packed product": Member(on_processors(product_space), lambda: of_tensors(product, (1,))),
    "integers": Member(on_processors(product_space), lambda: of_tensors(lambda: product("uint8", "int32"), (1,))),
    "reduction": Member(on_processors(fallback_space), lambda: of_tensors(softmax)),
    "elementwise": Member(on_processors(fallback_space), lambda: of_tensors(sum_of_two)),
    "default on GPUs": Member(rules.DefaultOnGpus, lambda: of_tensors(softmax), CUDA),
    "example": Member(example_rule, lambda: of_tensors(transpose)),
    "example on GPUs": Member(example_rule, lambda: of_tensors(transpose), CUDA),
}


@dataclass(frozen=True, slots=True)
class Made:
    """A member's rule, operator and facts."""

    rule: SpaceRule
    mod: Any
    facts: Facts
    target: Target

    def space(self) -> Space:
        space = self.rule.space(self.mod, self.facts)
        assert space is not None
        return space


@pytest.fixture(params=MEMBERS)
def made(request: pytest.FixtureRequest) -> Made:
    member = MEMBERS[request.param]
    load_intrinsics(member.target)
    facts = facts_of(member.target)
    assert facts is not None
    return Made(member.rule(), member.operator(), facts, member.target)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The example as an installed package."""
    install(EXAMPLE, tmp_path / "site", monkeypatch)
    rules.all_rules.cache_clear()
    yield
    rules.all_rules.cache_clear()
    sys.modules.pop("tiled_transpose", None)


def some(space: Space) -> list[int]:
    """Return the first places and the last one."""
    last = len(space.choices) - 1
    return sorted({0, min(1, last), last // 2, last}) if space.choices else []


def test_every_rule_of_ours_is_a_member() -> None:
    """A rule that is added is held to the contract."""
    tested = {str(member.rule()) for member in MEMBERS.values() if isinstance(member.rule(), OnProcessors)}

    assert {str(rule) for rule in rules.BUILT_IN if isinstance(rule, OnProcessors)} == tested
    assert [type(rule) for rule in rules.BUILT_IN if not isinstance(rule, OnProcessors)] == [rules.DefaultOnGpus]


def test_a_space_is_deterministic(made: Made) -> None:
    """A fresh worker proposes the same schedules, and the function is unchanged."""
    import tvm_ffi

    before = tvm_ffi.structural_hash(made.mod)

    one, other = made.space(), made.space()

    assert one.choices == other.choices
    places = some(one)
    assert [trace_json(found) for found in one.schedules_at(places)] == [
        trace_json(found) for found in other.schedules_at(places)
    ]
    assert tvm_ffi.structural_hash(made.mod) == before


def test_choices_are_different_values_of_one_kind(made: Made) -> None:
    """Choices are frozen dataclasses, so that the most similar one can be found."""
    space = made.space()

    assert len(set(space.choices)) == len(space.choices)
    assert len({type(choice) for choice in space.choices}) <= 1
    assert all(fields(choice) for choice in space.choices)
    assert str(space).startswith(f"{space.rule}: ")


def test_schedules_come_in_the_order_of_their_places(made: Made) -> None:
    """A place means one choice; a space without knobs has exactly one schedule."""
    space = made.space()
    places = some(space)

    forward = [trace_json(found) for found in space.schedules_at(places)]

    assert len(forward) == max(1, len(places))
    if places:
        assert [trace_json(found) for found in space.schedules_at(places[::-1])] == forward[::-1]


def test_a_schedule_replays_from_its_trace(made: Made) -> None:
    """Its steps are on the allowlist of records, and make the same program again."""
    import tvm_ffi

    space = made.space()
    for schedule in space.schedules_at(some(space)):
        trace = trace_json(schedule)

        check_trace(trace)
        assert tvm_ffi.structural_equal(replay(made.mod, trace).mod, schedule.mod)


def test_a_scheduled_function_computes_the_same_result(made: Made) -> None:
    """Processors: compared with the unscheduled function. GPUs: all work is bound to threads."""
    space = made.space()
    if isinstance(made.facts, GpuFacts):
        scripts = [schedule.mod.script() for schedule in space.schedules_at(some(space))]
        assert all("threadIdx.x" in script and "blockIdx.x" in script for script in scripts)
        return
    arguments = arrays(argument_specs(made.mod))
    expected = run(made.mod, arguments)
    for schedule in space.schedules_at(some(space)):
        packed = pack_all(arguments, packings_of(schedule, made.mod))
        computed = run(finished(schedule.mod, made.target), packed)
        np.testing.assert_allclose(computed, expected, rtol=1e-3, atol=1e-3)


def test_a_rule_leaves_other_functions_and_targets_to_others(made: Made) -> None:
    """A rule returns None for other functions and targets."""
    others = [of_tensors(sum_of_two), of_tensors(softmax), of_tensors(product)]
    for mod, target in itertools.product(others, (HOST, CUDA)):
        facts = facts_of(target)
        assert facts is not None
        assert isinstance(made.rule.space(mod, facts), Space | None)


def test_an_installed_rule_comes_before_ours(installed: None) -> None:
    """It precedes ours for the functions that it has a space for; a job's first proposals are its schedules."""
    workload = workload_of(of_tensors(transpose), name="transpose")

    proposals = propose(ProposeTask(mod_json=workload.mod_json, target=HOST, count=2))

    assert fleet.design_space(of_tensors(transpose), "host").rule == "transpose"
    assert fleet.design_space(of_tensors(transpose), "sm_86").rule == "transpose"
    assert fleet.design_space(of_tensors(product), "host").rule == "product"
    own = [trace_json(found) for found in fleet.design_space(of_tensors(transpose), "host").schedules_at([0, 1])]
    assert [proposal.trace_json for proposal in proposals] == own
    page = (REPOSITORY / "docs/how-to/add-a-design-space.md").read_text()
    assert f"```text\n{fleet.design_space(of_tensors(transpose), 'host')}\n```" in page


def test_a_forbidden_step_is_not_proposed(installed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed rule may run any code, but its records must be as safe as ours: others replay them."""
    import tiled_transpose

    original = tiled_transpose.tiled

    def injecting(mod: Any, choice: Any, *, is_gpu: bool) -> Any:
        schedule = original(mod, choice, is_gpu=is_gpu)
        [block] = schedule.get_child_blocks(schedule.get_sblock("root"))
        schedule.annotate(block, "pragma_import_llvm", "define void @main() { ret void }")
        return schedule

    monkeypatch.setattr(tiled_transpose, "tiled", injecting)
    mod_json = workload_of(of_tensors(transpose), name="transpose").mod_json

    with pytest.raises(InvalidRequest, match="pragma_import_llvm"):
        propose(ProposeTask(mod_json=mod_json, target=HOST), SearchState(mod_json, HOST))


def test_a_rule_that_fails_is_named(installed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the entry point and the remedy."""
    import tiled_transpose

    def failing(mod: Any) -> None:
        raise ValueError("no luck")

    monkeypatch.setattr(tiled_transpose, "shape_of_transpose", failing)

    with pytest.raises(InvalidRequest, match=r"the rule 'transpose' .* failed: ValueError: no luck; correct it"):
        fleet.design_space(of_tensors(product), "host")


def arrays(specs: tuple[TensorSpec, ...]) -> list[Any]:
    rng = np.random.default_rng(0)
    return [
        rng.standard_normal(spec.shape).astype(spec.dtype)
        if "float" in spec.dtype
        else rng.integers(0, 4, spec.shape).astype(spec.dtype)
        for spec in specs
    ]


def run(mod: Any, arguments: list[Any]) -> Any:
    import tvm

    given = [tvm.runtime.tensor(array) for array in arguments]
    compile_quickly(mod)["main"](*given)
    return given[-1].numpy()
