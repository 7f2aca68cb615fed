"""Files of workloads, as they come from others."""

from __future__ import annotations

import pytest

from cross.targets.target import parse_target
from fleet.errors import ConfigError
from fleet.fragments.fragment import Call, Fragment, Shape, Tensor
from fleet.fragments.workload_file import Entry, to_text
from fleet.fragments.workload_reading import parse_workloads, read_workloads
from fleet.models.importing.workloads_file import MOST_BYTES

_TARGET = parse_target('{"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2}')
_ENTRY = Entry(
    operator="conv2d 3x3 8->8 7x7",
    name="fused_conv2d_add_relu",
    shash="123",
    operations=8000.0,
    models={"m": 2},
    fragment=Fragment(
        inputs=(Tensor(shape=(1, 8, 7, 7), dtype="float32"),),
        weights=(
            Tensor(shape=(8, 8, 3, 3), dtype="float32"),
            Tensor(shape=(2,), dtype="int64", values=(1, -1)),
            Tensor(shape=(), dtype="float32", values=(float("-inf"),)),
        ),
        calls=(
            Call(operator="nn.conv2d", operands=("i0", "w0"), attributes={"groups": 1, "strides": (1, 1), "x": None}),
            Call(operator="split", operands=("c0", 2, 0.5), attributes={"axis": 1}),
            Call(operator="concat", operands=(("c1.0", "c1.1"),), attributes={"axis": 1}),
            Call(operator="reshape", operands=("c2", Shape(shape=(1, -1)))),
        ),
    ),
)
_TEXT = to_text([_ENTRY], _TARGET)


def test_a_file_is_read_as_it_was_written() -> None:
    """Every field of a fragment survives: sizes, types, values, attributes and operands of all forms."""
    found = parse_workloads(_TEXT, where="w.yaml")

    assert found.workloads == (_ENTRY,)
    assert dict(found.target.options) == dict(_TARGET.options)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("format: 1", "format: 2", "w.yaml: line 1: format: only format 1 can be read"),
        ("format: 1", "format: 1\nformat: 1", "line 2: the key 'format' stands in line 1 already"),
        (
            "operator: nn.conv2d",
            "operator: nn.conv2",
            r"workloads\[0\]: fragment: .*'nn.conv2'; did you mean 'nn.conv2d",
        ),
        ("operator: nn.conv2d", "operator: call_tir", "line [0-9]+: .*unknown operator 'call_tir'"),
        ("operator: nn.conv2d", "operator: !!python/name:os.system x", "tag .*os.system.* is not allowed here"),
        ("name: fused", "name: &a fused", "line 5: an alias or anchor is not allowed here"),
        ("[i0, w0]", "[i0, w9]", "'w9' names a tensor that is not there before this call"),
        ("[i0, w0]", "[i0, c0]", "'c0' names a tensor that is not there"),
        ("[i0, w0]", "[i0, x]", "'x' names no tensor; write i0, w0, c0 or c0.1"),
        ("[i0, w0]", "[i0, [[[[[[w0]]]]]]]", "expected a number"),
        ("[i0, w0]", "[i0, .nan]", "expected a number, found nan"),
        ("[8, 8, 3, 3]", "[8, 8, 3, -3]", "expected a whole number from 0 to"),
        ("[8, 8, 3, 3]", "[8, 800, 3, 2147483647]", "has 41231686022400 elements; at most"),
        ("[8, 8, 3, 3]", "[1, 1, 1, 1, 1, 1, 1, 1, 1]", "expected a list of 0 to 8 items, found 9"),
        ("dtype: int64", "dtype: object", "unknown type 'object'"),
        ("values: [1, -1]", "values: [1, 2, 3]", "has 3 values for 2 elements"),
        ("axis: 1", "axis: 99999999999999999999", "needs more than 64 bits"),
        ("axis: 1", "axis: {a: 1}", "expected a number, found {'a': 1}"),
        ("axis: 1", "__class__: 1", "is not of the form"),
        ("operations: 8000.0", "operations: .inf", "expected a number from 0, found inf"),
        ("models: {m: 2}", "models: {m: 0}", "models: m: expected a whole number from 1"),
        ("hash: '123'", "hash: '0x1'", "'0x1' is not of the form"),
        ("kind: llvm", "kinds: llvm", "is no target: .*names no kind"),
        ("conv2d 3x3 8", '"a\\nb"\n  #', "printable characters"),
    ],
)
def test_values_that_are_not_allowed_are_refused_with_their_place(old: str, new: str, message: str) -> None:
    """A file comes from anybody: only bounded plain values and known operators get through."""
    assert old in _TEXT

    with pytest.raises(ConfigError, match=message):
        parse_workloads(_TEXT.replace(old, new, 1), where="w.yaml")


def test_a_file_without_workloads_is_refused() -> None:
    """Neither text, an empty list nor an unknown key is taken for a file of workloads."""
    for text, message in (
        ("a", "expected a mapping with format, target, workloads"),
        ("format: 1\ntarget: {kind: llvm}\nworkloads: []", "expected a list of 1 to"),
        (_TEXT + "extra: 1\n", "unknown key 'extra'"),
        ("[" * 100_000, "line 1: lists and mappings are nested more than 50 times"),
    ):
        with pytest.raises(ConfigError, match=message):
            parse_workloads(text, where="w.yaml")


def test_large_files_are_refused_before_they_are_parsed(tmp_path_factory: pytest.TempPathFactory) -> None:
    """PyYAML would take a minute."""
    path = tmp_path_factory.mktemp("large") / "w.yaml"
    path.write_bytes(b" " * (MOST_BYTES + 1))

    with pytest.raises(ConfigError, match="larger than 10000000 bytes"):
        read_workloads(path)
