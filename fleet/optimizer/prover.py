"""Proof of a winner's time by the agent's clock, with its answers compared to the reference.

The input banks are drawn here at random, after the artifact is built. The reference runs in a fresh worker, because a
candidate could tamper with a worker that it has run in.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fleet.artifacts.artifact import Artifact
from fleet.building.built_candidate import BuiltCandidate
from fleet.checking.index_inputs import inputs_of
from fleet.checking.numerics import InputStyle, compare
from fleet.client.arrays import array_of
from fleet.client.steady import SteadyDevice
from fleet.domain.measuring import Tensor, TensorSpec
from fleet.domain.proving import (
    EXTRA_ITEMS,
    Proof,
    ProofAnswer,
    ProofArgument,
    ProofOrder,
    ProofVerdict,
    contents_of_call,
    is_varying,
)
from fleet.domain.workload import Workload
from fleet.errors import InvalidRequest
from fleet.spaces.packing import Packing, pack_all

if TYPE_CHECKING:
    from fleet.client.arrays import Array

_REFERENCE_TIMEOUT_SEC = 120.0
_PAUSES_SEC = (0.0, 0.3, 1.0)
"""Pauses before retries, each in another worker. A refusal is final, and other virtual machines on the host can slow a
kernel down for a second without a trace in this machine's counters."""

_PLAIN_LIE = 3.0
"""Ratio of proven time to claim above which the second try is final."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prover:
    """Prover of the times of one workload's candidates."""

    device: SteadyDevice
    workload: Workload
    reference: Artifact
    """The unscheduled program."""

    style: InputStyle
    """Style of inputs that make its outputs a meaningful test."""

    answers: int

    async def prove(self, build: BuiltCandidate, claimed_sec: float) -> Proof:
        """Prove a candidate's time, with retries.

        Raises:
            MeasurementError: the device is lost, or the reference failed.
        """
        proof = await self._try(build, claimed_sec)
        for tries, pause_sec in enumerate(_PAUSES_SEC, 1):
            is_plain = tries > 1 and proof.least_sec > _PLAIN_LIE * claimed_sec
            if proof.verdict is not ProofVerdict.REFUTED or is_plain:
                break
            await asyncio.sleep(pause_sec)
            proof = await self._try(build, claimed_sec)
        return proof

    async def _try(self, build: BuiltCandidate, claimed_sec: float) -> Proof:
        drawn = self._draw(secrets.randbits(63), build.packings)
        args = [arg for arg, _ in drawn]
        if not any(map(is_varying, args)):
            return impossible("it has no input that could differ from call to call")
        try:
            proof = await self.device.prove(build.artifact, args, claimed_sec, answers=self.answers)
        except InvalidRequest as error:
            return impossible(str(error))
        order = ProofOrder(artifact_digest=build.artifact.digest, args=tuple(args), claimed_sec=claimed_sec)
        for answer in proof.answers:
            fault = await self._fault(order, answer, [original for _, original in drawn])
            if fault:
                message = f"call {answer.call} of {proof.calls} in a row: {fault}"
                return replace(proof, verdict=ProofVerdict.REFUTED, message=message, answers=())
        return replace(proof, answers=())

    def _draw(self, seed: int, packings: Sequence[Packing]) -> list[tuple[ProofArgument, Array | None]]:
        """Return random arguments. Packed ones come with their unpacked array for the reference, others with None."""
        packed = {packing.argument for packing in packings}
        longer = [
            spec if spec.is_output or index in packed else TensorSpec((_items(spec) + EXTRA_ITEMS,), spec.dtype)
            for index, spec in enumerate(self.workload.args)
        ]
        drawn = inputs_of(self.workload, seed, self.style, args=longer)
        found: list[tuple[ProofArgument, Array | None]] = []
        for index, (array, as_packed) in enumerate(zip(drawn, pack_all(drawn, packings), strict=True)):
            spec = self.workload.args[index]
            if isinstance(as_packed, TensorSpec) or isinstance(array, TensorSpec):
                found.append((ProofArgument(spec=spec), None))
            elif index in packed:
                shown = TensorSpec(tuple(as_packed.shape), spec.dtype)
                found.append((ProofArgument(spec=shown, bank=as_packed.tobytes(), is_fixed=True), array))
            else:
                found.append((ProofArgument(spec=spec, bank=as_packed.tobytes()), None))
        return found

    async def _fault(self, order: ProofOrder, answer: ProofAnswer, originals: Sequence[Array | None]) -> str:
        """Return the difference of an answer from the reference in words; empty if they agree."""
        contents = contents_of_call(order, answer.seed, answer.call)
        inputs = [
            spec if content is None else array_of(Tensor(spec, content)) if original is None else original
            for spec, content, original in zip(self.workload.args, contents, originals, strict=True)
        ]
        expected = await self.device.call(self.reference, inputs, timeout_sec=_REFERENCE_TIMEOUT_SEC, is_apart=True)
        rounds = any(spec.dtype.startswith("float") for spec in self.workload.args if not spec.is_output)
        outputs = [array_of(output) for output in answer.outputs]
        mismatch = compare(outputs, expected, reduction_size=self.workload.terms, are_codes=rounds)
        return mismatch.text if mismatch else ""


def impossible(reason: str) -> Proof:
    """Return a proof without a verdict on the time."""
    return Proof(verdict=ProofVerdict.IMPOSSIBLE, message=reason)


def _items(spec: TensorSpec) -> int:
    return int(np.prod(spec.shape, dtype=np.int64))
