"""Reads models of the package transformers: `hf:FOLDER` as `save_pretrained` wrote it, or `hf:CONFIGCLASS`.

Nothing is downloaded. A folder without weights, and a configuration class, get random weights from a fixed seed.
Settings follow the class: `hf:BertConfig:num_hidden_layers=2,hidden_size=64`. The model is exported with
`torch.export`, with its main input as the only one, and is a PyTorch program from then on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cross.compile.library import last_lines
from fleet.errors import ImportFailed
from fleet.models.importing.importer import Importer
from fleet.models.importing.packages import require
from fleet.models.importing.shapes import Dim, Shapes, close_shapes
from fleet.models.importing.torch_file import TORCH, torch_models
from fleet.models.importing.value import Model

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from transformers import PretrainedConfig, PreTrainedModel

PREFIX = "hf:"
_SEED = 0
_COMMA = re.compile(r",(?![^\[\]]*\])")
"""A comma outside of brackets."""

_IMAGE_SIZE = 224
"""Default for configurations without a size, such as those of convolutional networks."""


def read_transformers(
    path: Path, shape_sets: Sequence[Shapes], batch_size: int | None, random_weights_seed: int | None
) -> list[Model]:
    """Read a model of transformers, for each set of shapes; see `fleet.models.model.load_model`."""
    require("transformers", "a model of transformers")
    source = str(path).removeprefix(PREFIX)
    try:
        model = _from_folder(Path(source)) if Path(source).is_dir() else _from_class(source)
    except ImportFailed:
        raise
    except Exception as error:  # transformers raises many classes, also from the model's code
        raise ImportFailed(f"{path}: transformers cannot make the model: {last_lines(error)}") from error
    name = str(model.main_input_name)
    title, found = _title(path), {name: _open_shape(name, model.config)}
    models: list[Model] = []
    for shapes in shape_sets:
        wanted = close_shapes(found, shapes, _batch(name, shapes, batch_size))
        models += torch_models(title, _export(model, name, wanted[name]), [{}], None, random_weights_seed)
    return [replace(model, input_names=(name,)) for model in models]


def _check(path: Path) -> None:
    """Refuse a missing folder, without loading transformers.

    Raises:
        ImportFailed: there is none, and no class could have that name.
    """
    source = str(path).removeprefix(PREFIX)
    if not Path(source).is_dir() and not source.partition(":")[0].isidentifier():
        raise ImportFailed(f"there is no folder {source!r}; write {PREFIX}./folder or {PREFIX}BertConfig")


def _title(path: Path) -> str:
    """Return a model's readable name: that of its folder or class."""
    return Path(str(path).removeprefix(PREFIX).partition(":")[0]).resolve().name


def _batch(name: str, shapes: Shapes, batch_size: int | None) -> int | None:
    return None if name in shapes and batch_size is None else batch_size or 1


def _from_folder(folder: Path) -> PreTrainedModel:
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    named = getattr(transformers, (config.architectures or [""])[0], transformers.AutoModel)
    if any(folder.glob("*.safetensors")) or any(folder.glob("*.bin")):
        return named.from_pretrained(folder, local_files_only=True)
    torch.manual_seed(_SEED)
    return named(config) if named is not transformers.AutoModel else named.from_config(config)


def _from_class(source: str) -> PreTrainedModel:
    import torch
    import transformers

    name, _, settings = source.partition(":")
    cls = getattr(transformers, name, None)
    if cls is None or not (isinstance(cls, type) and issubclass(cls, transformers.PretrainedConfig)):
        raise ImportFailed(
            f"{PREFIX}{source}: there is no folder {name!r}, and transformers has no configuration class of that name; "
            f"write {PREFIX}./folder or {PREFIX}BertConfig"
        )
    torch.manual_seed(_SEED)
    return transformers.AutoModel.from_config(cls(**_settings(settings)))


def _settings(text: str) -> dict[str, object]:
    """Parse "num_hidden_layers=2,depths=[1,1]"; values are JSON, or else words."""
    found: dict[str, object] = {}
    for part in filter(None, _COMMA.split(text)):
        name, _, value = part.partition("=")
        try:
            found[name] = json.loads(value)
        except json.JSONDecodeError:
            found[name] = value
    return found


def _open_shape(name: str, config: PretrainedConfig) -> tuple[Dim, ...]:
    if name == "pixel_values":
        size = getattr(config, "image_size", _IMAGE_SIZE)
        height, width = (size, size) if isinstance(size, int) else size
        return "batch", getattr(config, "num_channels", 3), height, width
    if name == "input_features":
        return "batch", config.num_mel_bins, 2 * config.max_source_positions
    return "batch", "length"


def _export(model: PreTrainedModel, name: str, shape: tuple[int, ...]) -> ExportedProgram:
    """Export a model for one shape of its main input, with the tensors that it returns as outputs."""
    import torch

    model = model.eval()
    model.config.use_cache = False

    class Answers(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, given: torch.Tensor) -> tuple[torch.Tensor, ...]:
            answer = self.model(**{name: given}).to_tuple()
            return tuple(part for part in answer if isinstance(part, torch.Tensor))

    dtype = torch.int64 if name == "input_ids" else torch.float32
    try:
        with torch.no_grad():
            return torch.export.export(Answers(), (torch.ones(shape, dtype=dtype),))
    except Exception as error:  # torch.export raises many classes, also from the model's code
        raise ImportFailed(f"torch.export cannot export {type(model).__name__}: {last_lines(error)}") from error


def _folder(path: Path) -> list[Path]:
    folder = Path(str(path).removeprefix(PREFIX))
    return [folder] if folder.is_dir() else []


TRANSFORMERS = Importer(
    forms=(f"{PREFIX}FOLDER", f"{PREFIX}CONFIGCLASS"),
    prefix=PREFIX,
    packages=("torch", "transformers"),
    read=read_transformers,
    check=_check,
    title=_title,
    files=_folder,
    frontend=TORCH.frontend,
)
