"""Trials, measurements and their arguments on the wire."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from typing import cast

from fleet.base.text import printable
from fleet.domain.measuring import (
    Argument,
    Call,
    Clocks,
    Disturbance,
    DisturbanceKind,
    ErrorKind,
    Evaluator,
    Measurement,
    ModuleKind,
    OperatorCall,
    OperatorProfile,
    Stop,
    Tensor,
    TensorSpec,
    Trial,
    disturbances_in,
)
from fleet.errors import InvalidRequest
from fleet.v1 import measurement_pb2, session_service_pb2, tensor_pb2
from fleet.wire.times import duration, duration_sec

_ERROR_KINDS: Mapping[ErrorKind, measurement_pb2.ErrorKind] = {
    kind: cast("measurement_pb2.ErrorKind", measurement_pb2.ErrorKind.Value(f"ERROR_KIND_{kind.value}"))
    for kind in ErrorKind
}
_ERROR_KINDS_BY_NUMBER = {int(number): kind for kind, number in _ERROR_KINDS.items()}
_WIRE_NAMES = {"flush_bytes": "cache_flush_bytes", "flush_cache": "flush_cpu_cache"}
"""Fields with an older name in measurement.proto, which gives the reason."""

_OWN_NAMES = {wire: own for own, wire in _WIRE_NAMES.items()}
_DISTURBANCES: Mapping[DisturbanceKind, measurement_pb2.DisturbanceKind] = {
    DisturbanceKind.REFERENCE_DRIFT: measurement_pb2.DISTURBANCE_KIND_REFERENCE_DRIFT,
    DisturbanceKind.CONTENTION: measurement_pb2.DISTURBANCE_KIND_CONTENTION,
    DisturbanceKind.THROTTLED: measurement_pb2.DISTURBANCE_KIND_THROTTLED,
    DisturbanceKind.FOREIGN_PROCESSES: measurement_pb2.DISTURBANCE_KIND_FOREIGN_PROCESSES,
    DisturbanceKind.GOVERNOR_CHANGED: measurement_pb2.DISTURBANCE_KIND_GOVERNOR_CHANGED,
    DisturbanceKind.CLOCK_FELL: measurement_pb2.DISTURBANCE_KIND_CLOCK_FELL,
    DisturbanceKind.STILL_WARM: measurement_pb2.DISTURBANCE_KIND_STILL_WARM,
    DisturbanceKind.OTHER: measurement_pb2.DISTURBANCE_KIND_UNSPECIFIED,
}
_MODULE_KINDS: Mapping[ModuleKind, measurement_pb2.ModuleKind] = {
    ModuleKind.FUNCTIONS: measurement_pb2.MODULE_KIND_FUNCTIONS,
    ModuleKind.RELAX_VM: measurement_pb2.MODULE_KIND_RELAX_VM,
}
_STOPS: Mapping[Stop, measurement_pb2.Stop] = {
    Stop.HOPELESS: measurement_pb2.STOP_HOPELESS,
    Stop.BEHIND: measurement_pb2.STOP_BEHIND,
    Stop.SLOW: measurement_pb2.STOP_SLOW,
}
_STOPS_BY_NUMBER = {int(number): stop for stop, number in _STOPS.items()}
_DEFAULT_TRIAL = Trial(candidate_id="", artifact_digest="")
_DEFAULT_CALL = Call(artifact_digest="")
_DISTURBANCES_BY_NUMBER = {number: kind for kind, number in _DISTURBANCES.items()}


def tensor_spec_to_proto(spec: TensorSpec) -> tensor_pb2.TensorSpec:
    return tensor_pb2.TensorSpec(shape=spec.shape, dtype=spec.dtype)


def tensor_to_proto(tensor: Tensor) -> tensor_pb2.Tensor:
    return tensor_pb2.Tensor(spec=tensor_spec_to_proto(tensor.spec), content=tensor.content)


def tensor_from_proto(message: tensor_pb2.Tensor) -> Tensor:
    return Tensor(TensorSpec(tuple(message.spec.shape), message.spec.dtype), message.content)


def argument_to_proto(argument: Argument) -> tensor_pb2.Argument:
    match argument:
        case TensorSpec(is_output=True):
            return tensor_pb2.Argument(output=tensor_spec_to_proto(argument))
        case TensorSpec():
            return tensor_pb2.Argument(fill=tensor_spec_to_proto(argument))
        case Tensor():
            return tensor_pb2.Argument(tensor=tensor_to_proto(argument))
        case int():
            return tensor_pb2.Argument(int_value=argument)
    return tensor_pb2.Argument(float_value=argument)


def arguments_from_proto(messages: Iterable[tensor_pb2.Argument]) -> tuple[Argument, ...]:
    """Read arguments. Raises ValueError for one that is empty."""
    return tuple(_argument_from_proto(message, index) for index, message in enumerate(messages))


def _argument_from_proto(message: tensor_pb2.Argument, index: int) -> Argument:
    kind = message.WhichOneof("kind")
    match kind:
        case "fill" | "output":
            spec = message.output if kind == "output" else message.fill
            return TensorSpec(tuple(spec.shape), spec.dtype, kind == "output")
        case "tensor":
            return tensor_from_proto(message.tensor)
        case "int_value":
            return message.int_value
        case "float_value":
            return message.float_value
    raise ValueError(f"argument {index} is empty")


def error_kind_to_proto(kind: ErrorKind | None) -> measurement_pb2.ErrorKind:
    """Return the number of an error kind on the wire; 0 for None."""
    return _ERROR_KINDS[kind] if kind is not None else measurement_pb2.ERROR_KIND_UNSPECIFIED


def error_kind_from_proto(value: int) -> ErrorKind | None:
    """Read an error kind: None for UNSPECIFIED. A kind known only to newer peers becomes RUN_FAILED."""
    if value == measurement_pb2.ERROR_KIND_UNSPECIFIED:
        return None
    return _ERROR_KINDS_BY_NUMBER.get(value, ErrorKind.RUN_FAILED)


def module_kind_to_proto(kind: ModuleKind) -> measurement_pb2.ModuleKind:
    """Return the number of a module kind on the wire."""
    return _MODULE_KINDS[kind]


def module_kind_from_proto(value: int) -> ModuleKind:
    """Read a module kind; FUNCTIONS if it is unset."""
    return ModuleKind.RELAX_VM if value == measurement_pb2.MODULE_KIND_RELAX_VM else ModuleKind.FUNCTIONS


def evaluator_to_proto(evaluator: Evaluator) -> measurement_pb2.Evaluator:
    """Convert an evaluator.

    Raises:
        InvalidRequest: a number that its field cannot carry.
    """
    message = measurement_pb2.Evaluator()
    for name in evaluator.__dataclass_fields__:
        value = getattr(evaluator, name)
        try:
            setattr(message, _WIRE_NAMES.get(name, name), value)
        except ValueError as error:
            raise InvalidRequest(f"evaluator: {name}={value} is out of bounds") from error
    return message


def evaluator_from_proto(message: measurement_pb2.Evaluator) -> Evaluator:
    """Read an evaluator; zero means the default, as the proto says."""
    return _read_evaluator(message.SerializeToString())


@functools.lru_cache(maxsize=64)
def _read_evaluator(content: bytes) -> Evaluator:
    """Read an evaluator. Cached: all trials of a job share one, and it is the slowest part of a trial to parse."""
    message = measurement_pb2.Evaluator.FromString(content)
    return Evaluator(**{_OWN_NAMES.get(field.name, field.name): value for field, value in message.ListFields()})


def trial_to_proto(trial: Trial) -> measurement_pb2.MeasureRequest:
    return measurement_pb2.MeasureRequest(
        candidate_id=trial.candidate_id,
        artifact_digest=trial.artifact_digest,
        function=trial.function,
        args=map(argument_to_proto, trial.args),
        evaluator=evaluator_to_proto(trial.evaluator),
        timeout=duration(trial.timeout_sec),
        module_kind=module_kind_to_proto(trial.module_kind),
        ends_batch=trial.ends_batch,
        operator_runs=trial.operator_runs,
        allow_poison=trial.allow_poison,
    )


def trial_from_proto(message: measurement_pb2.MeasureRequest) -> Trial:
    """Read a trial. Raises ValueError for an argument that is empty."""
    return Trial(
        candidate_id=message.candidate_id,
        artifact_digest=message.artifact_digest,
        function=message.function or _DEFAULT_TRIAL.function,
        args=arguments_from_proto(message.args),
        evaluator=evaluator_from_proto(message.evaluator),
        timeout_sec=trial_timeout_sec(message),
        module_kind=module_kind_from_proto(message.module_kind),
        ends_batch=message.ends_batch,
        operator_runs=message.operator_runs,
        allow_poison=message.allow_poison,
    )


def trial_timeout_sec(message: measurement_pb2.MeasureRequest) -> float:
    """Return the requested timeout, or the default of a `Trial`."""
    return duration_sec(message.timeout) if message.HasField("timeout") else _DEFAULT_TRIAL.timeout_sec


def call_to_proto(call: Call) -> session_service_pb2.CallRequest:
    return session_service_pb2.CallRequest(
        artifact_digest=call.artifact_digest,
        function=call.function,
        args=map(argument_to_proto, call.args),
        timeout=duration(call.timeout_sec),
        module_kind=module_kind_to_proto(call.module_kind),
        is_apart=call.is_apart,
        allow_poison=call.allow_poison,
    )


def call_from_proto(message: session_service_pb2.CallRequest) -> Call:
    """Read a call. Raises ValueError for an argument that is empty."""
    return Call(
        artifact_digest=message.artifact_digest,
        function=message.function or _DEFAULT_CALL.function,
        args=arguments_from_proto(message.args),
        timeout_sec=call_timeout_sec(message),
        module_kind=module_kind_from_proto(message.module_kind),
        is_apart=message.is_apart,
        allow_poison=message.allow_poison,
    )


def call_timeout_sec(message: session_service_pb2.CallRequest) -> float:
    """Return the requested timeout, or the default of a `Call`."""
    return duration_sec(message.timeout) if message.HasField("timeout") else _DEFAULT_CALL.timeout_sec


def disturbance_to_proto(disturbance: Disturbance) -> measurement_pb2.Disturbance:
    return measurement_pb2.Disturbance(kind=_DISTURBANCES[disturbance.kind], text=disturbance.text)


def disturbance_from_proto(message: measurement_pb2.Disturbance) -> Disturbance:
    """Read a disturbance. A kind known only to newer peers becomes OTHER."""
    return Disturbance(_DISTURBANCES_BY_NUMBER.get(message.kind, DisturbanceKind.OTHER), message.text)


_WRITTEN_ALONE = frozenset({"cooldown_sec", "disturbances", "facts", "flushed"})
"""Keys of a provenance that are no plain fields."""


def provenance_from_proto(message: measurement_pb2.Provenance) -> dict[str, object]:
    """Return a provenance, JSON-ready, with the domain's names for kinds; the owner's facts are "facts"."""
    from fleet.wire.messages_json import message_json

    provenance = message_json(message, has_defaults=False)
    if message.disturbances:
        found = map(disturbance_from_proto, message.disturbances)
        provenance["disturbances"] = [{"kind": one.kind.value, "text": one.text} for one in found]
    if "owner_facts_json" in provenance:
        provenance["facts"] = _facts_from_json(str(provenance.pop("owner_facts_json")))
    return provenance


def _facts_from_json(text: str) -> object:
    """Read the owner's facts from an agent's message. Invalid JSON stays text: no decision depends on it."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def provenance_to_proto(provenance: Mapping[str, object]) -> measurement_pb2.Provenance:
    message = measurement_pb2.Provenance(flushed=str(provenance.get("flushed", "")))
    rest = {key: value for key, value in provenance.items() if key not in _WRITTEN_ALONE}
    if "cooldown_sec" in provenance:
        message.cooldown.CopyFrom(duration(float(str(provenance["cooldown_sec"]))))
    if "facts" in provenance:
        message.owner_facts_json = json.dumps(provenance["facts"])
    if rest:  # never true in a worker, so workers do not pay for this import
        from google.protobuf import json_format

        json_format.ParseDict(rest, message)
    message.disturbances.extend(map(disturbance_to_proto, disturbances_in(provenance)))
    return message


