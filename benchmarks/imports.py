"""The importable models among over 60 graphs of all kinds, as in the table of benchmarks/results/imports.md.

    python -m benchmarks.imports                       # all that can be made here, as a Markdown table
    python -m benchmarks.imports --only keras,tabular  # families or names, separated by commas
    python -m benchmarks.imports --check               # ends with 1 if the page does not match

Nothing is downloaded: graphs come from the onnx wheel, from `fleet.testing.models`, and, tiny and with random weights,
from configurations of transformers and applications of Keras, where these are installed. Every model is imported and
lowered to tensor programs for this machine; those with an answer are compiled, too, and compared with their reference.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from fleet.checking.numerics import make_inputs
from fleet.errors import FleetError
from fleet.export.targets import target_of
from fleet.models.importing.shapes import Shapes
from fleet.models.model import Model, bundled_model, load_model
from fleet.models.reference import reference_outputs
from fleet.testing.models import GENERATED, write
from fleet.workloads.extract import compile_model, extract

ONNX_WHEEL = (
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
    "vgg19",
    "zfnet512",
)
_TEXT = "vocab_size=64,hidden_size=32,num_hidden_layers=1,num_attention_heads=2,intermediate_size=64"
_IMAGE = "image_size=32,patch_size=8,hidden_size=32,num_hidden_layers=1,num_attention_heads=2,intermediate_size=64"
_SMALL = "hidden_sizes=[16,32,32,32],depths=[1,1,1,1],image_size=64"
_TOKENS: Mapping[str, tuple[int, ...]] = {"input_ids": (1, 12)}
TRANSFORMERS: Mapping[str, tuple[str, Shapes]] = {
    "Albert": (f"AlbertConfig:{_TEXT},embedding_size=16", _TOKENS),
    "Beit": (f"BeitConfig:{_IMAGE}", {}),
    "Bert": (f"BertConfig:{_TEXT}", _TOKENS),
    "BigBird": (f"BigBirdConfig:{_TEXT}", _TOKENS),
    "Bloom": ("BloomConfig:vocab_size=64,hidden_size=32,n_layer=1,n_head=2", _TOKENS),
    "CLIPVision": (f"CLIPVisionConfig:{_IMAGE}", {}),
    "ConvNext": (f"ConvNextConfig:{_SMALL}", {}),
    "ConvNextV2": (f"ConvNextV2Config:{_SMALL}", {}),
    "DeBERTa-v2": (f"DebertaV2Config:{_TEXT}", _TOKENS),
    "DeiT": (f"DeiTConfig:{_IMAGE}", {}),
    "Dinov2": (f"Dinov2Config:{_IMAGE}", {}),
    "DistilBert": ("DistilBertConfig:vocab_size=64,dim=32,n_layers=1,n_heads=2,hidden_dim=64", _TOKENS),
    "Electra": (f"ElectraConfig:{_TEXT},embedding_size=16", _TOKENS),
    "Falcon": ("FalconConfig:vocab_size=64,hidden_size=32,num_hidden_layers=1,num_attention_heads=2", _TOKENS),
    "Gemma": (f"GemmaConfig:{_TEXT},num_key_value_heads=1,head_dim=16", _TOKENS),
    "GPT2": ("GPT2Config:vocab_size=64,n_embd=32,n_layer=1,n_head=2", _TOKENS),
    "GPTNeoX": (f"GPTNeoXConfig:{_TEXT}", _TOKENS),
    "Llama": (f"LlamaConfig:{_TEXT}", _TOKENS),
    "Mamba": ("MambaConfig:vocab_size=64,hidden_size=32,num_hidden_layers=1,state_size=4", _TOKENS),
    "Mistral": (f"MistralConfig:{_TEXT},num_key_value_heads=1,head_dim=16", _TOKENS),
    "Mixtral": (f"MixtralConfig:{_TEXT},num_key_value_heads=1,num_local_experts=2", _TOKENS),
    "MobileNetV2": ("MobileNetV2Config:image_size=64,depth_multiplier=0.35", {}),
    "MobileViT": ("MobileViTConfig:image_size=64,hidden_sizes=[16,16,16],neck_hidden_sizes=[8,8,8,16,16,16,32]", {}),
    "MPNet": (f"MPNetConfig:{_TEXT}", _TOKENS),
    "OPT": (f"OPTConfig:{_TEXT},ffn_dim=64,word_embed_proj_dim=32", _TOKENS),
    "Phi": (f"PhiConfig:{_TEXT}", _TOKENS),
    "PoolFormer": ("PoolFormerConfig:hidden_sizes=[16,16,32,32],depths=[1,1,1,1]", {}),
    "Qwen2": (f"Qwen2Config:{_TEXT},num_key_value_heads=1", _TOKENS),
    "Qwen3": (f"Qwen3Config:{_TEXT},num_key_value_heads=1,head_dim=16", _TOKENS),
    "RegNet": ("RegNetConfig:hidden_sizes=[16,32,32,32],depths=[1,1,1,1],groups_width=8,embedding_size=16", {}),
    "ResNet": ("ResNetConfig:hidden_sizes=[16,32,32,32],depths=[1,1,1,1],embedding_size=16", {}),
    "Roberta": (f"RobertaConfig:{_TEXT}", _TOKENS),
    "RWKV": ("RwkvConfig:vocab_size=64,hidden_size=32,num_hidden_layers=2,attention_hidden_size=32", _TOKENS),
    "SegFormer": ("SegformerConfig:hidden_sizes=[8,16,16,32],depths=[1,1,1,1],num_attention_heads=[1,1,2,2]", {}),
    "Swin": ("SwinConfig:image_size=64,embed_dim=16,depths=[1,1],num_heads=[1,2],window_size=4", {}),
    "ViT": (f"ViTConfig:{_IMAGE}", {}),
    "XLMRoberta": (f"XLMRobertaConfig:{_TEXT}", _TOKENS),
}
"""Text after "hf:" and the shapes, by the name in the table."""

_PAGE = Path(__file__).parent.parent / "benchmarks/results/imports.md"
KERAS = ("ConvNeXtTiny", "DenseNet121", "EfficientNetB0", "MobileNet", "MobileNetV3Small", "Xception")
_KERAS_PIXELS = {"Xception": 96}
_COMPARED = frozenset({"squeezenet", "shufflenet", "keyword_spotting", "tabular", "segformer", "llama", "bert", "vit"})
_COMPARED |= {"Bert", "GPT2", "Llama", "ViT", "Swin", "ResNet", "Mamba"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """A model of the table."""

    name: str
    family: str
    needs: str
    """Package without which it cannot be made."""

    source: Callable[[Path], Path]
    """Make it in a folder, if it has to be made, and return the path or name to load."""

    shapes: Shapes = field(default_factory=dict)
    is_compared: bool = False

    @property
    def batch_size(self) -> int | None:
        """Only Keras leaves it open."""
        return 1 if self.family == "keras" else None


def surveys() -> list[Survey]:
    """Return all models of the table, in its order."""
    return [
        *(_survey(name, "onnx wheel", "onnx", partial(_bundled, name)) for name in ONNX_WHEEL),
        *(_survey(name, "generated", "onnx", partial(write, name)) for name in GENERATED),
        *(
            _survey(name, "transformers", "transformers", partial(_configured, text), shapes)
            for name, (text, shapes) in TRANSFORMERS.items()
        ),
        *(_survey(name, "keras", "keras", partial(_keras, name)) for name in KERAS),
    ]


def _bundled(name: str, _: Path) -> Path:
    return bundled_model(name)


def _configured(text: str, _: Path) -> Path:
    return Path(f"hf:{text}")


def _survey(name: str, family: str, needs: str, source: Callable[[Path], Path], shapes: Shapes | None = None) -> Survey:
    is_compared = name in _COMPARED
    return Survey(name=name, family=family, needs=needs, source=source, shapes=shapes or {}, is_compared=is_compared)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="benchmarks.imports", description=__doc__)
    parser.add_argument("--only", metavar="NAMES", help="families or models, separated by commas")
    parser.add_argument("--check", action="store_true", help="compare with benchmarks/results/imports.md")
    options = parser.parse_args(argv)
    chosen = set(options.only.split(",")) if options.only else None
    os.environ.setdefault("KERAS_BACKEND", "torch")
    print("| model | from | imports | largest difference |\n|---|---|---|---|")
    found = []
    for survey in surveys():
        if (chosen is None or {survey.name, survey.family} & chosen) and importlib.util.find_spec(survey.needs):
            found.append(row(survey))
            print(found[-1], flush=True)
    changed = differing(found, _PAGE.read_text()) if options.check else []
    for line in changed:
        print(f"the page says something else: {line}", file=sys.stderr)
    return 1 if changed else 0


def differing(rows: Sequence[str], page: str) -> list[str]:
    """Return the rows that are missing from a page; of differences only the order of magnitude counts."""
    told = {_essence(line) for line in page.splitlines()}
    return [row for row in rows if _essence(row) not in told]


def _essence(row: str) -> str:
    return re.sub(r"\b\de-(0[5-9]|[1-9]\d)\b", "small", row)


def row(survey: Survey) -> str:
    """Import a model and return its row of the table."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        try:
            seed = 0 if survey.family == "onnx wheel" and survey.is_compared else None
            model = load_model(
                survey.source(Path(folder)),
                shapes=survey.shapes,
                batch_size=survey.batch_size,
                random_weights_seed=seed,
            )
            extract(model, target_of("host"))
            imports = "yes"
            found = f"{difference(model, Path(folder)):.0e}" if survey.is_compared else "not compiled"
        except FleetError as error:
            imports, found = "no", str(error).splitlines()[0]
    print(f"{survey.name}: {time.monotonic() - started:.1f} s", file=sys.stderr)
    return f"| {survey.name} | {survey.family} | {imports} | {found} |"


