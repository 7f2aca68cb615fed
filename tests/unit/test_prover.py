"""Retries of proofs after a refutation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from fleet.artifacts.artifact import Artifact
from fleet.building.built_candidate import BuiltCandidate
from fleet.checking.numerics import InputStyle
from fleet.domain.measuring import TensorSpec
from fleet.domain.proving import Proof, ProofVerdict
from fleet.domain.workload import Workload
from fleet.optimizer import prover

CLAIMED_SEC = 1e-4
SQUARE = TensorSpec((4, 4), "float32")
PROVEN = Proof(verdict=ProofVerdict.PROVEN)


class ScriptedDevice:
    """Answers proofs from a list."""

    def __init__(self, proofs: Sequence[Proof]) -> None:
        self.left = list(proofs)

    async def prove(self, *_: object, **__: object) -> Proof:
        return self.left.pop(0)


def refuted(times_the_claim: float) -> Proof:
    return Proof(verdict=ProofVerdict.REFUTED, least_sec=times_the_claim * CLAIMED_SEC)


@pytest.mark.parametrize(
    ("proofs", "verdict", "tries"),
    [
        ([PROVEN], ProofVerdict.PROVEN, 1),
        ([refuted(1.7), refuted(1.2), refuted(1.3), PROVEN], ProofVerdict.PROVEN, 4),
        ([refuted(1.7)] * 5, ProofVerdict.REFUTED, 4),
        ([refuted(9.0), PROVEN], ProofVerdict.PROVEN, 2),
        ([refuted(9.0)] * 5, ProofVerdict.REFUTED, 2),
    ],
)
async def test_a_refusal_is_tried_again_unless_it_is_plain(
    proofs: list[Proof], verdict: ProofVerdict, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, an honest kernel of the demo took twice its time in two proofs in a row, and was discarded."""
    monkeypatch.setattr(prover, "_PAUSES_SEC", (0.0, 0.0, 0.0))
    device, artifact = ScriptedDevice(proofs), Artifact(path=Path("a.so"), digest="sha256:0")
    args = (SQUARE, TensorSpec((4, 4), "float32", is_output=True))
    workload = Workload(name="w", weight=1, mod_json="", shash="1", flop=1.0, args=args)
    found = prover.Prover(
        device=cast("Any", device), workload=workload, reference=artifact, style=InputStyle.NORMAL, answers=1
    )

    proof = await found.prove(BuiltCandidate(artifact=artifact, features=None), CLAIMED_SEC)

    assert (proof.verdict, len(proofs) - len(device.left)) == (verdict, tries)
