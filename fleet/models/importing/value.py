"""A model as every frontend gives it: one picklable value, so that import and build happen in pool workers."""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass

from fleet.domain.measuring import TensorSpec
from fleet.errors import InvalidRequest


class ModelFormat(enum.StrEnum):
    """What wrote a model, and so which frontend reads it."""

    ONNX = "onnx"
    TORCH = "torch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model with static shapes."""

    title: str
    """File name without its ending."""

    format: ModelFormat
    digest: str
    """ "sha256:<hex>" of what is computed: file content, shapes and weights."""

    input_names: tuple[str, ...]
    inputs: tuple[TensorSpec, ...]
    """inputs[i] belongs to input_names[i]."""

    output_names: tuple[str, ...]
    content: bytes
    """The serialised model in its format, shapes and weights as used."""

    @property
    def onnx_bytes(self) -> bytes:
        """The model as an ONNX file.

        Raises:
            InvalidRequest: it came in another format.
        """
        if self.format is not ModelFormat.ONNX:
            raise InvalidRequest(f"{self.title} is a model of format {self.format}; this needs ONNX")
        return self.content


def digest_of(content: bytes) -> str:
    """Return "sha256:<hex>" of what a model computes."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
