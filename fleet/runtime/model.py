"""A loaded model: takes numpy arrays, returns numpy arrays. The Relax VM in its library does the work.

Calls of one model run one after the other, because its VM allows no more; load the model twice to run two at once.
"""

from __future__ import annotations

import io
import itertools
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fleet.errors import ArtifactRefused, InvalidRequest
from fleet.runtime.agreement import Agreement, agree, worst
from fleet.runtime.fit import check_here
from fleet.runtime.manifest import MOST_THREADS, Affinity, Manifest
from fleet.runtime.memory import Array, arrays_of, check_types, staged
from fleet.runtime.package import Package, open_package, read_file, read_manifest, verify
from fleet.runtime.tvm_library import load_runtime, runtime_version, use_threads

if TYPE_CHECKING:
    import tvm_ffi

_EXISTS = 0
"""Number of kExist in TVM's DeviceAttrKind."""

_POOLED_ALLOCATOR = 2
"""Type of the allocator that relax.VirtualMachine uses by default."""


def load(
    path: Path | str,
    *,
    threads: int | None = None,
    affinity: Affinity | str | None = None,
    device_index: int = 0,
    verify_hashes: bool = False,
) -> LoadedModel:
    """Load a model that `fleet export` made: an archive `model.fleet`, or the folder that it was unpacked to.

    It runs on the kind of device that it was exported for: this processor, or a GPU.

    Args:
        threads: how many threads it runs on; None: as many as it was tuned with.
        affinity: where they run; None: as it was tuned.
        device_index: which GPU, of those that its driver shows.
        verify_hashes: read all files and compare their hashes first; a zip's own checksums are compared anyway.

    Raises:
        ConfigError: there is no such file, or TVM's runtime is not installed here.
        ArtifactRefused: it is no exported model, is damaged, or is for another machine, CPU, GPU or version of TVM.
    """
    package = open_package(path)
    manifest = read_manifest(package)
    check_here(manifest, tvm_version=runtime_version())
    if verify_hashes:
        verify(package, manifest)
    load_runtime(manifest.device_type)
    return LoadedModel(
        package,
        manifest,
        threads=manifest.threads if threads is None else threads,
        affinity=manifest.affinity if affinity is None else Affinity.of(affinity),
        device_index=device_index,
    )


