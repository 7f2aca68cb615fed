"""Runs an exported model on a leased device, and compares its answers with those stored in the archive."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fleet.artifacts.artifact import Artifact
from fleet.client.arrays import numpy_dtype
from fleet.client.device import Device
from fleet.domain.measuring import Evaluator, Measurement, ModuleKind, TensorSpec
from fleet.runtime.agreement import Agreement, Array, agree, worst
from fleet.runtime.manifest import Manifest, TensorType
from fleet.runtime.model import stored_arrays
from fleet.runtime.package import Package, open_package, read_manifest, verify


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedShapes:
    """Result of an exported model with one set of shapes."""

    inputs: tuple[TensorType, ...]
    agreement: Agreement
    measurement: Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeReport:
    """Result of an exported model on a device."""

    manifest: Manifest
    shapes: tuple[ServedShapes, ...]
    """Results in the manifest's order."""

    @property
    def agreement(self) -> Agreement:
        """The worst of all."""
        return worst([each.agreement for each in self.shapes])


async def serve_check(path: Path, device: Device, *, evaluator: Evaluator, timeout_sec: float) -> ServeReport:
    """Run a model's stored inputs for every set of shapes on a device, compare the outputs, and time each.

    Raises:
        ConfigError: there is no such file.
        ArtifactRefused: it is no exported model, is damaged, or does not fit the device.
        MeasurementError: it failed on the device; `kind` says how.
    """
    package = open_package(path)
    manifest = read_manifest(package)
    verify(package, manifest)
    found = []
    with _library(package, manifest) as artifact:
        for variant in manifest.variants:
            inputs = _stored(package, variant.check.inputs, variant.inputs)
            expected = _stored(package, variant.check.outputs, variant.outputs)
            outputs = await device.call(artifact, inputs, timeout_sec=timeout_sec)
            measurement = await device.time(artifact, inputs, evaluator=evaluator, timeout_sec=timeout_sec)
            agreement = agree(outputs, expected, variant.check.tolerances)
            found.append(ServedShapes(inputs=variant.inputs, agreement=agreement, measurement=measurement))
    return ServeReport(manifest=manifest, shapes=tuple(found))


def _stored(package: Package, names: Sequence[str], types: Sequence[TensorType]) -> list[Array]:
    """Return arrays with the types of the manifest: numpy's files know no bfloat16, only the size of its elements."""
    arrays = stored_arrays(package, names)
    wanted = [numpy_dtype(kind.dtype) for kind in types]
    return [
        array.view(dtype) if array.dtype == f"V{dtype.itemsize}" else array
        for array, dtype in zip(arrays, wanted, strict=True)
    ]


@contextmanager
def _library(package: Package, manifest: Manifest) -> Iterator[Artifact]:
    with package.library_file(manifest.library) as path:
        yield Artifact(
            path=path,
            digest=f"sha256:{manifest.files[manifest.library].sha256}",
            args=tuple(TensorSpec(spec.shape, spec.dtype) for spec in manifest.inputs),
            target_json=json.dumps(dict(manifest.target)),
            module_kind=ModuleKind.RELAX_VM,
            tvm_version=manifest.tvm_version,
        )
