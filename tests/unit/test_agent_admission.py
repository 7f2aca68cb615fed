"""Tokens, epochs and time, without any process."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from device_agents.serving.admission import Admission, Fence
from device_agents.serving.epochs import EpochLedger
from device_agents.serving.tracker_clock import TrackerClock
from fleet.domain.tokens import EPOCHS_END, Claims, TokenSigner
from fleet.errors import LeaseExpired, LeaseRevoked, TrackerUnavailable, Unauthenticated
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


def token(epoch: int, ttl_sec: float = 10.0, nonce: str = "", lease: str = "") -> bytes:
    claims = Claims(
        lease_name=lease or f"leases/{epoch}",
        device_name=DEVICE,
        epoch=epoch,
        expires_at_sec=NOW_SEC + ttl_sec,
        nonce=nonce,
    )
    return sign_claims(claims, SIGNER).SerializeToString()


def fence(epoch: int, nonce: str = "", live: str = "", *, is_reset: bool = False) -> Fence:
    return Fence(device_name=DEVICE, epoch=epoch, nonce=nonce, live_lease_name=live, is_reset=is_reset)


def admission(clock: TrackerClock | None = None, directory: Path | None = None) -> Admission:
    clock = clock or TrackerClock(LocalClock())
    clock.learn(NOW_SEC)
    ledger = EpochLedger(directory) if directory else None
    if ledger:
        ledger.open()
    made = Admission([DEVICE], clock, ledger)
    made.trust(SIGNER.public_key)
    return made


def test_time_goes_on_without_the_tracker() -> None:
    """One message is enough to judge all tokens that come later."""
    local = LocalClock()
    gate = admission(TrackerClock(local))

    local.sec += 9.9
    assert gate.check(token(1)).epoch == 1
    local.sec += 0.2
    with pytest.raises(LeaseExpired, match=r"expired 0\.1 s ago"):
        gate.check(token(1))


def test_no_client_is_admitted_before_the_tracker_was_met() -> None:
    """Tokens are refused without the tracker's key or clock."""
    gate = Admission([DEVICE], TrackerClock(LocalClock()))
    with pytest.raises(TrackerUnavailable):
        gate.check(token(1))
    gate.trust(SIGNER.public_key)
    with pytest.raises(TrackerUnavailable):
        gate.check(token(1))


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 8)), max_size=30))
def test_epochs_only_grow(steps: list[tuple[bool, int]]) -> None:
    """In any order of messages, no token at or below a fence, or below an admitted epoch, is admitted."""
    gate = admission()
    fenced = admitted = 0
    for is_fence, epoch in steps:
        if is_fence:
            gate.fence(fence(epoch))
            fenced = max(fenced, epoch)
            continue
        if epoch <= fenced or epoch < admitted:
            with pytest.raises(LeaseRevoked):
                gate.check(token(epoch))
            continue
        gate.admit(gate.check(token(epoch)))
        admitted = epoch


def test_the_ledger_belongs_to_one_tracker(tmp_path: Path) -> None:
    """A tracker with another key counts for itself; the same tracker's old leases stay over."""
    gate = admission(directory=tmp_path)
    gate.admit(gate.check(token(5)))

    with pytest.raises(LeaseRevoked):
        admission(directory=tmp_path).check(token(4))

    other = admission(directory=tmp_path)
    other.trust(TokenSigner(Ed25519PrivateKey.generate()).public_key)
    other.trust(SIGNER.public_key)
    with pytest.raises(LeaseRevoked):
        other.check(token(4))


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"public_key": 3}',
        "[" * 100_000,
        '{"public_key": "", "admitted": {"devices/a": 9223372036854775808}, "fenced": {}}',
        '{"public_key": "", "admitted": {}, "fenced": {"devices/a": "many"}}',
    ],
    ids=["empty", "torn", "list", "key", "deep", "forged", "text"],
)
def test_a_damaged_ledger_does_not_stop_the_agent(tmp_path: Path, content: str) -> None:
    """Torn by a power cut or forged by a kernel, it starts a new one; the tracker's fences come again."""
    (tmp_path / "epochs.json").write_text(content)

    assert admission(directory=tmp_path).check(token(1)).epoch == 1


