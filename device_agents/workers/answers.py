"""Limits on a worker's answer, derived from its request and checked before the answer is parsed.

Two bytes of an answer can become a hundred in memory once they are parsed, except where they are a tensor's content. So
the structure, everything but content, is counted first, by a walk over the fields that parses nothing, and ends as soon
as
there are more fields than the structure has room for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from device_agents.machine.frames import MAX_FRAME_BYTES, BrokenFrame
from device_agents.workers.walk import LEAST_FIELD_BYTES, Walk
from fleet.domain.measuring import MOST_RUNS
from fleet.v1 import measurement_pb2, session_service_pb2, tensor_pb2, worker_pb2

_STRUCTURE_BYTES = 64 * 1024
"""Messages for people, clocks, names and shapes."""

_STRUCTURE_OF_OPERATORS_BYTES = 1024 * 1024
"""Ten thousand calls of a model, each with its name."""

_REPEAT_BYTES = 16

_SPEC_BYTES = 1024
_MOST_DTYPE_CHARS = 64
_MOST_OUTPUTS = 4096
"""Maximum number of outputs of a Relax VM, which do not follow from its inputs."""

_OUTPUTS = {
    worker_pb2.WorkerResponse.CALL_FIELD_NUMBER: session_service_pb2.CallResponse.OUTPUTS_FIELD_NUMBER,
    worker_pb2.WorkerResponse.PROOF_FIELD_NUMBER: worker_pb2.ProofStepResponse.OUTPUTS_FIELD_NUMBER,
}
"""Protobuf field number of `outputs` in each kind of response that has it, by the response's own field number."""

_CONTENT = tensor_pb2.Tensor.CONTENT_FIELD_NUMBER
_BITS = re.compile(r"[a-z_]+(?P<bits>\d+)?[a-z0-9_]*?(x(?P<lanes>\d+))?")
_LARGEST_BITS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerBound:
    """Limits on the answer to one request."""

    structure_bytes: int = _STRUCTURE_BYTES
    """Size of the message without the contents of its tensors."""

    content_bytes: int = 0
    """Size of all tensors together."""

    outputs: int = 0
    """Number of tensors."""

    @property
    def frame_bytes(self) -> int:
        """Length of the longest frame within the limits."""
        return min(self.structure_bytes + self.content_bytes, MAX_FRAME_BYTES)

    @property
    def most_fields(self) -> int:
        """Most fields that a response within this bound can have."""
        return self.structure_bytes // LEAST_FIELD_BYTES

    def within(self, content_bytes: int) -> AnswerBound:
        """Return these limits with the content limited to a size."""
        return replace(self, content_bytes=min(self.content_bytes, content_bytes))

    def check(self, frame: bytes | bytearray) -> None:
        """Refuse a frame that exceeds the limits.

        Raises:
            BrokenFrame: it is too large, or no message.
        """
        structure = len(frame)
        if self.outputs or structure > self.structure_bytes:
            walk = Walk(frame, self.most_fields)
            for count, size in enumerate(_content_sizes(walk), 1):
                if count > self.outputs:
                    raise BrokenFrame(f"more than {self.outputs} outputs came")
                structure -= size
        if structure > self.structure_bytes or len(frame) > self.frame_bytes:
            raise BrokenFrame(f"{len(frame)} bytes came, {structure} of them not content of outputs")


LARGEST = AnswerBound(content_bytes=MAX_FRAME_BYTES, outputs=_MOST_OUTPUTS)
"""For requests without a known limit."""


def bound_of_trial(request: measurement_pb2.MeasureRequest) -> AnswerBound:
    """Return the limits of a measurement."""
    knobs = request.evaluator
    repeats = max(knobs.repeat, knobs.max_repeat, knobs.look_runs, 0) + max(request.operator_runs, 0)
    repeats = min(repeats, MOST_RUNS)
    operators = _STRUCTURE_OF_OPERATORS_BYTES if request.operator_runs else 0
    return AnswerBound(structure_bytes=_STRUCTURE_BYTES + _REPEAT_BYTES * repeats + operators)


def bound_of_call(request: session_service_pb2.CallRequest) -> AnswerBound:
    """Return the limits of a call's outputs."""
    if request.module_kind == measurement_pb2.MODULE_KIND_RELAX_VM:
        return LARGEST
    specs = list(_specs(request.args))
    return AnswerBound(
        structure_bytes=_STRUCTURE_BYTES + _SPEC_BYTES * len(specs),
        content_bytes=sum(map(_size_bytes, specs)),
        outputs=len(specs),
    )


def bound_of_row(size_bytes: int) -> AnswerBound:
    """Return the limits of the response to a row of a proof, given the size of its digests."""
    return AnswerBound(structure_bytes=_STRUCTURE_BYTES + size_bytes)


def bound_of_answer_again(request: session_service_pb2.ProveRequest) -> AnswerBound:
    """Return the limits of the response to a repeated call of a proof."""
    outputs = [arg.spec for arg in request.args if not arg.bank]
    return AnswerBound(
        structure_bytes=_STRUCTURE_BYTES + _SPEC_BYTES * len(outputs),
        content_bytes=min(sum(map(_size_bytes, outputs)), MAX_FRAME_BYTES),
        outputs=len(outputs),
    )


def _specs(args: Iterable[tensor_pb2.Argument]) -> Iterator[tensor_pb2.TensorSpec]:
    for argument in args:
        match argument.WhichOneof("kind"):
            case "fill":
                yield argument.fill
            case "output":
                yield argument.output
            case "tensor":
                yield argument.tensor.spec


def _size_bytes(spec: tensor_pb2.TensorSpec) -> int:
    """Return the size of a tensor's content, or the largest that fits a frame [bytes]."""
    found = _BITS.fullmatch(spec.dtype) if len(spec.dtype) <= _MOST_DTYPE_CHARS else None
    bits = int(found["bits"] or _LARGEST_BITS) if found else _LARGEST_BITS
    lanes = int(found["lanes"] or 1) if found else 1
    size = max(bits, 8) * lanes // 8
    for extent in spec.shape:
        size = min(size * max(extent, 0), MAX_FRAME_BYTES)  # the holder chooses these numbers
    return size


def _content_sizes(walk: Walk) -> Iterator[int]:
    """Yield the size of each output's content [bytes]; 0 for an output without."""
    for number, start, end in walk.fields(0, len(walk.frame)):
        if number not in _OUTPUTS:
            continue
        for inner, output_start, output_end in walk.fields(start, end):
            if inner == _OUTPUTS[number]:
                contents = (stop - begin for n, begin, stop in walk.fields(output_start, output_end) if n == _CONTENT)
                yield max(contents, default=0)
