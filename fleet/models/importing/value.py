"""Common form of models of all formats: one picklable value, so that import and build happen in pool workers."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fleet.base.digests import digest_of
from fleet.domain.measuring import TensorSpec
from fleet.errors import BuildError, InvalidRequest


class ModelFormat(enum.StrEnum):
    """Format of a model, which selects its frontend."""

    ONNX = "onnx"
    TORCH = "torch"
    TFLITE = "tflite"
    PROGRAM = "program"
    """One TIR program, which nothing has to be imported for."""

    WORKLOADS = "workloads"
    """A file of workloads, each of which is lowered alone."""

    @property
    def is_whole(self) -> bool:
        """True for models, which can be built and compared as a whole."""
        return self not in (ModelFormat.PROGRAM, ModelFormat.WORKLOADS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model with static shapes. `others` has further sets of shapes, which the same program serves."""

    title: str
    """File name without its ending."""

    format: ModelFormat
    digest: str
    """ "sha256:<hex>" of the computation: file content, shapes and weights."""

    input_names: tuple[str, ...]
    inputs: tuple[TensorSpec, ...]
    """inputs[i] belongs to input_names[i]."""

    output_names: tuple[str, ...]
    stored: bytes | Path
    """The serialised model in its format, shapes and weights as used, or the file that holds it."""

    roundings: int = 0
    """Maximum number of roundings to 8-bit codes on the way to an output; 0: the model is not quantized."""

    others: tuple[Model, ...] = ()
    """The same model for other shapes of its inputs, each without others of its own."""

    @property
    def variants(self) -> tuple[Model, ...]:
        """The model for each set of shapes, its own first."""
        return self, *self.others

    @property
    def content(self) -> bytes:
        """The serialised model.

        Raises:
            OSError: its file is gone.
        """
        return self.stored if isinstance(self.stored, bytes) else self.stored.read_bytes()

    @property
    def size_bytes(self) -> int:
        """Size of the serialised model [bytes].

        Raises:
            OSError: its file is gone.
        """
        return len(self.stored) if isinstance(self.stored, bytes) else self.stored.stat().st_size

    def stored_in(self, folder: Path) -> Model:
        """Write the content to files in a folder, and return the model with their paths, which pickles without weights.

        Raises:
            InvalidRequest: the content is in a file already. A confined reader must not choose a file for other tasks.
            BuildError: the file cannot be written.
        """
        if not isinstance(self.stored, bytes):
            raise InvalidRequest("a model that was just read has its content in a file, not in memory")
        file = folder / digest_of(self.stored).replace(":", "-")  # its own digest comes from the reader
        try:
            file.write_bytes(self.stored)
        except OSError as error:
            raise BuildError(
                f"cannot write the model to {folder}: {error.strerror}; free some, or set $TMPDIR to another folder"
            ) from error
        return replace(self, stored=file, others=tuple(other.stored_in(folder) for other in self.others))

    @property
    def onnx_bytes(self) -> bytes:
        """The model as an ONNX file.

        Raises:
            InvalidRequest: it came in another format.
        """
        if self.format is not ModelFormat.ONNX:
            raise InvalidRequest(f"{self.title} is a model of format {self.format}; this needs ONNX")
        return self.content


def for_several_shapes(models: Sequence[Model]) -> Model:
    """Return one model for several sets of shapes, without repeated sets.

    Raises:
        InvalidRequest: an input has different numbers of dimensions in them.
    """
    first, *others = {model.inputs: model for model in models}.values()
    for model in others:
        for name, spec, other in zip(first.input_names, first.inputs, model.inputs, strict=True):
            if len(spec.shape) != len(other.shape):
                raise InvalidRequest(
                    f"input {name!r} has shapes of {len(spec.shape)} and of {len(other.shape)} dimensions; one program "
                    "takes one number of them"
                )
    if not others:
        return first
    digests = "".join(model.digest for model in (first, *others))
    return replace(first, digest=digest_of(digests.encode()), others=tuple(others))
