"""A built module as something to call and to time on a device.

    module = device.load("matmul.so")
    timing = await module.time("main", [((256, 256), "float32")] * 3, min_repeat_ms=50)
    product = await module(a, b)

Where the artifact knows its arguments, they are checked before anything is sent, `module(...)` takes the inputs only
and returns the outputs. Where it does not, all arguments are passed and all arrays come back.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from fleet import wire
from fleet.artifacts import Artifact
from fleet.client import arrays
from fleet.client.device import Device, failure
from fleet.errors import DeviceUnreachable, InvalidRequest
from fleet.measuring import Evaluator, Measurement, ModuleKind, TensorSpec
from fleet.v1 import measurement_pb2

if TYPE_CHECKING:
    from fleet.client.arrays import Array


class RemoteModule:
    """One artifact on one leased device. Uploaded when first used."""

    def __init__(self, device: Device, artifact: Artifact) -> None:
        self.device = device
        self.artifact = artifact

    async def __call__(
        self, *args: Any, function: str | None = None, timeout_sec: float = 60.0
    ) -> Array | tuple[Array, ...]:
        """Run once on these arrays and return the outputs: one array, or a tuple of several.

        Raises:
            InvalidRequest: an argument of the wrong count, shape or dtype.
            MeasurementError: it failed there; `kind` says how.
        """
        sent = call_arguments(self.artifact, args, function)
        outputs = await self.device.call(self.artifact, sent, function=function, timeout_sec=timeout_sec)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    async def time(
        self,
        function: str | None = None,
        args: Sequence[Any] | None = None,
        *,
        timeout_sec: float = 60.0,
        **evaluator: Any,
    ) -> Measurement:
        """Time a function on the device.

        Args:
            function: its name; the artifact's own when None.
            args: arrays, TensorSpecs or (shape, dtype) pairs; when None those that the artifact knows.
            evaluator: fields of `fleet.Evaluator`: number, repeat, min_repeat_ms, ...

        Raises:
            InvalidRequest: an argument of the wrong count, shape or dtype.
            MeasurementError: it failed there; `kind` says how.
        """
        request = measurement_pb2.MeasureRequest(
            candidate_id=uuid.uuid4().hex,
            artifact_digest=self.artifact.digest,
            function=function or self.artifact.function,
            args=arrays.arguments_to_proto(time_arguments(self.artifact, args, function)),
            evaluator=wire.evaluator_to_proto(_evaluator(evaluator)),
            timeout=wire.duration(timeout_sec),
            module_kind=wire.module_kind_to_proto(self.artifact.module_kind),
        )
        await self.device.ensure([self.artifact])
        measurement = None
        async for message in self.device.measure_requests([request]):
            measurement = wire.measurement_from_proto(message)
        if measurement is None:
            raise DeviceUnreachable(f"{self.device.name} gave no result; try again")
        if measurement.error is not None:
            raise failure(measurement.error, measurement.error_message, measurement.signal, self.device.name)
        return measurement


def call_arguments(artifact: Artifact, args: Sequence[Any], function: str | None) -> list[Any]:
    """Return what to send for a call with these inputs: room for the outputs is put where the artifact wants it."""
    given = [arrays.as_argument(arg) for arg in args]
    specs = _known_specs(artifact, function)
    if not specs:
        return given
    inputs = [spec for spec in specs if not spec.is_output]
    _check(given, inputs, artifact, function)
    if artifact.module_kind is ModuleKind.RELAX_VM:
        return given
    remaining = iter(given)
    return [spec if spec.is_output else next(remaining) for spec in specs]


def time_arguments(artifact: Artifact, args: Sequence[Any] | None, function: str | None) -> list[Any]:
    """Return what to send for timing: `args` may leave the outputs out where the artifact knows them."""
    specs = _known_specs(artifact, function)
    is_vm = artifact.module_kind is ModuleKind.RELAX_VM
    if is_vm:
        specs = tuple(spec for spec in specs if not spec.is_output)
    if args is None:
        if not specs and not is_vm:
            raise InvalidRequest(f"the arguments of {artifact.path.name} are not known; pass them as args=[...]")
        return list(specs)
    given = [arrays.as_argument(arg) for arg in args]
    if not specs:
        return given
    if len(given) == sum(not spec.is_output for spec in specs):
        return call_arguments(artifact, given, function)
    _check(given, list(specs), artifact, function)
    return [spec if spec.is_output else arg for spec, arg in zip(specs, given, strict=True)]


def _known_specs(artifact: Artifact, function: str | None) -> tuple[TensorSpec, ...]:
    return artifact.args if function in (None, artifact.function) else ()


def _check(given: Sequence[Any], wanted: Sequence[TensorSpec], artifact: Artifact, function: str | None) -> None:
    name = function or artifact.function
    if len(given) != len(wanted):
        expected = ", ".join(map(str, wanted))
        raise InvalidRequest(f"{name} takes {len(wanted)} arguments ({expected}), {len(given)} were given")
    for number, (argument, spec) in enumerate(zip(given, wanted, strict=True)):
        found = arrays.spec_of(argument)
        if found is None or (found.shape, found.dtype) != (spec.shape, spec.dtype):
            shown = found if found is not None else f"the number {argument}"
            raise InvalidRequest(f"argument {number} of {name}: expected {spec}, given {shown}")


def _evaluator(fields: dict[str, Any]) -> Evaluator:
    try:
        return Evaluator(**fields)
    except TypeError:
        known = cast("dict[str, object]", Evaluator.__dataclass_fields__)
        unknown = [name for name in fields if name not in known]
        raise InvalidRequest(f"unknown evaluator fields {unknown}; known are {', '.join(known)}") from None
