"""Allowlists for schedules and programs: code is refused, and all output of our spaces and of MetaSchedule passes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
import tvm

from cross.targets.intrinsics import load_intrinsics
from cross.targets.target import parse_target
from fleet.domain.program_check import ATTRIBUTES, INDEX_MAP_TYPES, OPERATORS, check_nodes, check_program
from fleet.domain.trace_check import ANNOTATIONS, INSTRUCTIONS, MOST_TRACE_BYTES, check_trace
from fleet.errors import InvalidRequest
from fleet.spaces.space import schedules
from fleet.workloads.traces import replay, trace_json
from fleet.workloads.workload import workload_of

if TYPE_CHECKING:
    from tvm.ir import IRModule
    from tvm.s_tir import Schedule

LLVM_IR = 'define i32 @planted() { ret i32 7 }\n@text = constant [8 x i8] c"PLANTED\\00"'
GET = ["GetSBlock", [], ["C", "main"], ["b0"]]
LOOPS = ["GetLoops", ["b0"], [], ["l1", "l2", "l3"]]
AVX2: dict[str, object] = {"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2}
VNNI: dict[str, object] = {"kind": "llvm", "mcpu": "cascadelake", "num-cores": 2}
NEON: dict[str, object] = {
    "kind": "llvm",
    "mtriple": "aarch64-linux-gnu",
    "mcpu": "cortex-a76",
    "mattr": ["+neon", "+dotprod"],
}
NEON["num-cores"] = 4
A100: dict[str, object] = {
    "kind": "cuda",
    "arch": "sm_80",
    "max_threads_per_block": 1024,
    "max_shared_memory_per_block": 49152,
}


def trace(*instructions: object, decisions: object = ()) -> str:
    return json.dumps([[GET, LOOPS, *instructions], list(decisions)])  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("instruction", "named"),
    [
        (["Annotate", ["l1", json.dumps(LLVM_IR)], ["pragma_import_llvm"], []], "pragma_import_llvm"),
        (["Annotate", ["b0", json.dumps(LLVM_IR)], ["pragma_import_llvm"], []], "pragma_import_llvm"),
        (["Annotate", ["l1", '"int f();"'], ["pragma_import_c"], []], "pragma_import_c"),
        (["Annotate", ["l1", '"x; y"'], ["meta_schedule.auto_tensorize"], []], "meta_schedule.auto_tensorize"),
        (["Annotate", ["l1", '"SSR"'], ["meta_schedule.parallel"], []], "meta_schedule.parallel"),
        (["Annotate", ["l1", {"a": 1}], ["meta_schedule.parallel"], []], "meta_schedule.parallel"),
        (["Annotate", ["l1", [[[[[[1]]]]]]], ["software_pipeline_stage"], []], "software_pipeline_stage"),
        (["Annotate", ["l1", 10**30], ["meta_schedule.parallel"], []], "meta_schedule.parallel"),
        (["UnsafeSetDType", ["b0"], [0, "handle"], []], "UnsafeSetDType"),
        (["Tensorize", ["l1"], ["a b", True], []], "a b"),
        (["Bind", ["l1"], ["anything"], []], "anything"),
        (["CacheRead", ["b0", []], [0, "somewhere"], ["b9"]], "somewhere"),
        ([["Annotate"], [], [], []], "this kind"),
        (["Parallel", "l1", [], []], "its form"),
    ],
)
def test_a_step_that_is_not_known_is_refused_by_number_and_key(instruction: list[Any], named: str) -> None:
    with pytest.raises(InvalidRequest, match="instruction 2 of its trace") as refused:
        check_trace(trace(instruction))

    assert named in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "[[], [], []]",
        '[[["Parallel"]], []]',
        "[" * 100_000,
        trace(decisions=[[0, "text"]]),
        trace(decisions=[[0, {"a": 1}]]),
        " " * (MOST_TRACE_BYTES + 1),
    ],
    ids=range(9),
)
def test_a_text_that_is_no_trace_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="trace"):
        check_trace(text)


def index_map(*final: dict[str, Any], operator: str = "") -> str:
    nodes: list[dict[str, Any]] = [{"type": "None"}, *final]
    nodes += [{"type": "ir.Op", "data": operator}] if operator else []
    return json.dumps({"root_index": 1, "nodes": nodes, "metadata": {"tvm_version": "0.27.0"}})


def test_a_mapping_of_indices_holds_arithmetic_only() -> None:
    """It becomes part of the program, so a call in it would be code as well."""
    step = ["TransformLayout", ["b0", index_map({"type": "ir.IntImm"})], [1, 0, None, 0], []]
    check_trace(trace(step))

    step[1] = ["b0", index_map({"type": "ir.Call", "data": {"op": 2}}, operator="tirx.call_extern")]
    with pytest.raises(InvalidRequest, match=r"ir\.Call"):
        check_trace(trace(step))
    step[1] = ["b0", '{"root_index']
    with pytest.raises(InvalidRequest, match="not JSON"):
        check_trace(trace(step))


def program(compute: Callable[[Any, Any], Any], dtype: str = "float32", size: int = 64) -> IRModule:
    """Return a function of two square matrices."""
    from tvm import te

    inputs = [te.placeholder((size, size), dtype, name=name) for name in "ab"]
    return tvm.IRModule({"main": te.create_prim_func([*inputs, compute(*inputs)])})


def _matmul(out_dtype: str, *, is_transposed: bool = False) -> Callable[[Any, Any], Any]:
    from tvm import te

    def compute(a: Any, b: Any) -> Any:
        k = te.reduce_axis((0, a.shape[1]), name="k")

        def term(i: Any, j: Any) -> Any:
            return a[i, k].astype(out_dtype) * (b[j, k] if is_transposed else b[k, j]).astype(out_dtype)

        return te.compute(a.shape, lambda i, j: te.sum(term(i, j), axis=k), name="C")

    return compute


@pytest.mark.parametrize("name", ["call_extern", "call_pure_extern", "call_packed", "call_llvm_intrin", "sort"])
def test_a_program_that_calls_foreign_code_is_refused(name: str) -> None:
    from tvm import te, tirx, topi

    calls: dict[str, Callable[[Any], Any]] = {
        "call_extern": lambda value: tirx.call_extern("float32", "system", value),
        "call_pure_extern": lambda value: tirx.call_pure_extern("float32", "system", value),
        "call_packed": lambda value: tirx.call_packed("runtime.module.loadfile_so", value).astype("float32"),
        "call_llvm_intrin": lambda value: tirx.call_llvm_intrin("float32", "llvm.sqrt.f32", value),
    }
    compute = topi.sort if name == "sort" else lambda a: te.compute(a.shape, lambda i, j: calls[name](a[i, j]))
    mod = program(lambda a, b: compute(a))

    with pytest.raises(InvalidRequest, match=r"its program"):
        check_program(tvm.ir.save_json(mod))


@pytest.mark.parametrize("where", ["function", "block", "loop", "module"])
def test_a_program_with_foreign_attributes_is_refused(where: str) -> None:
    from tvm.s_tir import Schedule

    mod = program(_matmul("float32"))
    schedule = Schedule(mod)
    (block,) = schedule.get_child_blocks(schedule.get_sblock("root"))
    if where == "loop":
        schedule.annotate(schedule.get_loops(block)[0], "pragma_import_llvm", LLVM_IR)
    if where == "block":
        schedule.annotate(block, "pragma_import_llvm", LLVM_IR)
    mod = schedule.mod
    if where == "function":
        mod = tvm.IRModule({"main": mod["main"].with_attr("pragma_import_llvm", LLVM_IR)})
    if where == "module":
        mod = mod.with_attr("external_mods", [])

    with pytest.raises(InvalidRequest, match=r"attribute.*(pragma_import_llvm|external_mods)"):
        check_program(tvm.ir.save_json(mod))


@pytest.mark.parametrize("name", ["conv", "winograd", "attention", "recurrence", "sum", "bits", "cumsum", "argmax"])
def test_workloads_of_models_pass(name: str) -> None:
    check_program(workload_of(_WORKLOADS[name](), name=name).mod_json)


def test_a_program_that_passed_is_no_index_map() -> None:
    """An accepted text is remembered together with the node kinds that were allowed."""
    mod_json = tvm.ir.save_json(program(_matmul("float32")))

    for _ in range(2):
        check_program(mod_json)
        with pytest.raises(InvalidRequest, match="which no workload of a model needs"):
            check_nodes(mod_json, INDEX_MAP_TYPES)


def test_a_replay_refuses_before_tvm_sees_the_trace() -> None:
    """Every use of a schedule passes this check: builds, searches, seeds of other workloads, models."""
    mod = program(_matmul("float32"))
    planted = trace(["Annotate", ["l1", json.dumps(LLVM_IR)], ["pragma_import_llvm"], []])

    with pytest.raises(InvalidRequest, match=r"instruction 2 of its trace, 'Annotate'.*pragma_import_llvm"):
        replay(mod, planted)


def test_every_operator_in_the_list_is_one_of_this_tvm() -> None:
    from tvm.ir import Op

    assert set(Op.list_op_names()) >= OPERATORS


def _convolution() -> IRModule:
    from tvm import te, topi

    data, kernel = te.placeholder((1, 14, 14, 32), name="d"), te.placeholder((3, 3, 32, 32), name="k")
    found = topi.nn.relu(topi.nn.conv(data, kernel, 1, 1, 1, 1, "NHWC", "HWIO"))
    return tvm.IRModule({"main": te.create_prim_func([data, kernel, found]).with_attr("fleet.constants", [1])})


def _winograd() -> IRModule:
    from tvm import te

    from fleet.graph.winograd import winograd
    from fleet.graph.winograd_algorithm import Filtering

    data, kernel = te.placeholder((1, 12, 12, 32), name="d"), te.placeholder((6, 6, 32, 32), name="k")
    found = winograd(data, kernel, Filtering(4), (12, 12), (1, 1))
    return tvm.IRModule({"main": te.create_prim_func([data, kernel, found]).with_attr("fleet.constants", [1])})


def _attention() -> IRModule:
    from tests.unit.spaces.test_attention_schedules import CASES, module_of

    return module_of(CASES["bias and causal"])


def _recurrence() -> IRModule:
    from fleet.models.recurrent_layer import Cell, Recurrence
    from fleet.models.recurrent_program import recurrence_program

    activations = ("Sigmoid", "Tanh", "Tanh")
    layer = Recurrence(
        cell=Cell.LSTM, steps=5, batch=1, hidden=128, is_reverse=(False,), activations=activations, has_lengths=True
    )
    return tvm.IRModule({"main": recurrence_program(layer)})


def _of_topi(name: str, *arguments: object, dtype: str = "float32") -> Callable[[], IRModule]:
    from tvm import topi

    return lambda: program(lambda a, b: getattr(topi, name)(a, *arguments), dtype)


_WORKLOADS: dict[str, Callable[[], IRModule]] = {
    "conv": _convolution,
    "winograd": _winograd,
    "attention": _attention,
    "recurrence": _recurrence,
    "sum": _of_topi("sum", 1),
    "cumsum": _of_topi("cumsum", 1),
    "argmax": _of_topi("argmax", 1),
    "bits": _of_topi("bitwise_not", dtype="int32"),
}


def _surveyed() -> Iterator[tuple[str, dict[str, object], IRModule]]:
    """Yield rules ("": none), target and program of each writer of traces."""
    from tvm import topi

    float32 = program(_matmul("float32"))
    softmax = program(lambda a, b: topi.nn.softmax(a))
    for mod in (float32, softmax, *(_WORKLOADS[name]() for name in ("conv", "winograd", "attention", "sum"))):
        yield "llvm", AVX2, mod
        yield "cuda", A100, mod
    yield "", AVX2, _recurrence()
    for dtype, target in (("uint8", VNNI), ("int8", NEON)):
        yield "llvm", target, program(_matmul("int32"), dtype)
        yield "llvm", target, program(_matmul("int32", is_transposed=True), dtype)
    for dtype, out in (("float16", "float16"), ("float16", "float32"), ("int8", "int32")):
        yield "cuda-tensorcore", A100, program(_matmul(out, is_transposed=True), dtype, 256)


def _by_rules(mod: IRModule, target: dict[str, object], rules: str) -> Iterator[Schedule]:
    """Yield the schedules that MetaSchedule's rules make of a program."""
    from tvm.s_tir import meta_schedule as ms

    space = ms.space_generator.PostOrderApply(
        sch_rules=ms.ScheduleRule.create(rules),
        postprocs=ms.Postproc.create(rules),
        mutator_probs=ms.Mutator.create(rules),
    )
    if rules == "llvm":  # the rules of its instruction set, which have no name of their own
        space = "post-order-apply"
    context = ms.TuneContext(mod, target=tvm.target.Target(target), space_generator=space, num_threads=1)
    for schedule in context.generate_design_space():
        schedule.enter_postproc()
        all(step.apply(schedule) for step in context.space_generator.postprocs)
        yield schedule


