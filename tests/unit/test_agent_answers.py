"""Size limits for a worker's answer, derived from the request and checked before the answer is parsed."""

from __future__ import annotations

import tracemalloc

import pytest

from device_agents.machine.frames import MAX_FRAME_BYTES, BrokenFrame
from device_agents.workers.answers import LARGEST, AnswerBound, bound_of_call, bound_of_trial
from fleet.v1 import measurement_pb2, session_service_pb2, tensor_pb2, worker_pb2

_MIB = 1024 * 1024


def tensor(*shape: int, content: bytes = b"") -> tensor_pb2.Tensor:
    return tensor_pb2.Tensor(spec=tensor_pb2.TensorSpec(shape=shape, dtype="float32"), content=content)


def answer(*outputs: tensor_pb2.Tensor) -> bytes:
    call = session_service_pb2.CallResponse(outputs=outputs)
    return worker_pb2.WorkerResponse(call=call).SerializeToString()


def request(*shape: int) -> session_service_pb2.CallRequest:
    spec = tensor_pb2.TensorSpec(shape=shape, dtype="float32")
    return session_service_pb2.CallRequest(args=[tensor_pb2.Argument(output=spec)])


def empty_outputs(count: int) -> bytes:
    """Return an answer of that many outputs without anything in them: two bytes each."""
    outputs = b"\x0a\x00" * count
    size, header = len(outputs), bytearray(b"\x12")
    while size > 0x7F:
        header.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes(header + bytes([size])) + outputs


def test_an_answer_of_the_size_that_was_asked_for_is_one() -> None:
    """Content counts by the shapes of the arguments, in any number of them."""
    bound_of_call(request(256, 256)).check(answer(tensor(256, 256, content=bytes(256 * 256 * 4))))
    LARGEST.check(answer(*(tensor(8, content=bytes(32)) for _ in range(100))))
    bound_of_trial(measurement_pb2.MeasureRequest()).check(b"")


@pytest.mark.parametrize(
    "frame",
    [
        answer(tensor(256, content=bytes(4 * 256 * 1024))),
        answer(tensor(256, content=bytes(1024)), tensor(256, content=bytes(4))),
        worker_pb2.WorkerResponse(
            call=session_service_pb2.CallResponse(error_message="a" * 200_000)
        ).SerializeToString(),
        b"\x12\xff\xff\xff\xff\x0f",
        b"\x12\x05\x0a",
        b"\xff" * 12,
        b"\x13\x00",
    ],
    ids=["too large", "too many", "too much text", "a length beyond the end", "cut", "no number", "no kind"],
)
def test_a_malformed_answer_is_refused(frame: bytes) -> None:
    """Each gets the same error as a broken frame."""
    with pytest.raises(BrokenFrame):
        bound_of_call(request(256)).check(frame)


@pytest.mark.parametrize("bound", [bound_of_call(request(2**22)), LARGEST], ids=["function", "model"])
def test_millions_of_empty_outputs_are_refused_without_being_parsed(bound: AnswerBound) -> None:
    """24 MiB of them would take a gigabyte; to refuse them takes nothing."""
    frame = empty_outputs(12 * _MIB)
    tracemalloc.start()

    with pytest.raises(BrokenFrame, match="outputs"):
        bound.check(frame)

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < _MIB


def test_a_frame_of_very_many_fields_is_refused_before_it_is_walked_through() -> None:
    """Twelve million numbers held the agent's loop for five seconds: there are more of them than its bytes may be."""
    with pytest.raises(BrokenFrame, match="more fields than an answer has"):
        LARGEST.check(b"\x08\x00" * (12 * _MIB))


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((2,), "float" + "9" * 5000), ((2,), "a" * 100_000 + "!"), ((2**62,) * 100_000, "float32")],
    ids=["digits", "letters", "dimensions"],
)
def test_a_bound_follows_from_any_request_soon(shape: tuple[int, ...], dtype: str) -> None:
    """Types and shapes come from a lease's holder; no bound exceeds the size of a frame."""
    spec = tensor_pb2.TensorSpec(shape=shape, dtype=dtype)

    bound = bound_of_call(session_service_pb2.CallRequest(args=[tensor_pb2.Argument(output=spec)]))

    assert bound.frame_bytes <= MAX_FRAME_BYTES


def test_a_measurement_is_small() -> None:
    """The bound grows with the requested repeats alone, not with anything that a candidate sends."""
    few = measurement_pb2.MeasureRequest(evaluator=measurement_pb2.Evaluator(repeat=3))
    long_look = measurement_pb2.MeasureRequest(evaluator=measurement_pb2.Evaluator(repeat=3, look_runs=100_000))
    many = measurement_pb2.MeasureRequest(evaluator=measurement_pb2.Evaluator(repeat=100_000))
    endless = measurement_pb2.MeasureRequest(evaluator=measurement_pb2.Evaluator(repeat=2**31 - 1))
    times = measurement_pb2.Measurement(run_secs=[0.001] * 100_000)
    frame = worker_pb2.WorkerResponse(measurement=times).SerializeToString()

    assert bound_of_trial(few).frame_bytes < 100_000
    with pytest.raises(BrokenFrame):
        bound_of_trial(few).check(frame)
    bound_of_trial(many).check(frame)
    bound_of_trial(long_look).check(frame)
    assert bound_of_trial(endless).frame_bytes < 2 * _MIB
