"""Models of transformers and Keras, beside PyTorch. Skipped where these are not installed: they are extras."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fleet.errors import ImportFailed
from fleet.models.model import load_model
from tests.needs import needs
from tests.unit.test_torch_import import assert_same

os.environ.setdefault("KERAS_BACKEND", "torch")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

TINY = "vocab_size=50,hidden_size=32,num_hidden_layers=1,num_attention_heads=2,intermediate_size=64"


@pytest.fixture
def transformers() -> Any:
    return needs("transformers")


@pytest.mark.parametrize("config", [f"LlamaConfig:{TINY}", "GPT2Config:vocab_size=50,n_embd=32,n_layer=1,n_head=2"])
@pytest.mark.usefixtures("transformers")
def test_configuration_class_is_a_model(config: str) -> None:
    """Weights are random with a fixed seed, masks are the default, and the length is that of the given shape."""
    model = load_model(f"hf:{config}", shapes={"input_ids": (1, 7)})

    assert (config.partition(":")[0], ("input_ids",)) == (model.title, model.input_names)
    assert_same(model, [np.array([[3, 1, 4, 1, 5, 9, 2]])])


def test_folder_is_a_model(transformers: Any, tmp_path: Path) -> None:
    """A folder written by `save_pretrained` is loaded; an image model needs no shape."""
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, image_size=32
    )
    transformers.ViTModel(config).save_pretrained(tmp_path / "vit")

    model = load_model(f"hf:{tmp_path / 'vit'}")

    assert (1, 3, 32, 32) == model.inputs[0].shape
    assert_same(model, [np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype("float32")])


@pytest.mark.usefixtures("transformers")
def test_a_setting_may_be_a_list() -> None:
    """Commas in brackets are the list's."""
    sizes = "embedding_size=8,hidden_sizes=[8,16],depths=[1,1],layer_type=basic"
    model = load_model(f"hf:ResNetConfig:{sizes},image_size=32")

    assert (1, 3, 32, 32) == model.inputs[0].shape


@pytest.mark.usefixtures("transformers")
def test_neither_folder_nor_class_is_refused() -> None:
    """A hub's name is neither: nothing is downloaded."""
    with pytest.raises(ImportFailed, match=r"no folder 'google/bert'.*write hf:\./folder or hf:BertConfig"):
        load_model("hf:google/bert")


def test_keras_model_is_exported(tmp_path: Path) -> None:
    """Keras exports it on the torch backend, with the batch size of the flag."""
    keras: Any = needs("keras")
    keras.utils.set_random_seed(0)
    layers = [
        keras.layers.Conv2D(4, 3, activation="relu"),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(5),
    ]
    keras.Sequential([keras.Input((8, 8, 3), name="image"), *layers]).save(tmp_path / "small.keras")

    model = load_model(tmp_path / "small.keras", batch_size=2)

    assert (("image",), (2, 8, 8, 3)) == (model.input_names, model.inputs[0].shape)
    assert_same(model, [np.random.default_rng(0).standard_normal((2, 8, 8, 3)).astype("float32")])