def test_the_ledger_is_the_agents_own(tmp_path: Path) -> None:
    """Only the agent can read or replace its ledger; an older agent's public one is taken over."""
    (tmp_path / "epochs.json").write_text(
        json.dumps({"public_key": SIGNER.public_key.hex(), "admitted": {DEVICE: 5}, "fenced": {}})
    )
    private = tmp_path / "private"

    gate = admission(directory=private)
    gate.admit(gate.check(token(6)))

    assert not (tmp_path / "epochs.json").exists()
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert stat.S_IMODE((private / "epochs.json").stat().st_mode) == 0o600
    with pytest.raises(LeaseRevoked):
        admission(directory=private).check(token(5))


def test_a_restarted_agent_reports_its_highest_epoch(tmp_path: Path) -> None:
    """It reports its highest epoch even before it has met its tracker, which counts on from there."""
    gate = admission(directory=tmp_path)
    gate.admit(gate.check(token(5)))
    gate.fence(fence(7))

    ledger = EpochLedger(tmp_path)
    again = Admission([DEVICE], TrackerClock(LocalClock()), ledger)

    assert (again.highest_epoch(DEVICE), again.highest_epoch("devices/b")) == (7, 0)


def test_tokens_of_a_lost_history_are_refused() -> None:
    """After the tracker lost its journal and its clock was set back, tokens unknown to it are refused, even with a
    larger epoch; the lease that it still knows goes on with the earlier start's token.
    """
    gate = admission()
    gate.fence(fence(4, "first"))
    gate.admit(gate.check(token(5, nonce="first")))

    gate.fence(fence(4, "second", "leases/5"))

    assert gate.check(token(5, nonce="first")).epoch == 5
    assert gate.check(token(6, nonce="second")).epoch == 6
    with pytest.raises(LeaseRevoked, match="not known to the tracker"):
        gate.check(token(9, nonce="first"))


def test_the_same_epoch_is_not_the_same_lease() -> None:
    """Granted twice by a tracker that forgot: only the holder whom it knows now gets in."""
    gate = admission()
    gate.fence(fence(4, "first"))
    gate.admit(gate.check(token(5, nonce="first", lease="leases/first-1")))

    gate.fence(fence(4, "second"))

    assert gate.check(token(5, nonce="second", lease="leases/second-1")).nonce == "second"
    with pytest.raises(LeaseRevoked):
        gate.check(token(5, nonce="first", lease="leases/first-1"))


def test_an_epoch_that_none_can_follow_is_not_believed() -> None:
    """Neither a token nor a fence with such an epoch blocks later leases."""
    gate = admission()
    with pytest.raises(Unauthenticated, match="no tracker counts"):
        gate.check(token(EPOCHS_END))
    gate.fence(fence(EPOCHS_END))

    assert gate.check(token(1)).epoch == 1


def test_a_reset_forgets_epochs_and_brings_no_holder_back() -> None:
    """A reset by the operator accepts smaller epochs again, but not the earlier tokens."""
    gate = admission()
    gate.fence(fence(1, "first"))
    gate.admit(gate.check(token(EPOCHS_END - 1, nonce="first")))

    gate.fence(fence(10, "second", is_reset=True))

    assert gate.highest_epoch(DEVICE) == 10
    assert gate.check(token(11, nonce="second")).epoch == 11
    for epoch in (5, 12, EPOCHS_END - 1):
        with pytest.raises(LeaseRevoked):
            gate.check(token(epoch, nonce="first"))


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


def test_a_machine_that_slept_with_its_tracker_has_its_time_again_once_it_asked() -> None:
    """The tracker's clock stops during suspend: every lease used to be refused as expired for five minutes."""
    local = LocalClock()
    clock = TrackerClock(local)
    gate = admission(clock)
    local.sec += 60.0
    clock.learn(NOW_SEC + 1.0)
    assert clock.is_doubtful

    clock.restart()
    clock.learn(NOW_SEC + 1.0)

    assert not clock.is_doubtful
    assert gate.check(token(1)).epoch == 1


@pytest.mark.parametrize("stood_still_sec", [60.0, 600.0])
def test_messages_of_long_ago_do_not_bring_a_lease_back(stood_still_sec: float) -> None:
    """A stalled process first reads a backlog of messages, as if the tracker's clock had stopped."""
    local = LocalClock()
    clock = TrackerClock(local)
    gate = admission(clock)
    local.sec += stood_still_sec

    for sec in (5.0, 10.0, 15.0):
        clock.learn(NOW_SEC + sec)

    assert clock.is_doubtful
    with pytest.raises(LeaseExpired):
        gate.check(token(1, ttl_sec=20.0))
