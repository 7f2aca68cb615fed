"""Passes arrays through the agent as serialised bytes: it parses messages without them and forwards them unchanged.

Parsing and serialising a call with 256 MiB of arrays would take five times its size in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from device_agents.machine.frames import BrokenFrame
from device_agents.workers.walk import LEAST_FIELD_BYTES, Walk, field_of
from fleet.errors import InvalidRequest
from fleet.v1 import measurement_pb2, session_service_pb2, tensor_pb2, worker_pb2

Buffer: TypeAlias = bytes | bytearray | memoryview

_STRUCTURE_OF_REQUEST_BYTES = 256 * 1024
"""Room for thousands of arguments with their shapes."""

_ARRAY = (tensor_pb2.Argument.TENSOR_FIELD_NUMBER, tensor_pb2.Tensor.CONTENT_FIELD_NUMBER)
CALL_CONTENT = (session_service_pb2.CallRequest.ARGS_FIELD_NUMBER, *_ARRAY)
TRIAL_CONTENT = (measurement_pb2.MeasureRequest.ARGS_FIELD_NUMBER, *_ARRAY)
PROOF_CONTENT = (
    session_service_pb2.ProveRequest.ARGS_FIELD_NUMBER,
    session_service_pb2.ProofArgument.BANK_FIELD_NUMBER,
)
"""Paths of field numbers, outermost first, to the contents of arrays."""

_OUTPUTS = (worker_pb2.WorkerResponse.CALL_FIELD_NUMBER, session_service_pb2.CallResponse.OUTPUTS_FIELD_NUMBER)


def check_structure(request: Buffer, *paths: Sequence[int]) -> None:
    """Check that a request has no more structure than a call needs, before it is parsed.

    A megabyte of empty arguments takes a hundred megabytes in memory.

    Args:
        paths: field paths to bytes that do not count as structure, such as contents of arrays.

    Raises:
        InvalidRequest: the request has too much structure, or is not a valid message.
    """
    if len(request) <= _STRUCTURE_OF_REQUEST_BYTES:
        return
    try:
        most_fields = _STRUCTURE_OF_REQUEST_BYTES // LEAST_FIELD_BYTES
        structure = len(request) - sum(Walk(request, most_fields).size_of(path) for path in paths)
    except BrokenFrame as broken:
        raise InvalidRequest(f"a request that cannot be read: {broken}") from broken
    if structure > _STRUCTURE_OF_REQUEST_BYTES:
        raise InvalidRequest(
            f"a request with {structure} bytes beside its arrays' contents; at most {_STRUCTURE_OF_REQUEST_BYTES}"
        )


def without_contents(request: Buffer, path: Sequence[int]) -> bytes:
    """Return a request without the contents of its arrays.

    Raises:
        InvalidRequest: the request has too much structure, or is not a valid message.
    """
    check_structure(request, path)
    try:
        return Walk(request, _STRUCTURE_OF_REQUEST_BYTES // LEAST_FIELD_BYTES).without(path)
    except BrokenFrame as broken:
        raise InvalidRequest(f"a request that cannot be read: {broken}") from broken


def order_of(kind_field: int, request: Buffer, artifact_path: str) -> list[Buffer]:
    """Return a serialised WorkerRequest in parts, of which one is the given serialised request.

    Args:
        kind_field: number of the WorkerRequest field that takes the request.
    """
    rest = worker_pb2.WorkerRequest(artifact_path=artifact_path).SerializeToString()
    return [field_of(kind_field, len(request)), request, rest]


@dataclass(frozen=True, slots=True)
class CallAnswer:
    """Outcome of a call, with serialised outputs."""

    head: session_service_pb2.CallResponse
    """The response without its outputs."""

    outputs: tuple[Buffer, ...] = ()
    """Outputs as serialised fields of a CallResponse."""

    @property
    def parts(self) -> list[Buffer]:
        """Return the consecutive parts of the serialised CallResponse."""
        return [self.head.SerializeToString(), *self.outputs]

    @property
    def size_bytes(self) -> int:
        """Total size of all parts."""
        return sum(map(len, self.parts))


def split_answer(frame: Buffer, most_fields: int) -> tuple[worker_pb2.WorkerResponse, tuple[Buffer, ...]]:
    """Split a worker's response to a call into the response without outputs and the outputs, still serialised.

    Raises:
        BrokenFrame: the fields of the frame cannot be followed, or are more than `most_fields`.
        DecodeError: the frame is not a valid WorkerResponse.
    """
    content = (*_OUTPUTS, tensor_pb2.Tensor.CONTENT_FIELD_NUMBER)
    response = worker_pb2.WorkerResponse.FromString(Walk(frame, most_fields).without(content))
    response.call.ClearField("outputs")
    view = memoryview(frame)
    return response, tuple(view[start:end] for start, end in Walk(frame, most_fields).places(_OUTPUTS))
