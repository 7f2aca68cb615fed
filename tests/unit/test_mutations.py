"""Mutations: workloads of other sizes and types, made by rules."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cross.targets.target import parse_target
from fleet.cli.main import app
from fleet.errors import ConfigError, InvalidRequest
from fleet.fragments.built import shapes_of
from fleet.fragments.dimensions import dimensions_of
from fleet.fragments.expressions import Expression
from fleet.fragments.faithful import program_of
from fleet.fragments.fragment import Attribute, Call, Fragment, Operand, Shape, Tensor
from fleet.fragments.links import linked
from fleet.fragments.lowering import Reason, Refusal, tunable
from fleet.fragments.mutation import mutated
from fleet.fragments.relations import regroup
from fleet.fragments.rules import parse_rules
from fleet.fragments.workload_file import Entry, to_text
from fleet.fragments.workload_reading import parse_workloads
from tests.fragments import entry_of

_TARGET = parse_target('{"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2}')


def floats(*shape: int, values: tuple[float, ...] = ()) -> Tensor:
    return Tensor(shape=shape, dtype="float32", values=values)


def call(operator: str, *operands: Operand, **attributes: Attribute) -> Call:
    return Call(operator=operator, operands=operands, attributes=attributes)


def convolution(*operands: Operand, stride: int = 1, pad: int = 1, groups: int = 1) -> Call:
    return call(
        "nn.conv2d",
        *operands,
        strides=(stride, stride),
        padding=(pad,) * 4,
        dilation=(1, 1),
        groups=groups,
        data_layout="NCHW",
        kernel_layout="OIHW",
        out_layout="NCHW",
        out_dtype=None,
    )


def residual(rows: int = 1, channels: int = 8, size: int = 14) -> Fragment:
    """A 3x3 convolution with a bias and a residual."""
    return Fragment(
        inputs=(floats(rows, channels, size, size), floats(rows, 16, size, size)),
        weights=(floats(16, channels, 3, 3), floats(16)),
        calls=(
            convolution("i0", "w0"),
            call("reshape", "w1", Shape(shape=(1, 16, 1, 1))),
            call("add", "c0", "c1"),
            call("add", "i1", "c2"),
            call("nn.relu", "c3"),
        ),
    )


def dense(rows: int, inner: int, columns: int) -> Fragment:
    """A product of a transposed weight, with a bias, in heads of 8 columns."""
    return Fragment(
        inputs=(floats(1, rows, inner),),
        weights=(floats(columns, inner), floats(columns)),
        calls=(
            call("permute_dims", "w0", axes=(1, 0)),
            call("matmul", "i0", "c0", out_dtype=None),
            call("add", "w1", "c1"),
            call("reshape", "c2", Shape(shape=(1, rows, columns // 8, 8))),
            call("permute_dims", "c3", axes=(0, 2, 1, 3)),
        ),
    )


def changed(fragment: Fragment, **values: int | str) -> Fragment:
    """Return a mutation that TVM's inference accepts."""
    found = linked(fragment, shapes_of(fragment))
    made = mutated(found, dimensions_of(found), values)
    shapes_of(made)
    return made


@pytest.mark.slow
def test_a_size_reaches_weights_biases_and_residuals() -> None:
    """Rows, channels, columns and sizes of a convolution are those of one that was written by hand."""
    assert changed(residual(), N=4, C=32, H=28, W=28) == residual(rows=4, channels=32, size=28)

    wide = changed(residual(), O=48)
    assert [one.shape for one in wide.weights] == [(48, 8, 3, 3), (48,)]
    assert wide.inputs[1].shape == (1, 48, 14, 14)
    assert wide.calls[1].operands[1] == Shape(shape=(1, 48, 1, 1))


def test_a_stride_shrinks_the_residual_and_padding_follows_the_kernel() -> None:
    """Sizes of results are computed as TVM infers them."""
    half = changed(residual(), stride=2)
    assert half.inputs[1].shape == (1, 16, 7, 7)

    same = changed(residual(), KH=5, KW=1)
    assert same.calls[0].attributes["padding"] == (2, 0, 2, 0)
    assert same.inputs[1].shape == (1, 16, 14, 14)


