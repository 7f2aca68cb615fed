"""Tokens, epochs and time, without any process."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from device_agents.serving.admission import Admission
from device_agents.serving.tracker_clock import TrackerClock
from fleet.domain.tokens import Claims, TokenSigner
from fleet.errors import LeaseExpired, LeaseRevoked, TrackerUnavailable
from fleet.wire.tokens import sign_claims

DEVICE = "devices/a"
SIGNER = TokenSigner(Ed25519PrivateKey.generate())
NOW_SEC = 2_000_000_000.0


class LocalClock:
    """A clock since boot, moved by hand."""

    def __init__(self) -> None:
        self.sec = 100.0

    def __call__(self) -> float:
        return self.sec


def token(epoch: int, ttl_sec: float = 10.0) -> bytes:
    claims = Claims(lease_name=f"leases/{epoch}", device_name=DEVICE, epoch=epoch, expires_at_sec=NOW_SEC + ttl_sec)
    return sign_claims(claims, SIGNER).SerializeToString()


def admission(local: LocalClock | None = None, ledger: Path | None = None) -> Admission:
    clock = TrackerClock(local or LocalClock())
    clock.learn(NOW_SEC)
    made = Admission([DEVICE], clock, ledger)
    made.trust(SIGNER.public_key)
    return made


def test_time_goes_on_without_the_tracker() -> None:
    """One message is enough to judge all tokens that come later."""
    local = LocalClock()
    gate = admission(local)

    local.sec += 9.9
    assert gate.check(token(1)).epoch == 1
    local.sec += 0.2
    with pytest.raises(LeaseExpired, match=r"expired 0\.1 s ago"):
        gate.check(token(1))


def test_nothing_is_admitted_before_the_tracker_was_met() -> None:
    """Nothing is admitted without the tracker's key, nor without its clock."""
    gate = Admission([DEVICE], TrackerClock(LocalClock()))
    with pytest.raises(TrackerUnavailable):
        gate.check(token(1))
    gate.trust(SIGNER.public_key)
    with pytest.raises(TrackerUnavailable):
        gate.check(token(1))


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 8)), max_size=30))
def test_epochs_only_grow(steps: list[tuple[bool, int]]) -> None:
    """Whatever comes in whatever order, nothing at or below a fence, or below an admitted epoch, gets in."""
    gate = admission()
    fenced = admitted = 0
    for is_fence, epoch in steps:
        if is_fence:
            gate.fence(DEVICE, epoch)
            fenced = max(fenced, epoch)
            continue
        if epoch <= fenced or epoch < admitted:
            with pytest.raises(LeaseRevoked):
                gate.check(token(epoch))
            continue
        gate.admit(gate.check(token(epoch)))
        admitted = epoch


def test_the_ledger_belongs_to_one_tracker(tmp_path: Path) -> None:
    """A tracker with another key starts again at epoch 1; the same tracker does not."""
    ledger = tmp_path / "epochs.json"
    gate = admission(ledger=ledger)
    gate.admit(gate.check(token(5)))

    with pytest.raises(LeaseRevoked):
        admission(ledger=ledger).check(token(4))

    other = admission(ledger=ledger)
    other.trust(TokenSigner(Ed25519PrivateKey.generate()).public_key)
    other.trust(SIGNER.public_key)
    with pytest.raises(LeaseRevoked):
        other.check(token(4))


def test_a_torn_ledger_does_not_stop_the_agent(tmp_path: Path) -> None:
    """It starts a new one; the tracker's fences come again."""
    ledger = tmp_path / "epochs.json"
    for content in ("", "{", "[]", '{"public_key": 3}'):
        ledger.write_text(content)
        assert admission(ledger=ledger).check(token(1)).epoch == 1


def test_the_least_delayed_message_sets_the_clock() -> None:
    """A message that was 2 s under way does not set the clock back."""
    local = LocalClock()
    clock = TrackerClock(local)
    clock.learn(NOW_SEC)
    local.sec += 5.0
    clock.learn(NOW_SEC + 5.0 - 2.0)

    assert clock.now_sec() == pytest.approx(NOW_SEC + 5.0)


def test_old_offsets_are_forgotten() -> None:
    """Crystals drift: an offset from long ago is not the best for ever."""
    local = LocalClock()
    clock = TrackerClock(local)
    clock.learn(NOW_SEC + 1.0)
    local.sec += 1000.0
    clock.learn(NOW_SEC + 1000.0)

    assert clock.now_sec() == pytest.approx(NOW_SEC + 1000.0)


def test_a_new_connection_starts_the_clock_over() -> None:
    """A restarted tracker may have another clock; the old one serves until it speaks."""
    local = LocalClock()
    clock = TrackerClock(local)
    clock.learn(NOW_SEC + 30.0)
    clock.restart()
    assert clock.now_sec() == pytest.approx(NOW_SEC + 30.0)
    clock.learn(NOW_SEC)
    assert clock.now_sec() == pytest.approx(NOW_SEC)
