"""Shapes for inputs with open dimensions in the file."""

from __future__ import annotations

import pytest

from fleet.cli.shapes import parse_one_shape, parse_shapes
from fleet.errors import ConfigError, ImportFailed, InvalidRequest
from fleet.models.importing.shapes import OpenShape, close_shapes

BERT = {"ids": ("batch", "length"), "mask": ("batch", "length"), "table": (4, "")}


def test_dimensions_of_one_name_have_one_size() -> None:
    """The shape of one input closes the others that share its dimensions."""
    closed = close_shapes(BERT, {"ids": (1, 64), "table": (4, 7)})

    assert {"ids": (1, 64), "mask": (1, 64), "table": (4, 7)} == closed


def test_batch_size_closes_first_dimensions_only() -> None:
    """Named or not, every open first dimension is the batch; a fixed one stays."""
    closed = close_shapes({"x": ("", 3), "y": ("n", "n"), "z": (5, 2)}, {}, batch_size=8)

    assert {"x": (8, 3), "y": (8, 8), "z": (5, 2)} == closed


@pytest.mark.parametrize(
    ("shapes", "batch_size", "said"),
    [
        ({"ids": (1, 64), "mask": (1, 32)}, None, "'length' would be 64 and, by mask, 32"),
        ({"ids": (1, 64)}, 2, "'batch' would be 1 and, by the batch size, 2"),
        ({"table": (3, 7)}, None, "dimension 0 of input 'table' is 4 in the model, not 3"),
        ({"ids": (1, 64)}, 0, "at least one element, not 0"),
        ({"idz": (1, 64)}, None, "no input 'idz'; did you mean 'ids'"),
    ],
)
def test_contradictions_are_named(shapes: dict[str, tuple[int, ...]], batch_size: int | None, said: str) -> None:
    """The message names the dimension and both of its conflicting sizes."""
    with pytest.raises(InvalidRequest, match=said):
        close_shapes(BERT, shapes, batch_size)


def test_a_batch_size_goes_with_shapes_that_have_it() -> None:
    """The shape closes dimensions that the batch size leaves open; it must not contradict the batch size."""
    assert close_shapes({"x": ("", "length")}, {"x": (3, 4)}, batch_size=3) == {"x": (3, 4)}
    with pytest.raises(InvalidRequest, match="the batch size is 2, and by the shape of input 'x' it is 3"):
        close_shapes({"x": ("", "length")}, {"x": (3, 4)}, batch_size=2)


def test_batch_size_of_a_fixed_model_is_refused() -> None:
    """The batch size is refused instead of ignored."""
    with pytest.raises(InvalidRequest, match="batch size cannot be set"):
        close_shapes({"x": (1, 3)}, {}, batch_size=2)


def test_open_inputs_are_named_with_the_flag() -> None:
    """The error names only inputs that are still open, and the flag for the first of them."""
    with pytest.raises(
        ImportFailed, match=r"^inputs of unknown shape: 'table' has dimension 1 = \?\. .*--shape table=4,1"
    ):
        close_shapes(BERT, {"ids": (1, 64)})


def test_several_shapes_of_an_input_make_sets() -> None:
    """The n-th shapes belong together; an input that is named once has its shape in all of them."""
    found = parse_shapes(["ids=1,64", "ids=1,128", "mask=1,64", "table=4,7", "mask=1,128"])

    assert found == (
        {"ids": (1, 64), "mask": (1, 64), "table": (4, 7)},
        {"ids": (1, 128), "mask": (1, 128), "table": (4, 7)},
    )
    assert parse_shapes([]) == ({},)


def test_sets_of_shapes_have_to_be_complete() -> None:
    """It would be unclear to which of three shapes the second one of two belongs."""
    with pytest.raises(ConfigError, match="ids has 3, mask has 2; give each input as many shapes"):
        parse_shapes(["ids=1,1", "ids=1,2", "ids=1,3", "mask=1,1", "mask=1,2"])


def test_commands_that_look_at_one_set_of_shapes_refuse_several() -> None:
    """`fleet profile` and `fleet explain` refuse several sets instead of silently taking the last one."""
    with pytest.raises(ConfigError, match="2 sets of shapes; this command looks at one"):
        parse_one_shape(["ids=1,64", "ids=1,128"])


@pytest.mark.parametrize(
    ("shape", "advice"),
    [
        (("batch", 3, "h", "w"), "--shape x=1,3,224,224"),
        (("batch", "seq"), "--shape x=1,128"),
        (None, "--shape x=1,3,224,224"),
        (("n", 80, "frames"), "--shape x=1,80,128"),
        (("batch", 3, 32, 32), "--batch-size 1, or all dimensions: --shape x="),
    ],
)
def test_the_advice_has_sizes_that_make_sense(shape: OpenShape, advice: str) -> None:
    """Before, a copied `x=1,3,1,1` exported a model for images of one pixel."""
    with pytest.raises(ImportFailed, match=advice):
        close_shapes({"x": shape}, {})
