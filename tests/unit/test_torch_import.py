"""PyTorch programs, beside PyTorch itself. Skipped where PyTorch is not installed: it is an extra."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fleet.errors import ImportFailed
from fleet.models.from_python import model_file
from fleet.models.model import Model, import_model, load_model
from fleet.models.reference import reference_outputs
from tests.needs import needs
from tests.unit.onnx_cases import ours

torch: Any = needs("torch")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # torch.export warns of its own deprecations


class Masked(torch.nn.Module):
    """Positions counted from a mask, as in GPT-2 and Llama, and an initially empty cache."""

    def forward(self, ids: Any) -> Any:
        positions = (ids > 0).cumsum(-1)
        return torch.cat([torch.empty(0), positions * 2.0], dim=-1)


class Small(torch.nn.Module):
    """A convolution, a normalisation and a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Conv1d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm1d(8)
        self.recurrent = torch.nn.LSTM(8, 5, batch_first=True, bidirectional=True)

    def forward(self, x: Any) -> Any:
        out, (hidden, _) = self.recurrent(torch.relu(self.norm(self.first(x))).transpose(1, 2))
        return out, hidden


def saved(module: Any, args: tuple[Any, ...], path: Path, **options: object) -> Path:
    torch.export.save(torch.export.export(module.eval(), args, **options), path)
    return path


def assert_same(model: Model, inputs: list[Any]) -> None:
    reference = reference_outputs(model, inputs)

    assert reference is not None
    assert reference.by == "torch"
    for expected, actual in zip(reference.outputs, ours(model, inputs), strict=True):
        assert (expected.shape, expected.dtype) == (actual.shape, actual.dtype)
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_program_computes_the_same_as_pytorch(tmp_path: Path) -> None:
    """All outputs of a model with weights are right."""
    x = np.random.default_rng(0).standard_normal((2, 3, 6)).astype("float32")
    model = load_model(saved(Small(), (torch.from_numpy(x),), tmp_path / "small.pt2"))

    assert ("small", ("x",), (2, 3, 6)) == (model.title, model.input_names, model.inputs[0].shape)
    assert_same(model, [x])


def test_masks_are_counted(tmp_path: Path) -> None:
    """A cumulative sum of bool counts, and an empty tensor adds nothing; TVM alone fails on both."""
    ids = np.array([[0, 5, 0, 7]])

    assert_same(load_model(saved(Masked(), (torch.from_numpy(ids),), tmp_path / "masked.pt2")), [ids])


class Indexed(torch.nn.Module):
    """Elements by index, also from the end: given indices, constant ones, one for each axis, and stores."""

    def forward(self, x: Any, at: Any) -> Any:
        return x[at], x[:, [-1, 2]], x[at, at], torch.index_put(x, (at, at), torch.ones(3))


def test_places_are_counted_from_the_end(tmp_path: Path) -> None:
    """PyTorch's negative indices count from the end; TVM would read before the tensor."""
    inputs = (torch.arange(35.0).reshape(5, 7), torch.tensor([-1, 1, -2]))

    assert_same(load_model(saved(Indexed(), inputs, tmp_path / "m.pt2")), [given.numpy() for given in inputs])


class Last(torch.nn.Module):
    """The last element."""

    def forward(self, x: Any) -> Any:
        return x[:, -1]


def of(function: Any) -> Any:
    """Return a function as a module."""
    module = torch.nn.Module()
    module.forward = function
    return module