def test_a_size_behind_a_pool_reaches_the_input_before_it() -> None:
    """The costliest operator's dimensions are named; the pool before it gets the input that it needs."""
    pool = call(
        "nn.max_pool2d",
        "i0",
        pool_size=(3, 3),
        strides=(2, 2),
        dilation=(1, 1),
        padding=(1, 1, 1, 1),
        ceil_mode=False,
        count_include_pad=False,
        layout="NCHW",
        out_layout="NCHW",
    )
    fragment = Fragment(
        inputs=(floats(1, 8, 112, 112),),
        weights=(floats(8, 8, 3, 3),),
        calls=(pool, convolution("c0", "w0"), call("add", "c0", "c1")),
    )

    assert changed(fragment, H=28, W=14).inputs[0].shape == (1, 8, 56, 28)


def test_a_depthwise_convolution_keeps_one_group_per_channel() -> None:
    """Other groups have to divide the channels."""
    depthwise = Fragment(
        inputs=(floats(1, 8, 14, 14),),
        weights=(floats(8, 1, 3, 3), floats(1, 8, 1, 1)),
        calls=(convolution("i0", "w0", groups=8), call("add", "c0", "w1")),
    )

    for made in (changed(depthwise, C=32), changed(depthwise, O=32)):
        assert made.calls[0].attributes["groups"] == 32
        assert [one.shape for one in (*made.inputs, *made.weights)] == [(1, 32, 14, 14), (32, 1, 3, 3), (1, 32, 1, 1)]
    assert changed(depthwise, groups=2).weights[0].shape == (8, 4, 3, 3)
    with pytest.raises(InvalidRequest, match="3 groups do not divide 8 and 8 channels"):
        changed(depthwise, groups=3)
    with pytest.raises(InvalidRequest, match="C would be 16 instead of 8: it is linked"):
        changed(depthwise, C=8, O=16)


def test_sizes_that_cannot_be_are_refused_before_tvm_sees_them() -> None:
    """A window larger than its source, and weights that would fill the memory."""
    plain = Fragment(
        inputs=(floats(1, 8, 14, 14),), weights=(floats(8, 8, 3, 3),), calls=(convolution("i0", "w0", pad=0),)
    )

    with pytest.raises(InvalidRequest, match="the size of an axis would be -1"):
        changed(plain, H=1)
    with pytest.raises(InvalidRequest, match="weights and constants would have"):
        changed(residual(), C=2**20, O=2**20)


def test_constants_that_would_fill_the_memory_are_refused_before_lowering() -> None:
    """Weights, and the constants that operators of a file compute, in a file from anybody."""
    zeros = call("zeros", Shape(shape=(2**15, 2**15)), dtype="float32")
    computed = Fragment(inputs=(floats(2**15),), weights=(), calls=(zeros, call("add", "i0", "c0")))

    for fragment in (computed, dense(1, 2**15, 2**15)):
        refused = tunable(entry_of(fragment), _TARGET)
        assert isinstance(refused, Refusal)
        assert refused.reason is Reason.SIZES


@pytest.mark.slow
def test_a_mutation_has_the_program_of_the_layer_it_imitates() -> None:
    """Rows, inner size and columns of a product, and the number of heads, which follows."""
    assert changed(dense(4, 16, 24), M=8, K=32, N=48) == dense(8, 32, 48)

    made, other = (program_of(one, _TARGET) for one in (changed(residual(), N=2, C=4), residual(2, 4)))
    assert made is not None
    assert other is not None
    assert made.shash == other.shash


@pytest.mark.parametrize("is_self_attention", [True, False])
def test_attention_is_two_products_with_a_softmax_between(is_self_attention: bool) -> None:
    """The number of keys follows that of queries only if both are equal in the fragment."""
    keys = 32 if is_self_attention else 20
    fragment = Fragment(
        inputs=(floats(1, 4, 32, 8), floats(1, 4, 8, keys), floats(1, 4, keys, 8)),
        weights=(floats(values=(8.0,)),),
        calls=(
            call("matmul", "i0", "i1", out_dtype=None),
            call("divide", "c0", "w0"),
            call("nn.softmax", "c1", axis=-1),
            call("matmul", "c2", "i2", out_dtype=None),
        ),
    )

    made = changed(fragment, N=2, heads=6, S=64, D=16, dtype="float16")

    keys = 64 if is_self_attention else 20
    assert [one.shape for one in made.inputs] == [(2, 6, 64, 16), (2, 6, 16, keys), (2, 6, keys, 16)]
    assert {one.dtype for one in (*made.inputs, *made.weights)} == {"float16"}


