"""Messages between an agent and its workers, both ways: a candidate may write anything to its worker's socket."""

from __future__ import annotations

import asyncio
import contextlib
import json

from google.protobuf.message import DecodeError

from device_agents.machine.frames import BrokenFrame, format_frame
from device_agents.measuring.reference import ReferenceTimes
from device_agents.runtimes.proving import NotProvable, ProofParts
from device_agents.workers.answers import (
    LARGEST,
    AnswerBound,
    bound_of_answer_again,
    bound_of_call,
    bound_of_row,
    bound_of_trial,
)
from device_agents.workers.link import WorkerLink
from device_agents.workers.proof_steps import ProofSteps
from device_agents.workers.worker import answer
from fleet.domain.measuring import Call, Measurement, Tensor, Trial
from fleet.domain.proving import EXTRA_ITEMS, ProofOrder
from fleet.v1 import device_pb2, measurement_pb2, session_service_pb2, tensor_pb2, worker_pb2
from fleet.wire.measurements import (
    error_kind_from_proto,
    evaluator_from_proto,
    measurement_from_proto,
    tensor_from_proto,
    trial_timeout_sec,
)
from fleet.wire.times import duration
from tests.fuzz.loops import ServerLoop
from tests.fuzz.target import Target, no_loop

_SPEC = tensor_pb2.TensorSpec(shape=[2, 2], dtype="float32")
_TENSOR = tensor_pb2.Tensor(spec=_SPEC, content=bytes(16))
_CALL = session_service_pb2.CallRequest(
    artifact_digest="sha256:" + "0" * 64,
    args=[tensor_pb2.Argument(tensor=_TENSOR), tensor_pb2.Argument(output=_SPEC), tensor_pb2.Argument(int_value=1)],
    timeout=duration(2.0),
)
_TRIAL = measurement_pb2.MeasureRequest(
    candidate_id="c",
    artifact_digest="sha256:" + "0" * 64,
    args=[tensor_pb2.Argument(fill=_SPEC)],
    evaluator=measurement_pb2.Evaluator(repeat=3, number=2, min_repeat_ms=1),
    timeout=duration(2.0),
)
_MOST_PIECES = 300
_PROOF = session_service_pb2.ProveRequest(
    artifact_digest="sha256:" + "0" * 64,
    args=[
        session_service_pb2.ProofArgument(spec=_SPEC, bank=bytes(16 + 4 * EXTRA_ITEMS)),
        session_service_pb2.ProofArgument(spec=_SPEC),
    ],
    claimed_sec=1e-3,
)
_BOUNDS = (
    bound_of_trial(_TRIAL),
    bound_of_call(_CALL),
    bound_of_row(64),
    bound_of_answer_again(_PROOF),
    LARGEST,
    AnswerBound(),
)


class _Nowhere(asyncio.Transport):
    """A transport that discards all data."""

    def write(self, data: object) -> None:
        pass

    def close(self) -> None:
        pass

    def is_closing(self) -> bool:
        return False


class _Runtime:
    """Runs nothing."""

    def measure(self, trial: Trial, path: str) -> Measurement:
        return Measurement(candidate_id=trial.candidate_id)

    def call(self, call: Call, path: str) -> list[Tensor]:
        return []

    def reference(self) -> list[float]:
        return []

    def prepare_proof(self, order: ProofOrder) -> ProofParts:
        raise NotProvable("it runs nothing")