X = torch.linspace(-2, 2, 24).reshape(2, 3, 4)
IMAGE = torch.linspace(-3, 3, 60).reshape(1, 2, 5, 6)
INTEGERS = torch.tensor([[3, -1, 4], [-1, -5, 9]])
AT = torch.tensor([-1, 1])
NO_NUMBER = torch.tensor([[1.0, float("nan")], [2.0, 4.0]])
OPERATORS = {
    "the last element": (lambda x: (x[:, -1], x[-1, :, -2]), X),
    "a place on some axes": (lambda x, at: (x[at, at], x[:, at, at], x[at, :, at], x[at, :, [0]]), X, AT),
    "put at places": (lambda x, at: (torch.index_put(x, (at,), x[0]), torch.index_put(x, (at, at), x[0, 0])), X, AT),
    "put where a condition holds": (lambda x: torch.index_put(x, (x > 0,), torch.tensor(5.0)), X),
    "scatter more than there are places for": (lambda x, at: x.scatter_add(1, at % 3, 2 * x), X, AT.reshape(1, 1, 2)),
    "unfold": (lambda x: x.unfold(1, 2, 1), X),
    "factors of sums": (lambda x: (torch.add(x, x[0], alpha=3), torch.sub(x, 1, alpha=2)), X),
    "no numbers left out": (lambda x: x.nanmean(1), NO_NUMBER),
    "conditions": (
        lambda x: (
            (x > 0) == (x < 1),
            (x > 0) + (x < 1),
            torch.eq(x > 0, False),
            torch.isfinite(x),
            x.any(1),
            (x > 9).any(),
        ),
        X,
    ),
    "selu, celu": (lambda x: (torch.selu(x), torch.celu(x, 0.3)), X),
    "whole numbers": (lambda x: (x // 2, x % -3, x.clamp(min=0), x.clamp(max=0.5), 2 ** x.abs(), x.exp()), INTEGERS),
    "products of whole numbers": (lambda x: (x @ x.T, x.prod(1), x.int().cumsum(1)), INTEGERS),
    "short counts": (lambda x: x.cumsum(0), torch.full((3,), 200, dtype=torch.uint8)),
    "types are mixed": (lambda x, n: (torch.where(x[0, :2, :3] > 0, n, 0.5), torch.cat((n, x[0, :, :3]))), X, INTEGERS),
    "sums of halves": (lambda x: (x.sum(1), x.mean(), x @ x.T), torch.full((2, 400), 290.0).half() / 8),
    "sums of doubles": (torch.nn.Linear(4, 2).double(), X.double()),
    "reductions": (lambda x: (x.amax((0, 2)), x.amin(), *x.min(1), *torch.var_mean(x, 1)), X),
    "norm without weights": (torch.nn.GroupNorm(1, 3, affine=False), X),
    "divisor of pools": (torch.nn.AvgPool2d(2, divisor_override=3), IMAGE),
    "largest of all": (torch.nn.AdaptiveMaxPool2d(1), IMAGE),
    "nearest": (lambda x: torch.nn.functional.interpolate(x, size=(8, 4)), IMAGE),
    "factor that sizes do not have": (torch.nn.Upsample(scale_factor=1.7, mode="bilinear"), IMAGE),
    "linear": (torch.nn.Upsample(size=7, mode="linear"), X),
    "grid": (lambda x: torch.nn.functional.grid_sample(x, x.reshape(1, 6, 5, 2), align_corners=False), IMAGE),
    "counted down": (lambda x: x[0, 0] * torch.arange(7, -1, -2), X),
    "outputs that are None": (lambda x: (None, x + 1, None, x), X),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operator_computes_the_same_as_pytorch(name: str, tmp_path: Path) -> None:
    """TVM alone misreads these operators, or lacks them."""
    function, *inputs = OPERATORS[name]
    module = function if isinstance(function, torch.nn.Module) else of(function)

    assert_same(load_model(saved(module, tuple(inputs), tmp_path / "m.pt2")), [given.numpy() for given in inputs])


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (torch.nn.MaxPool2d(2, return_indices=True), "max_pool"),
        (torch.nn.AvgPool2d(2, ceil_mode=True, divisor_override=3), "divisor_override"),
        (of(lambda x: torch.nn.functional.interpolate(x, size=(3, 3), mode="bilinear", antialias=True)), "antialias"),
        (of(lambda x: torch.conv2d(x.double(), torch.ones(1, 2, 1, 1).double())), "reads output 0 as .*float64"),
    ],
)
def test_operators_with_other_semantics_are_refused(module: Any, words: str, tmp_path: Path) -> None:
    """An error is better than wrong numbers."""
    model = load_model(saved(module, (IMAGE,), tmp_path / "m.pt2"))

    with pytest.raises(ImportFailed, match=words):
        import_model(model)


def test_last_element_of_an_open_axis(tmp_path: Path) -> None:
    """Language models take their last token like this."""
    length = {"x": {1: torch.export.Dim("length", min=2, max=64)}}
    path = saved(Last(), (X,), tmp_path / "m.pt2", dynamic_shapes=length)

    assert_same(load_model(path, shapes={"x": (2, 3, 4)}), [X.numpy()])


def test_open_dimension_is_closed_by_the_shape(tmp_path: Path) -> None:
    """A program exported for any batch is tuned for one."""
    x = np.random.default_rng(0).standard_normal((4, 3, 6)).astype("float32")
    batch = {"x": {0: torch.export.Dim("batch", min=1, max=64)}}
    path = saved(Small(), (torch.from_numpy(x),), tmp_path / "open.pt2", dynamic_shapes=batch)

    with pytest.raises(ImportFailed, match=r"'x' has dimension 0 = \w+\. .*--batch-size 1, or all dimensions"):
        load_model(path)
    assert_same(load_model(path, batch_size=4), [x])
    assert load_model(path, batch_size=4).digest != load_model(path, shapes={"x": (2, 3, 6)}).digest


def test_weights_are_drawn_anew(tmp_path: Path) -> None:
    """Weights depend on the seed, and the program and its reference have the same."""
    x = np.random.default_rng(0).standard_normal((2, 3, 6)).astype("float32")
    path = saved(Small(), (torch.from_numpy(x),), tmp_path / "small.pt2")
    models = [load_model(path, random_weights_seed=seed) for seed in (0, 1)]

    answers = [reference_outputs(model, [x]) for model in models]

    assert answers[0] is not None
    assert answers[1] is not None
    assert np.abs(answers[0].outputs[0] - answers[1].outputs[0]).max() > 1e-3
    assert_same(models[0], [x])


def test_file_that_is_no_program_is_named(tmp_path: Path) -> None:
    """The error names the file as the cause."""
    path = tmp_path / "broken.pt2"
    path.write_bytes(b"no program")

    with pytest.raises(ImportFailed, match=r"broken\.pt2 is no program as torch\.export\.save writes it"):
        load_model(path)


def test_a_module_is_left_in_training_as_it_was(tmp_path: Path) -> None:
    """Training can go on after the export; a frozen part stays frozen."""
    module = Small().train()
    module.norm.eval()

    model_file(module, (torch.zeros(1, 3, 16),), tmp_path)

    assert [module.training, module.first.training, module.norm.training] == [True, True, False]
