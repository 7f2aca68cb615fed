"""`fleet.schedule` and `fleet.design_space`: one function, its static schedule, and the choices it was taken from."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import fleet
from fleet.errors import ConfigError, InvalidRequest
from tests.programs import REPOSITORY, here
from tests.unit.quick_compile import compile_quickly

pytestmark = pytest.mark.slow

AVX512 = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v4"}


def product_tensors(rows: int = 64, columns: int = 64) -> list[Any]:
    from tvm import te, topi

    data, weights = te.placeholder((rows, 32), name="data"), te.placeholder((32, columns), name="weights")
    return [data, weights, topi.nn.matmul(data, weights)]


def as_function(name: str = "product") -> Any:
    from tvm import te

    return te.create_prim_func(product_tensors()).with_attr("global_symbol", name)


def test_the_example_of_the_page_runs() -> None:
    """It prints the space, compiles the schedule and compares the result with numpy's."""
    example = REPOSITORY / "examples/schedules/static.py"

    done = subprocess.run([sys.executable, example], env=here(), capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.startswith("product: ")
    assert done.stdout.endswith("right\n")


def test_each_form_of_a_function_has_the_same_schedule() -> None:
    """A module, a function and TE tensors; the module's name of the function stays."""
    import tvm
    import tvm_ffi

    function = as_function()

    of_module = fleet.schedule(tvm.IRModule({"product": function}), AVX512)
    of_function = fleet.schedule(function, json.dumps(AVX512))
    of_tensors = fleet.schedule(product_tensors(), tvm.target.Target(AVX512))

    assert [variable.name_hint for variable in of_module.functions] == ["product"]
    assert tvm_ffi.structural_equal(of_module, of_function)
    assert tvm_ffi.structural_equal(of_tensors["main"].body, of_function["product"].body, map_free_vars=True)


@pytest.mark.parametrize("options", [{}, {"lanes": 1}, {"lanes": 4, "cores": 8}, {"registers": 4, "l1_bytes": 1024}])
def test_a_schedule_is_right_for_any_assumed_facts(options: dict[str, int]) -> None:
    """Facts choose among right schedules, and never make a wrong one."""
    import tvm

    scheduled = fleet.schedule(product_tensors(), "host", **options)
    arrays = [np.random.default_rng(0).random(shape, dtype=np.float32) for shape in ((64, 32), (32, 64), (64, 64))]
    given = [tvm.runtime.tensor(array) for array in arrays]
    compile_quickly(scheduled)["main"](*given)

    np.testing.assert_allclose(given[2].numpy(), arrays[0] @ arrays[1], rtol=1e-5)


def test_options_replace_facts_of_the_target() -> None:
    """An option narrows vectors to 4 numbers although the target has 16."""
    assert fleet.design_space(product_tensors(), AVX512).knobs["lanes"] == (16,)
    assert fleet.design_space(product_tensors(), AVX512, lanes=4).knobs["lanes"] == (4,)


def test_a_space_prints_its_knobs_and_their_options() -> None:
    """One line for each knob; a function without knobs has one schedule."""
    from tvm import te

    data = te.placeholder((8, 8), name="data")
    copied = te.compute((8, 8), lambda i, j: data[i, j] + 1.0, name="sum")

    lines = str(fleet.design_space(product_tensors(), AVX512)).splitlines()

    assert lines[0].startswith("product: ")
    assert "  order    columns, rows" in lines
    assert lines[-1].startswith("  first choice: y=")
    assert str(fleet.design_space([data, copied], AVX512)) == "elementwise: one schedule"


def test_a_function_on_a_gpu_has_the_default_schedule() -> None:
    """Its loops are bound to blocks of threads so that it runs; options for processors are refused."""
    scheduled = fleet.schedule(as_function(), "sm_86")

    assert "threadIdx.x" in scheduled.script()
    with pytest.raises(InvalidRequest, match="lanes: facts of a processor"):
        fleet.schedule(as_function(), "sm_86", lanes=4)
    assert str(fleet.design_space(as_function(), "sm_86")) == "default: one schedule"


def test_unsuitable_input_is_refused_with_the_remedy() -> None:
    """Refused are several or no functions, other types, open sizes, targets without a kind, and unknown options."""
    import tvm
    from tvm import te

    size = te.var("n")
    data = te.placeholder((size,), name="data")
    is_open = [data, te.compute((size,), lambda i: data[i] + 1.0, name="sum")]
    pair = tvm.IRModule({"one": as_function("one"), "two": as_function("two")})

    for mod, text in [
        (pair, r"has 2 functions \(one, two\); give one: .*fleet.pipeline"),
        (tvm.IRModule({}), r"has 0 functions \(none\)"),
        ("product", "str: give an IRModule, a PrimFunc, or a list of TE tensors"),
        (is_open, "'main' has no static schedule for this target: .*sizes that are not fixed"),
    ]:
        with pytest.raises(InvalidRequest, match=text):
            fleet.schedule(mod, AVX512)
    with pytest.raises(ConfigError, match="names no kind"):
        fleet.schedule(as_function(), {"mcpu": "x86-64-v4"})
    with pytest.raises(InvalidRequest, match="'lane' is no fact of a processor; did you mean 'lanes'"):
        fleet.schedule(as_function(), AVX512, lane=4)
    for value in (0, True, 2.5):
        with pytest.raises(InvalidRequest, match="'lanes' is a positive whole number"):
            fleet.schedule(as_function(), AVX512, lanes=value)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="'has_scalar_operands' is True or False"):
        fleet.schedule(as_function(), AVX512, has_scalar_operands=1)