def measurement_from_proto(message: measurement_pb2.Measurement) -> Measurement:
    clocks = message.clocks
    return Measurement(
        candidate_id=message.candidate_id,
        run_secs=tuple(message.run_secs),
        error=error_kind_from_proto(message.error),
        error_message=printable(message.error_message),  # agents may be of another implementation
        signal=message.signal,
        clocks=Clocks(
            wait_sec=duration_sec(clocks.wait), load_sec=duration_sec(clocks.load), run_sec=duration_sec(clocks.run)
        ),
        provenance=provenance_from_proto(message.provenance),
        time_source=message.time_source or "wall",
        run_cycles=tuple(message.run_cycles),
        stopped=_STOPS_BY_NUMBER.get(message.stopped),
        operators=operator_profile_from_proto(message.operators) if message.HasField("operators") else None,
    )


def measurement_to_proto(measurement: Measurement) -> measurement_pb2.Measurement:
    return measurement_pb2.Measurement(
        candidate_id=measurement.candidate_id,
        run_secs=measurement.run_secs,
        error=error_kind_to_proto(measurement.error),
        error_message=measurement.error_message,
        signal=measurement.signal,
        clocks=measurement_pb2.Clocks(
            wait=duration(measurement.clocks.wait_sec),
            load=duration(measurement.clocks.load_sec),
            run=duration(measurement.clocks.run_sec),
        ),
        time_source=measurement.time_source,
        provenance=provenance_to_proto(measurement.provenance),
        run_cycles=measurement.run_cycles,
        stopped=_STOPS[measurement.stopped] if measurement.stopped else measurement_pb2.STOP_UNSPECIFIED,
        operators=operator_profile_to_proto(measurement.operators) if measurement.operators is not None else None,
    )


def operator_profile_from_proto(message: measurement_pb2.OperatorProfile) -> OperatorProfile:
    return OperatorProfile(
        calls=tuple(
            OperatorCall(function=call.function, min_sec=call.min_sec, median_sec=call.median_sec)
            for call in message.calls
        ),
        run_secs=tuple(message.run_secs),
    )


def operator_profile_to_proto(profile: OperatorProfile) -> measurement_pb2.OperatorProfile:
    calls = (
        measurement_pb2.OperatorCall(function=call.function, min_sec=call.min_sec, median_sec=call.median_sec)
        for call in profile.calls
    )
    return measurement_pb2.OperatorProfile(calls=calls, run_secs=profile.run_secs)