class _Link:
    """The agent's end of a worker's socket."""

    def __init__(self) -> None:
        self._loop: ServerLoop | None = None

    def run(self, content: bytes) -> float:
        self._loop = self._loop or ServerLoop()
        return self._loop.run(self._talk(content))

    def close(self) -> None:
        if self._loop is not None:
            self._loop.close()
        self._loop = None

    async def _talk(self, content: bytes) -> None:
        """Let a worker answer in a few hundred pieces at most; the first byte gives their size."""
        link = WorkerLink()
        link.connection_made(_Nowhere())
        size = max(1, content[0] ** 2, len(content) // _MOST_PIECES) if content else 1
        future = link.ask(b"", LARGEST.frame_bytes)
        for start in range(1, len(content), size):
            await asyncio.sleep(0)
            link.data_received(content[start : start + size])
            if future.done():
                break
        link.connection_lost(None)
        with contextlib.suppress(BrokenFrame, ConnectionError):
            await future


def _answer(content: bytes) -> None:
    """Read an answer as the agent does, and then as its client."""
    for bound in _BOUNDS:
        try:
            bound.check(content)
            response = worker_pb2.WorkerResponse.FromString(content)
        except (BrokenFrame, DecodeError):
            continue
        times = ReferenceTimes()
        times.take(response.reference.secs, 1, 1.0)
        assert times.ratio is not None
        times.current_sec(1.0)
        measurement = response.measurement
        error_kind_from_proto(measurement.error)
        measurement.provenance.disturbances.extend([measurement_pb2.Disturbance()])
        sent = measurement_pb2.Measurement.FromString(measurement.SerializeToString())
        json.dumps(measurement_from_proto(sent).provenance)
        for output in (*response.call.outputs, *response.proof.outputs):
            tensor_from_proto(output)
        error_kind_from_proto(response.proof.error)


def _request(content: bytes) -> None:
    """Read a holder's request as the agent does, and then as the worker."""
    try:
        request = worker_pb2.WorkerRequest.FromString(content)
    except DecodeError:
        return
    assert bound_of_trial(request.measure).frame_bytes > 0
    assert bound_of_call(request.call).frame_bytes > 0
    trial_timeout_sec(request.measure)
    evaluator_from_proto(request.measure.evaluator)
    assert bound_of_answer_again(request.proof.open).frame_bytes > 0
    ProofSteps(_Runtime()).answer(request.proof, "")
    answer(request, _Runtime())


def _answers() -> list[bytes]:
    provenance = measurement_pb2.Provenance(
        before=device_pb2.Telemetry(temp_c=40.0), worker_pid=3, owner_facts_json='{"a": 1}', cooldown=duration(1.0)
    )
    measurement = measurement_pb2.Measurement(
        candidate_id="c",
        run_secs=[1e-3, 2e-3],
        clocks=measurement_pb2.Clocks(load=duration(0.1), run=duration(0.2)),
        provenance=provenance,
        run_cycles=[1, 2],
        operators=measurement_pb2.OperatorProfile(calls=[measurement_pb2.OperatorCall(function="f")], run_secs=[1.0]),
    )
    # Encoded by hand: a timestamp beyond the range of its JSON form, which the message class refuses.
    call = session_service_pb2.CallResponse(outputs=[_TENSOR, _TENSOR], error_message="no")
    reference = worker_pb2.ReferenceResponse(secs=[1e-3, 1e-3])
    return [
        worker_pb2.WorkerResponse(measurement=measurement).SerializeToString(),
        worker_pb2.WorkerResponse(call=call, is_last=True).SerializeToString(),
        worker_pb2.WorkerResponse(reference=reference).SerializeToString(),
    ]


def _requests() -> list[bytes]:
    return [
        worker_pb2.WorkerRequest(measure=_TRIAL, artifact_path="/a").SerializeToString(),
        worker_pb2.WorkerRequest(call=_CALL, artifact_path="/a").SerializeToString(),
        worker_pb2.WorkerRequest(proof=worker_pb2.ProofStep(open=_PROOF), artifact_path="/a").SerializeToString(),
    ]


_link = _Link()
WORKERS = [
    Target(
        name="worker_link",
        run=_link.run,
        close=_link.close,
        seeds=lambda: [b"\x10" + format_frame(one) for one in _answers()],
        words=(b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x01\0\0\0"),
        quick_inputs=500,
    ),
    Target(name="worker_answer", run=no_loop(_answer), seeds=_answers, large_bytes=256 * 1024),
    Target(
        name="worker_request", run=no_loop(_request), seeds=_requests, words=(b"float32", b"int", b"x4", b"Infinity")
    ),
]