@pytest.mark.slow
def test_all_that_our_spaces_and_metaschedules_rules_write_is_in_the_lists() -> None:
    """Includes post-processing. Listed kinds that no rule writes are named here, with the reason."""
    kinds, keys = set(), set()
    for rules, target, mod in _surveyed():
        parsed = parse_target(json.dumps(target))
        load_intrinsics(parsed)
        made = list(itertools.islice(schedules(mod, parsed), 6))
        if rules:
            made += _by_rules(mod, target, rules)
        for schedule in made:
            text = trace_json(schedule)
            check_trace(text)
            steps = json.loads(text)[0]
            kinds |= {step[0] for step in steps}
            keys |= {step[2][0] for step in steps if step[0] in ("Annotate", "Unannotate")}

    assert kinds <= INSTRUCTIONS
    assert INSTRUCTIONS - kinds <= {
        *("AddUnitLoop", "DecomposePadding", "Merge", "PadEinsum", "ReorderBlockIterVar", "SetScope"),
        *("GetOutputBlocks", "SamplePartitionedTile"),
    }, "primitives that change loops only: rules for other shapes, and spaces of users, have them"
    assert ANNOTATIONS - keys <= {
        *("double_buffer_scope", "meta_schedule.unroll_implicit", "schedule_rule", "fleet.left_to_compiler"),
        *("meta_schedule.layout_rewrite_preproc", "pragma_loop_partition_hint", "warp_execution"),
    }, "numbers only"
    assert "pragma_import_llvm" not in ANNOTATIONS | ATTRIBUTES
