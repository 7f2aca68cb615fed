"""Domain values to messages and back: the only place that knows both."""

from __future__ import annotations

from typing import cast

from google.protobuf import json_format
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from fleet.measuring import Clocks, ErrorKind, Evaluator, Measurement, ModuleKind, TensorSpec, Trial
from fleet.v1 import measurement_pb2, tensor_pb2


def timestamp(sec: float) -> Timestamp:
    """Seconds since 1970 to a Timestamp."""
    nanos = round(sec * 1e9)
    return Timestamp(seconds=nanos // 1_000_000_000, nanos=nanos % 1_000_000_000)


def timestamp_sec(message: Timestamp) -> float:
    """Timestamp to seconds since 1970."""
    return message.seconds + message.nanos / 1e9


def duration(sec: float) -> Duration:
    """Seconds to a Duration."""
    nanos = round(sec * 1e9)
    return Duration(seconds=nanos // 1_000_000_000, nanos=nanos % 1_000_000_000)


def duration_sec(message: Duration) -> float:
    """Duration to seconds. In whole nanoseconds first: the sum of two floats would be off by one in its last digit."""
    return (message.seconds * 10**9 + message.nanos) / 1e9


def tensor_spec_to_proto(spec: TensorSpec) -> tensor_pb2.TensorSpec:
    return tensor_pb2.TensorSpec(shape=spec.shape, dtype=spec.dtype)


def argument_to_proto(spec: TensorSpec) -> tensor_pb2.Argument:
    """An argument that the device allocates: room for an output, or filled with random numbers."""
    message = tensor_spec_to_proto(spec)
    return tensor_pb2.Argument(output=message) if spec.is_output else tensor_pb2.Argument(fill=message)


def argument_from_proto(message: tensor_pb2.Argument) -> TensorSpec:
    is_output = message.WhichOneof("kind") == "output"
    spec = message.output if is_output else message.fill
    return TensorSpec(tuple(spec.shape), spec.dtype, is_output)


def error_kind_to_proto(kind: ErrorKind | None) -> measurement_pb2.ErrorKind:
    """The number of the kind on the wire; 0 for None."""
    return cast(
        "measurement_pb2.ErrorKind",
        measurement_pb2.ErrorKind.Value(f"ERROR_KIND_{kind.value if kind else 'UNSPECIFIED'}"),
    )


def error_kind_from_proto(value: int) -> ErrorKind | None:
    """None for UNSPECIFIED. A kind that a newer peer invented reads as RUN_FAILED: failed, cause unknown here."""
    if value == 0:
        return None
    if value not in measurement_pb2.ErrorKind.values():
        return ErrorKind.RUN_FAILED
    return ErrorKind(measurement_pb2.ErrorKind.Name(value).removeprefix("ERROR_KIND_"))


def module_kind_to_proto(kind: ModuleKind) -> measurement_pb2.ModuleKind:
    """The number of the kind on the wire."""
    return cast("measurement_pb2.ModuleKind", measurement_pb2.ModuleKind.Value(f"MODULE_KIND_{kind.value}"))


def evaluator_to_proto(evaluator: Evaluator) -> measurement_pb2.Evaluator:
    fields = {name: getattr(evaluator, name) for name in evaluator.__dataclass_fields__}
    return measurement_pb2.Evaluator(**fields)


def evaluator_from_proto(message: measurement_pb2.Evaluator) -> Evaluator:
    """Zero means the default, as the proto says."""
    given = {field.name: value for field, value in message.ListFields()}
    return Evaluator(**given)


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
    )


def trial_from_proto(message: measurement_pb2.MeasureRequest) -> Trial:
    name = measurement_pb2.ModuleKind.Name(message.module_kind or measurement_pb2.MODULE_KIND_FUNCTIONS)
    return Trial(
        candidate_id=message.candidate_id,
        artifact_digest=message.artifact_digest,
        function=message.function or "main",
        args=tuple(map(argument_from_proto, message.args)),
        evaluator=evaluator_from_proto(message.evaluator),
        timeout_sec=duration_sec(message.timeout) if message.HasField("timeout") else 10.0,
        module_kind=ModuleKind(name.removeprefix("MODULE_KIND_")),
        ends_batch=message.ends_batch,
    )


def measurement_from_proto(message: measurement_pb2.Measurement) -> Measurement:
    clocks = message.clocks
    return Measurement(
        candidate_id=message.candidate_id,
        run_secs=tuple(message.run_secs),
        error=error_kind_from_proto(message.error),
        error_message=message.error_message,
        signal=message.signal,
        clocks=Clocks(
            wait_sec=duration_sec(clocks.wait), load_sec=duration_sec(clocks.load), run_sec=duration_sec(clocks.run)
        ),
        provenance=json_format.MessageToDict(message.provenance, preserving_proto_field_name=True),
        time_source=message.time_source or "wall",
        run_cycles=tuple(message.run_cycles),
    )


def measurement_to_proto(measurement: Measurement) -> measurement_pb2.Measurement:
    message = measurement_pb2.Measurement(
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
        run_cycles=measurement.run_cycles,
    )
    json_format.ParseDict(measurement.provenance, message.provenance)
    return message
