"""Conversion of proofs from and to protobuf."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from fleet.domain.measuring import TensorSpec
from fleet.domain.proving import Proof, ProofAnswer, ProofArgument, ProofOrder, ProofVerdict
from fleet.v1 import session_service_pb2 as pb
from fleet.wire.measurements import tensor_from_proto, tensor_spec_to_proto, tensor_to_proto
from fleet.wire.times import duration, duration_sec

_VERDICTS: Mapping[ProofVerdict, pb.ProofVerdict] = {
    verdict: cast("pb.ProofVerdict", pb.ProofVerdict.Value(f"PROOF_VERDICT_{verdict.value}"))
    for verdict in ProofVerdict
}
_VERDICTS_BY_NUMBER = {int(number): verdict for verdict, number in _VERDICTS.items()}
_DEFAULT = ProofOrder(artifact_digest="", args=(), claimed_sec=0.0)


def proof_order_to_proto(order: ProofOrder) -> pb.ProveRequest:
    """Return a proof order as a message."""
    return pb.ProveRequest(
        artifact_digest=order.artifact_digest,
        function=order.function,
        args=[
            pb.ProofArgument(spec=tensor_spec_to_proto(arg.spec), bank=arg.bank, is_fixed=arg.is_fixed)
            for arg in order.args
        ],
        claimed_sec=order.claimed_sec,
        timeout=duration(order.timeout_sec),
        answers=order.answers,
        allow_poison=order.allow_poison,
    )


def proof_order_from_proto(message: pb.ProveRequest) -> ProofOrder:
    """Read a proof order. An argument without a bank is an output."""
    return ProofOrder(
        artifact_digest=message.artifact_digest,
        function=message.function or _DEFAULT.function,
        args=tuple(
            ProofArgument(
                spec=TensorSpec(tuple(arg.spec.shape), arg.spec.dtype, is_output=not arg.bank),
                bank=arg.bank,
                is_fixed=arg.is_fixed,
            )
            for arg in message.args
        ),
        claimed_sec=message.claimed_sec,
        timeout_sec=duration_sec(message.timeout) if message.HasField("timeout") else _DEFAULT.timeout_sec,
        answers=message.answers or _DEFAULT.answers,
        allow_poison=message.allow_poison,
    )


def proof_to_proto(proof: Proof) -> pb.ProveResponse:
    """Return a proof as a message, without the claim, which is in the request."""
    return pb.ProveResponse(
        verdict=_VERDICTS[proof.verdict],
        measured_sec=proof.measured_sec,
        least_sec=proof.least_sec,
        calls=proof.calls,
        message=proof.message,
        spread_sec=proof.spread_sec,
        answers=[
            pb.ProofAnswer(seed=answer.seed, call=answer.call, outputs=map(tensor_to_proto, answer.outputs))
            for answer in proof.answers
        ],
    )


def proof_from_proto(message: pb.ProveResponse, claimed_sec: float) -> Proof:
    """Read a proof of a claim. Unknown verdicts of newer peers become IMPOSSIBLE."""
    answers = (
        ProofAnswer(seed=answer.seed, call=answer.call, outputs=tuple(map(tensor_from_proto, answer.outputs)))
        for answer in message.answers
    )
    return Proof(
        verdict=_VERDICTS_BY_NUMBER.get(message.verdict, ProofVerdict.IMPOSSIBLE),
        claimed_sec=claimed_sec,
        measured_sec=message.measured_sec,
        least_sec=message.least_sec,
        spread_sec=message.spread_sec,
        calls=message.calls,
        message=message.message,
        answers=tuple(answers),
    )
