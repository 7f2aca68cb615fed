"""Handles the messages of a proof inside a worker."""

from __future__ import annotations

from device_agents.runtimes.contract import MAX_MESSAGE_CHARS, CandidateFailed, Runtime, classify
from device_agents.runtimes.proving import NotProvable, ProofRows
from fleet.domain.measuring import ErrorKind
from fleet.v1 import worker_pb2
from fleet.wire.measurements import error_kind_to_proto, tensor_to_proto
from fleet.wire.proofs import proof_order_from_proto

_UNOPENED = "a proof begins with its arguments"


class ProofSteps:
    """State of the one proof that a worker runs."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._rows: ProofRows | None = None

    def answer(self, step: worker_pb2.ProofStep, path: str) -> worker_pb2.WorkerResponse:
        """Run one step and return its response; a failure is reported in it."""
        try:
            return worker_pb2.WorkerResponse(proof=self._do(step, path))
        except NotProvable as reason:
            return worker_pb2.WorkerResponse(proof=worker_pb2.ProofStepResponse(impossible=str(reason)))
        except Exception as error:  # noqa: BLE001 - outermost edge of a candidate: every failure becomes its result
            failure = classify(error)
        response = worker_pb2.ProofStepResponse(
            error=error_kind_to_proto(failure.kind), error_message=str(failure)[:MAX_MESSAGE_CHARS]
        )
        return worker_pb2.WorkerResponse(proof=response, is_last=failure.is_fatal)

    def _do(self, step: worker_pb2.ProofStep, path: str) -> worker_pb2.ProofStepResponse:
        if step.WhichOneof("kind") == "open":
            order = proof_order_from_proto(step.open)
            self._rows = ProofRows(order, self._runtime.prepare_proof(order))
            return worker_pb2.ProofStepResponse()
        if self._rows is None:
            raise CandidateFailed(ErrorKind.BAD_ARGUMENTS, _UNOPENED)
        match step.WhichOneof("kind"):
            case "load":
                self._rows.load(path)
                return worker_pb2.ProofStepResponse()
            case "row":
                return worker_pb2.ProofStepResponse(digests=self._rows.row(step.row.seed, step.row.calls))
            case _:
                outputs = self._rows.again(step.again.seed, step.again.call)
                return worker_pb2.ProofStepResponse(outputs=map(tensor_to_proto, outputs))
