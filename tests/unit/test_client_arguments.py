"""Arguments of remote calls: conversion, and the checks before anything is sent."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from fleet.artifacts.artifact import Artifact
from fleet.client import arrays
from fleet.client.remote import call_arguments, time_arguments
from fleet.domain.measuring import ModuleKind, Tensor, TensorSpec
from fleet.errors import InvalidRequest

IN = TensorSpec((2, 3), "float32")
OUT = TensorSpec((2,), "float32", is_output=True)


def artifact(*args: TensorSpec, kind: ModuleKind = ModuleKind.FUNCTIONS) -> Artifact:
    return Artifact(path=Path("m.so"), digest="sha256:0", args=args, module_kind=kind)


@pytest.mark.parametrize(
    "dtype", ["float32", "float16", "float64", "int8", "uint8", "int64", "bool", "bfloat16", "float8_e4m3fn"]
)
@pytest.mark.parametrize("shape", [(), (0, 3), (4,), (2, 3)])
def test_arrays_survive_the_wire(dtype: str, shape: tuple[int, ...]) -> None:
    """Every dtype and shape comes back as it went, scalars and empty arrays too."""
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(arrays.numpy_dtype(dtype))
    back = arrays.array_of(arrays.tensor_of(array))
    assert (array.dtype, array.shape) == (back.dtype, back.shape)
    np.testing.assert_array_equal(array, back)
    assert back.flags.writeable


def test_layout_and_byte_order_do_not_matter() -> None:
    """Transposed and big-endian arrays are sent row-major and little endian."""
    array = np.arange(6, dtype=">f4").reshape(2, 3).T
    tensor = arrays.tensor_of(array)
    assert tensor.spec == TensorSpec((3, 2), "float32")
    np.testing.assert_array_equal(array, arrays.array_of(tensor))


def test_ml_dtypes_have_their_dlpack_names() -> None:
    """A bfloat16 array is called bfloat16."""
    assert arrays.tensor_of(np.ones(1, ml_dtypes.bfloat16)).spec.dtype == "bfloat16"


@pytest.mark.parametrize("value", ["text", [1, 2], None, ((2,), 3), object()])
def test_unsupported_argument_types_are_refused(value: object) -> None:
    """Values other than arrays, specs, pairs and numbers are refused with an error that names the valid kinds."""
    with pytest.raises(InvalidRequest, match="pass an array"):
        arrays.as_argument(value)


def test_arrays_of_objects_are_refused() -> None:
    """Only numbers can be sent."""
    with pytest.raises(InvalidRequest, match="only numbers"):
        arrays.tensor_of(np.array([object()]))


def test_too_much_for_one_call_is_refused() -> None:
    """The error for arguments above the limit of a message names an alternative."""
    large = np.broadcast_to(np.zeros(1, "float32"), (70 * 2**20,))
    with pytest.raises(InvalidRequest, match="filled on the device"):
        arrays.sendable([large])


def test_short_content_is_refused() -> None:
    """A tensor with too many or too few bytes for its shape is an error, not a wrong array."""
    tensor = Tensor(TensorSpec((2,), "float32"), b"1234")
    with pytest.raises(InvalidRequest, match="has 8 bytes, 4 came"):
        arrays.array_of(tensor)


def test_room_for_outputs_is_put_in_its_place() -> None:
    """Inputs are given, outputs are added where the function has them; a Relax VM takes inputs only."""
    given = np.zeros((2, 3), "float32")
    assert [OUT, given] == call_arguments(artifact(OUT, IN), [given], None)
    assert len(call_arguments(artifact(IN, OUT, kind=ModuleKind.RELAX_VM), [given], None)) == 1


def test_arguments_of_another_function_are_not_reused() -> None:
    """The known arguments belong to a single function."""
    assert call_arguments(artifact(IN, OUT), [1, 2.5, True], "other") == [1, 2.5, 1]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], r"main takes 1 arguments \(float32\[2,3\]\), 0 were given"),
        ([((2, 4), "float32")], r"argument 0 of main: expected float32\[2,3\], given float32\[2,4\]"),
        ([((2, 3), "float16")], r"argument 0 of main: expected float32\[2,3\], given float16\[2,3\]"),
        ([7], "argument 0 of main: expected .* given the number 7"),
    ],
)
def test_wrong_arguments_are_named_with_both_shapes(args: list[object], message: str) -> None:
    """The error names the argument, its expected type and its actual type."""
    with pytest.raises(InvalidRequest, match=message):
        call_arguments(artifact(IN, OUT), args, None)


def test_timing_takes_known_all_or_inputs_only() -> None:
    """All arguments, or only the outputs, may be left out for timing."""
    known = artifact(IN, OUT)
    spec = TensorSpec((2, 3), "float32")
    assert time_arguments(known, None, None) == [IN, OUT]
    assert time_arguments(known, [((2, 3), "float32")], None) == [spec, OUT]
    assert time_arguments(known, [((2, 3), "float32"), ((2,), "float32")], None) == [spec, OUT]
    with pytest.raises(InvalidRequest, match="not known"):
        time_arguments(artifact(), None, None)
