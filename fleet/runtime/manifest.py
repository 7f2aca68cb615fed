"""Facts about an exported model, `manifest.json` in its archive: values, and their JSON. No I/O.

A reader refuses a newer `FORMAT`; within one format, fields are only added, with a default for older files.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from fleet.base.plain import from_plain
from fleet.errors import ArtifactRefused, InvalidRequest

FORMAT = 1


MOST_THREADS = 4096
"""Limit on the threads of a model: more than any machine has, and within TVM's range."""


class Affinity(enum.StrEnum):
    """Placement of a model's threads on processors."""

    CORES = "cores"
    """Each thread on a core of its own, as during tuning. For machines that serve one model."""

    FREE = "free"
    """Threads are placed by the operating system. For machines that do other work, too."""

    @classmethod
    def of(cls, name: str) -> Affinity:
        """Return the one of a name. Raises InvalidRequest."""
        if name not in set(cls):
            raise InvalidRequest(f"there is no affinity {name!r}; known: {', '.join(cls)}")
        return cls(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorType:
    """An input or output."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """numpy's name: "float32"."""

    def __post_init__(self) -> None:
        """Raises:
        ValueError: a size is negative.
        """
        if any(size < 0 for size in self.shape):
            raise ValueError(f"{self.shape} is no shape")

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedRecord:
    """A measured schedule that went into the model."""

    workload: str
    """TVM's name of the operator: "fused_conv2d1_add1_relu1"."""

    operator: str
    """The name for people: "conv2d 1x1 64->16 55x55"."""

    shash: str
    """Structural hash of the operator in decimal, as the library and MetaSchedule write it."""

    uid: str
    """Uid of the library's record."""

    median_sec: float
    """Time of one call, alone, where it was measured."""

    is_static: bool = False
    """True for the workload's static schedule, which takes no trial. Unset in files of earlier versions."""

    pack: str = ""
    """Digest of the pack that the record is from; empty for one of the user's library. Unset in earlier versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """A file of the archive."""

    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Seeded inputs with the outputs that they should give: |output - expected| <= tolerance * (rms + |expected|)."""

    inputs: tuple[str, ...]
    """.npy files of the archive, in the order of the model's inputs."""

    outputs: tuple[str, ...]
    tolerances: tuple[float, ...]
    """Tolerances by output; 0 where it has to be equal. `rms` is the root mean square of the expected output."""

    reference: str
    """Engine of the reference outputs:  "onnxruntime" or "onnx", the reference implementation."""

    seed: int
    tolerances_by: str = "sums"
    """Basis of the tolerances: "float64" for the reference's error against float64, "sums" for the lengths of sums."""

    weakness: str = ""
    """Why agreeing with these outputs proves little, in words; empty: it proves enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A model for one set of shapes of its inputs."""

    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    check: Check


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """An exported model."""

    title: str
    model_digest: str
    """ "sha256:<hex>" of the ONNX model with the weights and shapes that were exported."""

    target: Mapping[str, object]
    """TVM target that it was compiled for."""

    device_type: str
    """Device in TVM's runtime:  "cpu", "cuda"."""

    machine: str
    """Architecture of the library in the words of `uname -m`."""

    cpu_features: tuple[str, ...]
    """Features that its code may use, as in /proc/cpuinfo."""

    tvm_version: str
    threads: int
    affinity: Affinity
    device_model: str
    """The hardware of the used records; empty without any."""

    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    records: tuple[UsedRecord, ...]
    library: str
    """Name of the shared library in the archive."""

    files: Mapping[str, FileFacts]
    """All files of the archive but the manifest, by name."""

    check: Check
    others: tuple[Variant, ...] = ()
    """Further sets of shapes that its program takes."""

    @property
    def line(self) -> str:
        """Summary for people:  "toy for x86_64, float32[4,8] -> float32[4,2]"."""
        inputs, outputs = (", ".join(map(str, types)) for types in (self.inputs, self.outputs))
        return f"{self.title} for {self.machine}, {inputs} -> {outputs}"

    @property
    def variants(self) -> tuple[Variant, ...]:
        """All sets of shapes that its program takes."""
        return Variant(inputs=self.inputs, outputs=self.outputs, check=self.check), *self.others


def format_manifest(manifest: Manifest) -> str:
    """Return a manifest as JSON; equal manifests give equal texts."""
    return json.dumps({"format": FORMAT, **asdict(manifest)}, indent=1, sort_keys=True) + "\n"


def parse_manifest(text: str | bytes, *, where: str) -> Manifest:
    """Read a manifest.

    Raises:
        ArtifactRefused: it is malformed, or written by a newer version.
    """
    try:
        found = json.loads(text)
        version = int(found["format"])
        if version > FORMAT:
            raise ArtifactRefused(f"{where} has format {version}, this version reads {FORMAT}; update tvm-fleet here")
        return from_plain(Manifest, found)
    except (InvalidRequest, ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise ArtifactRefused(
            f"the manifest of {where} is malformed ({type(error).__name__}: {error}); export the model again"
        ) from error
