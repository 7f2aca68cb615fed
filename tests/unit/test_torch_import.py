"""PyTorch programs, beside PyTorch itself. Skipped where PyTorch is not installed: it is an extra."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

from fleet.errors import ImportFailed  # noqa: E402
from fleet.models.from_python import model_file  # noqa: E402
from fleet.models.model import Model, load_model  # noqa: E402
from fleet.models.reference import reference_outputs  # noqa: E402
from tests.unit.onnx_cases import ours  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # torch.export warns of its own deprecations


class Masked(torch.nn.Module):
    """Positions counted from a mask, as GPT-2 and Llama do, and a cache that begins empty."""

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
    reference = reference_outputs(model, inputs, repeat=1)

    assert reference is not None
    assert (reference.by, reference.median_sec is not None) == ("torch", True)
    for expected, actual in zip(reference.outputs, ours(model, inputs), strict=True):
        assert (expected.shape, expected.dtype) == (actual.shape, actual.dtype)
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_program_computes_what_pytorch_computes(tmp_path: Path) -> None:
    """All outputs, of a model with weights."""
    x = np.random.default_rng(0).standard_normal((2, 3, 6)).astype("float32")
    model = load_model(saved(Small(), (torch.from_numpy(x),), tmp_path / "small.pt2"))

    assert ("small", ("x",), (2, 3, 6)) == (model.title, model.input_names, model.inputs[0].shape)
    assert_same(model, [x])


def test_masks_are_counted(tmp_path: Path) -> None:
    """A cumulative sum of bool counts, and an empty tensor adds nothing; TVM alone fails on both."""
    ids = np.array([[0, 5, 0, 7]])

    assert_same(load_model(saved(Masked(), (torch.from_numpy(ids),), tmp_path / "masked.pt2")), [ids])


class Indexed(torch.nn.Module):
    """Elements by their places, counted from the end, too: given ones, constant ones, one for each axis, and stored."""

    def forward(self, x: Any, at: Any) -> Any:
        return x[at], x[:, [-1, 2]], x[at, at], torch.index_put(x, (at, at), torch.ones(3))


def test_places_are_counted_from_the_end(tmp_path: Path) -> None:
    """PyTorch's negative indices, which TVM takes for what lies before the tensor."""
    inputs = (torch.arange(35.0).reshape(5, 7), torch.tensor([-1, 1, -2]))

    assert_same(load_model(saved(Indexed(), inputs, tmp_path / "m.pt2")), [given.numpy() for given in inputs])


def test_open_dimension_is_closed_by_the_shape(tmp_path: Path) -> None:
    """A program exported for any batch is tuned for one."""
    x = np.random.default_rng(0).standard_normal((4, 3, 6)).astype("float32")
    batch = {"x": {0: torch.export.Dim("batch", min=1, max=64)}}
    path = saved(Small(), (torch.from_numpy(x),), tmp_path / "open.pt2", dynamic_shapes=batch)

    with pytest.raises(ImportFailed, match=r"'x' has dimension 0 = \w+\. .*--shape x=1,3,6"):
        load_model(path)
    assert_same(load_model(path, batch_size=4), [x])
    assert load_model(path, batch_size=4).digest != load_model(path, shapes={"x": (2, 3, 6)}).digest


def test_weights_are_drawn_anew(tmp_path: Path) -> None:
    """Seeded, and used by the program and its reference alike."""
    x = np.random.default_rng(0).standard_normal((2, 3, 6)).astype("float32")
    path = saved(Small(), (torch.from_numpy(x),), tmp_path / "small.pt2")
    models = [load_model(path, random_weights_seed=seed) for seed in (0, 1)]

    answers = [reference_outputs(model, [x]) for model in models]

    assert answers[0] is not None
    assert answers[1] is not None
    assert np.abs(answers[0].outputs[0] - answers[1].outputs[0]).max() > 1e-3
    assert_same(models[0], [x])


def test_file_that_is_no_program_is_named(tmp_path: Path) -> None:
    """What is wrong is the file, and it says which."""
    path = tmp_path / "broken.pt2"
    path.write_bytes(b"no program")

    with pytest.raises(ImportFailed, match=r"broken\.pt2 is no program as torch\.export\.save writes it"):
        load_model(path)


def test_a_module_is_left_in_training_as_it_was(tmp_path: Path) -> None:
    """Its user goes on training it; a part that was frozen stays so."""
    module = Small().train()
    module.norm.eval()

    model_file(module, (torch.zeros(1, 3, 16),), tmp_path)

    assert [module.training, module.first.training, module.norm.training] == [True, True, False]