def difference(model: Model, folder: Path) -> float:
    """Compile a model, run it, and return the largest difference from its reference over the largest answer."""
    import tvm
    from tvm import relax

    inputs = [array for array in make_inputs(model.inputs, 0) if isinstance(array, np.ndarray)]
    expected = reference_outputs(model, inputs)
    if expected is None:
        raise FleetError(f"{model.title}: there is no reference here")
    built = compile_model(model, target_of("host"), {}, folder)
    returned = relax.VirtualMachine(tvm.runtime.load_module(str(built.path)), tvm.cpu())["main"](
        *map(tvm.runtime.tensor, inputs)
    )
    outputs = [returned] if hasattr(returned, "numpy") else list(returned)
    pairs = [(ours.numpy(), theirs) for ours, theirs in zip(outputs, expected.outputs, strict=True)]
    return max(float(np.abs(ours - theirs).max() / (np.abs(theirs).max() or 1)) for ours, theirs in pairs)


def _keras(name: str, folder: Path) -> Path:
    import keras

    pixels = _KERAS_PIXELS.get(name, 64)
    model = getattr(keras.applications, name)(weights=None, input_shape=(pixels, pixels, 3), classes=10)
    model.save(folder / f"{name}.keras")
    return folder / f"{name}.keras"


if __name__ == "__main__":
    sys.exit(main())
