"""A built module that can be called and timed on a device.

    module = device.load("matmul.so")
    timing = await module.time("main", [((256, 256), "float32")] * 3, min_repeat_ms=50)
    product = await module(a, b)

Where the artifact knows its arguments, they are checked before anything is sent: `module(...)` takes only the inputs
and returns the outputs. Where it does not, pass all arguments; all arrays come back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from fleet.artifacts.artifact import Artifact
from fleet.client import arrays
from fleet.domain.measuring import TIMING, Evaluator, Measurement, ModuleKind, TensorSpec
from fleet.errors import InvalidRequest

if TYPE_CHECKING:
    from fleet.client.arrays import Array, PlainArgument


class RunsArtifacts(Protocol):
    """Device that runs a module."""

    name: str

    async def call(
        self, artifact: Artifact, args: Sequence[object], *, function: str | None = None, timeout_sec: float = 60.0
    ) -> list[Array]: ...

    async def time(
        self,
        artifact: Artifact,
        args: Sequence[object],
        *,
        function: str | None = None,
        evaluator: Evaluator | None = None,
        timeout_sec: float = 60.0,
    ) -> Measurement: ...


class RemoteModule:
    """One artifact on one leased device. Uploaded when first used."""

    def __init__(self, device: RunsArtifacts, artifact: Artifact) -> None:
        self.device = device
        self.artifact = artifact
        """The running artifact."""

    def __repr__(self) -> str:
        arguments = ", ".join(f"{'out ' if spec.is_output else ''}{spec}" for spec in self.artifact.args) or "..."
        return (
            f"<RemoteModule {self.artifact.function}({arguments}) of {self.artifact.path.name} on {self.device.name}>"
        )

    async def __call__(
        self, *args: object, function: str | None = None, timeout_sec: float = 60.0
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
        /,
        function: str | None = None,
        args: Sequence[object] | None = None,
        *,
        timeout_sec: float = 60.0,
        **evaluator: object,
    ) -> Measurement:
        """Time a function on the device, as `fleet time` does: five repeats of at least 50 ms unless told otherwise.

        Args:
            function: its name; the artifact's own when None.
            args: arrays, TensorSpecs or (shape, dtype) pairs; when None, those that the artifact knows.
            evaluator: fields of `fleet.Evaluator`: number, repeat, min_repeat_ms, ...

        Raises:
            InvalidRequest: an argument of the wrong count, shape or dtype.
            MeasurementError: it failed there; `kind` says how.
        """
        sent = time_arguments(self.artifact, args, function)
        return await self.device.time(
            self.artifact, sent, function=function, evaluator=_evaluator(evaluator), timeout_sec=timeout_sec
        )


def call_arguments(artifact: Artifact, args: Sequence[object], function: str | None) -> list[PlainArgument]:
    """Return the arguments for a call with these inputs, with output buffers if the artifact expects them."""
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


def time_arguments(artifact: Artifact, args: Sequence[object] | None, function: str | None) -> list[PlainArgument]:
    """Return the arguments for timing; `args` may omit the outputs if the artifact knows them."""
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


def _check(
    given: Sequence[PlainArgument], wanted: Sequence[TensorSpec], artifact: Artifact, function: str | None
) -> None:
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
    known = Evaluator.__dataclass_fields__
    unknown = [name for name in fields if name not in known]
    if unknown:
        raise InvalidRequest(f"unknown evaluator fields {unknown}; known are {', '.join(known)}")
    return replace(TIMING, **fields)
