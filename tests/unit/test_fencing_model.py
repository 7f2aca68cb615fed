"""Every state of the fencing protocol, within bounds: no old holder gets in, no present one is kept out."""

from __future__ import annotations

import pytest

from tests.unit.fencing_model import Found, Model, Remedies, search

GETS_IN = "whoever does not hold the device can use it"
KEPT_OUT = "whoever holds the device is refused"
WENT_BACK = "an epoch was repeated or went back"


def found(remedies: Remedies, most_moves: int = 9) -> Found:
    return search(Model(remedies), most_moves=most_moves)


@pytest.mark.slow
def test_invariants_hold_whichever_messages_are_lost() -> None:
    """Kills, a wiped or restored journal, a clock set back, a lost ledger and stolen tokens, in any order of eleven
    moves: only the holder gets in, and does; epochs grow unless both the journal and the agent's ledger are lost."""
    result = found(Remedies(), most_moves=11)

    assert result.faults == {}
    assert result.states > 30_000


@pytest.mark.parametrize(
    ("remedies", "faults"),
    [
        (Remedies(fine_clock=False, reports=False, nonce=False), {GETS_IN, KEPT_OUT, WENT_BACK}),
        (Remedies(reports=False, nonce=False), {GETS_IN, KEPT_OUT}),
        (Remedies(nonce=False), {GETS_IN, WENT_BACK}),
        (Remedies(reports=False), {KEPT_OUT}),
        (Remedies(fine_clock=False, reports=False), {KEPT_OUT, WENT_BACK}),
    ],
    ids=["as it was", "clock only", "without the nonce", "without reports", "nonce only"],
)
def test_without_a_remedy_its_fault_is_found(remedies: Remedies, faults: set[str]) -> None:
    """The search can fail: with the protocol's earlier states, it finds the faults that attacks on them had found."""
    assert faults == set(found(remedies).faults)


def test_the_way_to_a_fault_is_the_shortest() -> None:
    """The way reads as a story: here, a token was still unused when the journal was wiped."""
    way = found(Remedies(fine_clock=False, reports=False, nonce=False)).faults[GETS_IN]

    assert way == (
        "tracker starts",
        "agent attaches",
        "granted",
        "tracker killed",
        "tracker starts on a wiped journal",
        "agent attaches",
    )