def test_reshapes_are_split_into_the_smallest_groups() -> None:
    """Ones join the axis beside them, and shapes of other sizes have no groups."""
    assert regroup((1, 64, 256), (1, 64, 4, 64)) == [((0,), (0,)), ((1,), (1,)), ((2,), (2, 3))]
    assert regroup((1, 64, 256), (64, 256)) == [((0, 1), (0,)), ((2,), (1,))]
    assert regroup((1, 8, 7, 7), (1, 392)) == [((0,), (0,)), ((1, 2, 3), (1,))]
    assert regroup((2, 3), (5,)) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("9 ** 9 ** 9", "exceeds 2\\^63"),
        ("2 ** 64", "exceeds 2\\^63"),
        ("(-8) ** 0.5", "exceeds 2\\^63"),
        ("v.real", "has a Attribute; write arithmetic"),
        ("v.__class__", "has a Attribute"),
        ("print(v)", "has a Call"),
        ("v()", "has a Call"),
        ("[v] * 99999999", "a list is no number"),
        ("'a' * 9", "'a' is no number"),
        ("v[0]", "has a Subscript"),
        ("lambda: v", "has a Lambda"),
        ("[v for v in [1]]", "has a ListComp"),
        ("v; v", "is no expression"),
        ("v // 0", "cannot be computed"),
        ("w + 1", "unknown name 'w'; did you mean 'v'|known are"),
        ("-" * 301 + "1", "at most 300 characters"),
        ("(" * 299, "is no expression"),
    ],
)
def test_expressions_are_arithmetic_only(text: str, message: str) -> None:
    """Nothing is called, and neither time nor memory explodes."""
    with pytest.raises(ConfigError, match=message):
        Expression(text, names=frozenset({"v", "N"}), where="rules.yaml").value({"v": 8, "N": 1})


def test_expressions_give_numbers_and_lists() -> None:
    """Names stand for sizes; comparisons make conditions."""
    names = frozenset({"v", "N", "H"})

    assert Expression("[v, v * 2, (v + 1) // 2]", names=names, where="").value({"v": 7}) == [7, 14, 4]
    assert Expression("N * H <= 2 ** 5 and not H == 3", names=names, where="").value({"N": 4, "H": 8}) is True


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- match: '*'\n  set: {strides: 2}", "r.yaml: line 2: .*unknown dimension 'strides'; did you mean 'stride'"),
        ("- match: '*'\n  set: {'H,X': 2}", "unknown dimension 'X'"),
        ("- match: '*'\n  set: {N: 0}", "line 2: .*the size 0 is no whole number from 1 to 2"),
        ("- match: '*'\n  set: {N: 1.5}", "the size 1.5 is no whole number"),
        ("- match: '*'\n  set: {N: '[2 ** 21]'}", "the size 2097152 is no whole number"),
        ("- match: '*'\n  set: {N: .nan}", "is no whole number"),
        ("- match: '*'\n  set: {N: yes}", "True is no size"),
        ("- match: '*'\n  set: {N: 'v > 2'}", "True is no size|False is no size"),
        ("- match: '*'\n  set: {N: v ** v ** v ** v}", "exceeds 2"),
        ("- match: '*'\n  set: {dtype: float31}", "unknown type 'float31'; did you mean 'float32'"),
        ("- match: '*'\n  set: {'dtype,N': 1}", "dtype shares its value with no size"),
        ("- match: '*'\n  set: {N: 1, 'N,C': 2}", "sets N more than once"),
        ("- match: '*'\n  set: {N: 1}\n  were: N", "line 3: .*unknown key 'were'; did you mean 'where'"),
        ("- match: '*'\n  set: {N: 1}\n  where: X < 3", "unknown name 'X'"),
        ("- match: '*'\n  set: {N: !!python/name:os.system x}", "line 2: the tag .* is not allowed here"),
        ("- match: '*'\n  set: {N: &a 1, C: *a}", "an alias or anchor is not allowed"),
        ("- match: '*'\n  set: {}", "names no dimension"),
        ("- match: '*'", "the key 'set' is missing"),
        ("match: '*'", "expected a list of 1 to"),
    ],
)
def test_rules_that_cannot_work_are_refused_with_their_line(text: str, message: str) -> None:
    """Each message names the place, and the nearest word for an unknown one."""
    with pytest.raises(ConfigError, match=message):
        [list(rule.combinations(dict.fromkeys("NCHW", 8))) for rule in parse_rules(text, where="r.yaml")]