class LoadedModel:
    """A model that is ready to run; `load` makes one."""

    manifest: Manifest

    def __init__(
        self, package: Package, manifest: Manifest, *, threads: int, affinity: Affinity, device_index: int = 0
    ) -> None:
        """Use `load`."""
        if not 1 <= threads <= MOST_THREADS:
            raise InvalidRequest(f"a model runs on 1 to {MOST_THREADS} threads, not {threads}")
        self.manifest = manifest
        self._package = package
        self._threads, self._affinity = threads, affinity
        self._lock = threading.Lock()
        check_types(spec for variant in manifest.variants for spec in (*variant.inputs, *variant.outputs))
        device = _device(manifest, device_index)
        self._main = _load_main(package, manifest, device)
        self._staged = {
            tuple(wanted.shape for wanted in variant.inputs): [staged(wanted, device) for wanted in variant.inputs]
            for variant in manifest.variants
        }

    def __repr__(self) -> str:
        return f"<LoadedModel {self.manifest.line}>"

    def __call__(self, *arrays: object, **by_name: object) -> Any:
        """Run the model.

        Args:
            arrays: the inputs in order, or by name. They have to have exactly the model's dtypes and shapes, of one of
                the sets of shapes that it was exported for.

        Returns:
            The output as a numpy array; a tuple of them where the model has several.

        Raises:
            InvalidRequest: an input is missing, unknown, or has another shape or dtype.
        """
        outputs = self.run(self._in_order(arrays, by_name))
        return outputs[0] if len(outputs) == 1 else outputs

    def run(self, arrays: Sequence[object]) -> tuple[Array, ...]:
        """Run the model on its inputs in order; return all outputs. Raises as a call."""
        if len(arrays) != len(self.manifest.inputs):
            raise self._wrong(f"{len(arrays)} arrays were given")
        given = [np.asarray(array) for array in arrays]
        staging = self._staged.get(tuple(array.shape for array in given))
        if staging is None:
            raise self._of_other_shapes(given)
        for index, array in enumerate(given):
            self._check_dtype(array, index, staging[index].dtype)
        with self._lock:
            use_threads(self._threads, self._affinity)
            tensors = [place.tensor_of(array) for array, place in zip(given, staging, strict=True)]
            return tuple(arrays_of(self._main(*tensors)))

    def check(self) -> Agreement:
        """Run all inputs that were stored with the model, and compare with the outputs stored with them."""
        checks = [variant.check for variant in self.manifest.variants]
        return worst(
            [
                agree(
                    self.run(self.stored_arrays(stored.inputs)), self.stored_arrays(stored.outputs), stored.tolerances
                )
                for stored in checks
            ]
        )

    def stored_arrays(self, names: Sequence[str]) -> list[Array]:
        """Return arrays that were stored with the model, as those named in `manifest.check`."""
        return stored_arrays(self._package, names)

    def _in_order(self, arrays: Sequence[object], by_name: Mapping[str, object]) -> Sequence[object]:
        if not by_name and len(arrays) == len(self.manifest.inputs):
            return arrays
        names = [wanted.name for wanted in self.manifest.inputs]
        if len(arrays) > len(names):
            raise self._wrong(f"{len(arrays)} arrays were given")
        values = dict(zip(names, arrays, strict=False))
        for name, array in by_name.items():
            if name not in names:
                raise self._wrong(f"there is no input {name!r}")
            if name in values:
                raise self._wrong(f"{name!r} was given twice, by position and by name")
            values[name] = array
        missing = [name for name in names if name not in values]
        if missing:
            raise self._wrong(f"missing: {', '.join(missing)}")
        return [values[name] for name in names]

    def _wrong(self, problem: str) -> InvalidRequest:
        taken = ", ".join(f"{wanted.name}: {wanted}" for wanted in self.manifest.inputs)
        return InvalidRequest(f"{self.manifest.title} takes {taken}; {problem}")

    def _of_other_shapes(self, given: Sequence[Array]) -> InvalidRequest:
        """Return an error that names the first input with a shape in no set, else all inputs, and lists the shapes."""
        for index, (array, wanted) in enumerate(zip(given, self.manifest.inputs, strict=True)):
            known = list(dict.fromkeys(shapes[index] for shapes in self._staged))
            if array.shape not in known:
                is_another = len(array.shape) == len(wanted.shape)
                advice = f"; export it with --shape {wanted.name}={','.join(map(str, array.shape))} for that"
                return InvalidRequest(
                    f"input {wanted.name!r} has shape {list(array.shape)}, {self.manifest.title} was exported for "
                    f"{' or '.join(str(list(shape)) for shape in known)}{advice if is_another else ''}"
                )
        sets = " or ".join(", ".join(str(list(shape)) for shape in shapes) for shapes in self._staged)
        return self._wrong(f"together they have to have shapes {sets}")

    def _check_dtype(self, array: Array, index: int, dtype: np.dtype[Any]) -> None:
        if array.dtype != dtype:
            wanted = self.manifest.inputs[index]
            raise InvalidRequest(
                f"input {wanted.name!r} is {array.dtype.name}, {self.manifest.title} takes {wanted.dtype}; "
                f"convert it: x.astype({wanted.dtype!r})"
            )


def stored_arrays(package: Package, names: Sequence[str]) -> list[Array]:
    """Read .npy files of a package.

    Raises:
        ArtifactRefused: a file is missing, or not an array.
    """
    try:
        return [np.load(io.BytesIO(read_file(package, name)), allow_pickle=False) for name in names]
    except (EOFError, MemoryError, OverflowError, SyntaxError, TypeError, ValueError) as error:
        raise ArtifactRefused(f"an array of {package.path} is damaged ({error}); get the model again") from error


def _device(manifest: Manifest, index: int) -> tvm_ffi.Device:
    import tvm_ffi

    device = tvm_ffi.device(manifest.device_type, index)
    if manifest.device_type == "cpu":
        return device
    attribute = tvm_ffi.get_global_func("runtime.GetDeviceAttr")
    if not attribute(device.dlpack_device_type(), device.index, _EXISTS):
        raise ArtifactRefused(
            f"{manifest.title} is exported for {manifest.device_type}, and there is no device {device}"
        )
    return device


def _load_main(package: Package, manifest: Manifest, device: tvm_ffi.Device) -> tvm_ffi.Function:
    import tvm_ffi

    host = tvm_ffi.device("cpu", 0)  # shapes are computed there; it comes last
    devices = [device, host] if device.type != "cpu" else [device]
    file: AbstractContextManager[Path] = package.library_file(manifest.library)
    try:
        with file as path:
            library = tvm_ffi.load_module(path, keep_module_alive=False)
        machine = library.get_function("vm_load_executable")()
        settings = [(one.dlpack_device_type(), one.index, _POOLED_ALLOCATOR) for one in devices]
        machine.get_function("vm_initialization")(*itertools.chain.from_iterable(settings))
        return machine.get_function("main")
    except (OSError, RuntimeError, AttributeError) as error:
        raise ArtifactRefused(f"the library of {package.path} does not load: {error}") from error