def test_the_rules_of_the_how_to_can_be_read() -> None:
    """The example of the page parses."""
    page = (Path(__file__).parents[2] / "docs/how-to/workloads.md").read_text()

    (rule,) = parse_rules(page.partition("```yaml\n")[2].partition("```")[0], where="workloads.md")

    assert rule.names == {"N", "C", "H", "W", "dtype"}


def test_a_rule_gives_all_combinations_that_fulfil_its_condition() -> None:
    """Dimensions joined by a comma share their value."""
    (rule,) = parse_rules("- {match: 'a*', set: {N: [1, v], 'H,W': 'v * 2', dtype: float16}, where: N < 9}", where="r")

    assert rule.matches("attention")
    assert list(rule.combinations({"N": 4, "H": 5, "W": 6})) == [
        {"N": 1, "H": 10, "W": 10, "dtype": "float16"},
        {"N": 4, "H": 10, "W": 10, "dtype": "float16"},
    ]


def run(folder: Path, rules: str, *options: str) -> tuple[int, str, str]:
    """Mutate a file of one convolution and one product."""
    operators = {"conv2d 3x3 8->16 14x14": residual(), "matmul 4x16x24": dense(4, 16, 24)}
    entries = [
        Entry(operator=name, name=name.split()[0], shash=str(n), operations=1.0, fragment=one)
        for n, (name, one) in enumerate(operators.items())
    ]
    (folder / "w.yaml").write_text(to_text(entries, _TARGET))
    (folder / "rules.yaml").write_text(rules)
    paths = [str(folder / name) for name in ("w.yaml", "rules.yaml")]
    result = CliRunner().invoke(app, ["workloads", "mutate", *paths, "-o", str(folder / "more.yaml"), *options])
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.slow
def test_mutate_writes_each_program_once_and_counts_refusals(tmp_path: Path) -> None:
    """The new file can be read and mutated again."""
    rules = """
- {match: 'conv*', set: {N: [1, 2], stride: [1, 2]}, where: N * stride < 4}
- {match: '*', set: {M: 8, N: [20, 40]}}
- {match: 'matmul*', set: {M: 8, N: 40}}
"""

    code, stdout, stderr = run(tmp_path, rules, "--json")

    assert code == 0, stderr
    found = json.loads(stdout)
    written = parse_workloads((tmp_path / "more.yaml").read_text(), where="more.yaml").workloads
    assert found["workloads"] == len(written) == 4
    assert {one["reason"]: one["count"] for one in found["refused"]} == {
        "no such dimension": 1,
        "same operators as another": 1,
        "refused by TVM's inference": 1,
    }
    assert written[-1].operator == "matmul 8x16x40"
    assert len({one.shash for one in written}) == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rules", "options", "message"),
    [
        ("- {match: 'con*', set: {N: [1, 2, 3]}}", ("--limit", "2"), "the rules give 3 workloads; --limit allows 2"),
        (
            "- {match: 'pool*', set: {N: 1}}",
            (),
            "no workload matches 'pool\\*'; the first one is 'conv2d 3x3 8->16 14x14'",
        ),
        ("- {match: 'mat*', set: {M: 3, N: 3}}", (), "the rules give no workload"),
        ("- {match: 'mat*', set: {" + ", ".join(f"{n}: {list(range(1, 90))}" for n in "MKN") + "}}", (), "704969 comb"),
    ],
)
def test_mutate_writes_nothing_if_rules_give_nothing_or_too_much(
    tmp_path: Path, rules: str, options: tuple[str, ...], message: str
) -> None:
    """The message has the count and the way out."""
    code, _, stderr = run(tmp_path, rules, *options)

    assert code != 0
    assert re.search(message, stderr.replace("\n", " ")), stderr
    assert not (tmp_path / "more.yaml").exists()
