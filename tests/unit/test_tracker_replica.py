"""The parts of a standby without a process: grants that wait for it, its commits, and the tracker that agents obey."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from device_agents.serving.admission import Admission
from device_agents.serving.epochs import EpochLedger
from device_agents.serving.tracker_clock import TrackerClock
from fleet.domain.leases import LeaseEnd, LeaseTerms
from fleet.domain.terms import larger_term, make_proof, read_term
from fleet.errors import ConfigError, InvalidRequest, JournalDamaged, LimitReached, TrackerSuperseded, Unauthenticated
from fleet.identity.other_tracker import OtherTracker
from fleet.testing import FakeClock
from fleet.tracker.core import events as ev
from fleet.tracker.core.records import LeaseEntry
from fleet.tracker.journal.checking import Chain
from fleet.tracker.journal.codec import sum_of
from fleet.tracker.journal.commits import Commit, check_commit
from fleet.tracker.replica.feed import Feed
from fleet.tracker.replica.gate import PATIENCE_SEC, Gate
from fleet.tracker.replica.messages import commit_from_proto, commit_to_proto, portions_of
from fleet.tracker.replica.primary_clock import PrimaryClock
from fleet.tracker.replica.standing import Duty, Standing, read_standing, write_standing
from fleet.tracker.replica.untold import Untold
from fleet.tracker.replica.witnesses import Witnesses

KEY = Ed25519PrivateKey.generate()
PUBLIC_KEY = KEY.public_key().public_bytes_raw()


def followed(commit: int = 0) -> Gate[str]:
    """Return a gate with a standby that keeps up."""
    gate: Gate[str] = Gate()
    gate.begin(commit)
    gate.acknowledge(commit, 0.0)
    assert gate.is_followed
    return gate


def holds(gate: Gate[str], item: str) -> bool:
    """Hold an item unless it can go at once."""
    if gate.is_closed:
        gate.hold(item)
        return True
    return False


def commit_number(number: int, *keys: str) -> Commit:
    return Commit(chain=Chain(boot=7, commits=number), rows=tuple((key, "{}", sum_of(key, "{}")) for key in keys))


def test_without_a_standby_nothing_waits() -> None:
    assert not Gate[str]().is_closed


def test_items_wait_for_their_commit_and_keep_their_order() -> None:
    """An item without a commit of its own waits behind earlier items."""
    gate = followed()
    gate.note_commit(1, 1.0)
    assert holds(gate, "grant 1")
    assert holds(gate, "notice")
    gate.note_commit(2, 1.0)
    assert holds(gate, "grant 2")

    assert gate.acknowledge(1, 1.01) == ["grant 1", "notice"]
    assert gate.acknowledge(2, 1.01) == ["grant 2"]
    assert not holds(gate, "later")


def test_a_slow_standby_stops_nobody_until_it_has_caught_up() -> None:
    gate = followed()
    gate.note_commit(1, 1.0)
    assert holds(gate, "grant")
    assert gate.due_sec() == 1.0 + PATIENCE_SEC
    assert gate.give_up_late(1.0 + PATIENCE_SEC / 2) == []

    assert gate.give_up_late(1.0 + PATIENCE_SEC) == ["grant"]
    gate.note_commit(2, 1.2)
    assert not holds(gate, "at once")
    gate.acknowledge(1, 1.2 + PATIENCE_SEC)
    assert not gate.is_followed
    gate.acknowledge(2, 1.2 + PATIENCE_SEC)
    assert gate.is_followed


@pytest.mark.parametrize("commit", [2, 0])
def test_a_standby_that_acknowledges_what_was_not_sent_is_refused(commit: int) -> None:
    """It cannot take back an acknowledgement either."""
    gate = followed()
    gate.note_commit(1, 1.0)
    gate.acknowledge(1, 1.0)

    with pytest.raises(InvalidRequest, match="acknowledges commit"):
        gate.acknowledge(commit or 0, 1.0)


def test_every_item_goes_once_and_in_order_whatever_happens() -> None:
    """Random commits, acknowledgements, silences, and standbys that come and go."""
    rng = random.Random(5)
    for _ in range(200):
        gate, gone, now_sec, commits, acknowledged = followed(), [], 0.0, 0, 0
        for number in range(60):
            now_sec += rng.choice([0.0, 0.01, 0.2])
            if rng.random() < 0.7:
                commits += 1
                gate.note_commit(commits, now_sec)
            if not holds(gate, str(number)):
                gone.append(str(number))
            action = rng.random()
            if action < 0.4:
                acknowledged = rng.randint(acknowledged, commits)
                gone += gate.acknowledge(acknowledged, now_sec)
            elif action < 0.6:
                gone += gate.give_up_late(now_sec)
            elif action < 0.65:
                gone += gate.open()
                gate.begin(commits)
                acknowledged = commits
        gone += gate.open()
        assert gone == [str(number) for number in range(60)]


def test_a_commit_follows_on_the_one_before() -> None:
    chain = Chain(boot=7, commits=3)
    check_commit(chain, commit_number(4, "use ann"))
    for wrong in (commit_number(3), commit_number(5), replace(commit_number(4), chain=Chain(boot=8, commits=4))):
        with pytest.raises(JournalDamaged, match="does not follow"):
            check_commit(chain, wrong)


def test_a_row_with_another_sum_is_refused() -> None:
    wrong = replace(commit_number(4), rows=(("use ann", "{}", 1),))
    with pytest.raises(JournalDamaged, match="'use ann' of commit 4"):
        check_commit(Chain(boot=7, commits=3), wrong)


def test_commits_are_sent_as_they_are() -> None:
    """A wrong sum of the chain is detected."""
    commit = replace(commit_number(4, "use ann", "use bob"), removed=("use eve",))
    message = commit_to_proto(commit)
    assert commit_from_proto(message) == commit
    message.sum += 1
    assert commit_from_proto(message) is None


def test_messages_have_few_rows() -> None:
    commits = [commit_number(number, *map(str, range(300))) for number in range(4)]
    assert [len(portion) for portion in portions_of(commits)] == [2, 2]


async def test_a_message_has_all_commits_since_the_last_acknowledgement() -> None:
    """A grant hurries them, but not past a message that the standby has yet to acknowledge."""
    feed = Feed()
    feed.put(commit_number(1))
    feed.hurry()
    assert await feed.take(60.0) == [commit_number(1)]
    feed.put(commit_number(2))
    feed.put(commit_number(3))
    feed.hurry()
    assert await feed.take(0.0) == []
    feed.acknowledge(1)
    assert await feed.take(60.0) == [commit_number(2), commit_number(3)]


async def test_commits_that_no_grant_waits_for_are_sent_soon() -> None:
    """They wait for more first."""
    feed = Feed()
    feed.put(commit_number(1))
    assert await feed.take(60.0) == [commit_number(1)]


async def test_a_standby_far_behind_begins_again() -> None:
    feed = Feed(most_rows=3)
    feed.put(commit_number(1, "a"))
    assert await feed.take(1.0) == [commit_number(1, "a")]
    feed.put(commit_number(2, "a", "b"))
    feed.put(commit_number(3))
    with pytest.raises(LimitReached, match="rows behind"):
        await feed.take(1.0)


def lease_entry(name: str) -> LeaseEntry:
    return LeaseEntry(
        name=name,
        device_name="devices/a",
        epoch=1,
        client_id="ann",
        request_id="r",
        holder="ann",
        terms=LeaseTerms(selector=""),
        granted_at_sec=0.0,
        expires_at_sec=60.0,
        ends_at_sec=600.0,
    )


FIRST, SECOND = lease_entry("leases/1"), lease_entry("leases/2")
END_1, END_2 = (ev.LeaseEnded("ann", name, LeaseEnd.RELEASED, "") for name in ("leases/1", "leases/2"))


def test_grants_wait_and_what_concerns_other_leases_goes() -> None:
    """A holder hears nothing of a lease before its grant, also if the grant is repeated."""
    untold = Untold()
    grant, again = ev.Granted("ann", FIRST), ev.Granted("ann", FIRST, is_repeat=True)
    refused = ev.Refused("ann", "r", InvalidRequest, "")
    fence = ev.Fence("agent", "devices/a", 1)
    assert untold.split([END_2, grant, refused, END_1, fence]) == ([END_2, refused, fence], [grant, END_1])
    assert untold.split([again]) == ([], [again])
    untold.forget([grant, END_1])
    renewed = ev.Renewed("ann", FIRST)
    assert untold.split([renewed, ev.Renewed("ann", SECOND)]) == ([ev.Renewed("ann", SECOND)], [renewed])
    untold.forget([again])
    untold.forget([renewed])
    assert untold.split([END_1]) == ([END_1], [])


def test_nothing_is_sent_to_a_client_before_a_welcome_with_leases() -> None:
    """A welcome names leases, so it waits as a grant does."""
    untold = Untold()
    without = ev.Welcomed("bob", (), "bob", may_ask_for_others=False)
    welcome = ev.Welcomed("ann", (FIRST,), "ann", may_ask_for_others=False)
    assert untold.split([without, welcome, END_2]) == ([without], [welcome, END_2])
    untold.forget([welcome, END_2])
    assert untold.split([END_2]) == ([END_2], [])


def test_a_proof_of_a_term_cannot_be_made_up() -> None:
    proof = make_proof(KEY, 5)
    assert read_term(PUBLIC_KEY, proof) == 5
    assert read_term(PUBLIC_KEY, b"") == 0
    forged = (6).to_bytes(8, "big") + proof[8:]
    for wrong in (forged, proof[:-1], proof[:8], b"x", make_proof(Ed25519PrivateKey.generate(), 9)):
        with pytest.raises(Unauthenticated):
            read_term(PUBLIC_KEY, wrong)
        assert larger_term(KEY, 3, wrong) == 3
    assert larger_term(KEY, 3, proof) == 5


def test_an_agent_obeys_no_tracker_with_a_smaller_term_than_it_has_seen(tmp_path: Path) -> None:
    """Also after its own restart. Another fleet's tracker has terms of its own."""
    ledger = EpochLedger(tmp_path / "private")
    ledger.open()
    admission = Admission(["devices/a"], TrackerClock(), ledger)
    admission.trust(PUBLIC_KEY)
    admission.obey(b"")
    admission.obey(make_proof(KEY, 5))

    restarted = Admission(["devices/a"], TrackerClock(), ledger)
    assert restarted.term_proof == make_proof(KEY, 5)
    restarted.trust(PUBLIC_KEY)
    for smaller in (b"", make_proof(KEY, 4)):
        with pytest.raises(TrackerSuperseded):
            restarted.obey(smaller)
    restarted.obey(make_proof(KEY, 5))

    other = Ed25519PrivateKey.generate()
    restarted.trust(other.public_key().public_bytes_raw())
    restarted.obey(b"")


def test_a_primary_that_was_started_with_an_earlier_clock_has_that_clock() -> None:
    """Before, a takeover continued the latest clock ever seen, and ended all leases."""
    own = FakeClock()
    clock = PrimaryClock(own)
    start_sec = own.now_sec()
    clock.begin()
    clock.learn(start_sec + 86400.0)
    own.advance(1.0)
    clock.learn(start_sec + 86400.5)  # it was half a second on its way
    assert clock.now_sec() == pytest.approx(start_sec + 86401.0)

    clock.begin()
    clock.learn(start_sec + 1.0)

    assert clock.now_sec() == pytest.approx(start_sec + 1.0)


def test_most_agents_have_to_agree_that_a_tracker_is_gone() -> None:
    """Those that were attached count, each once, and only lately; strangers do not."""
    attached = frozenset("abcd")
    witnesses = Witnesses()
    for key_id in ("a", "b", "b", "x", "y"):
        witnesses.note(key_id, 100.0)
    assert not witnesses.agree(attached, 6.0, 101.0)
    witnesses.note("c", 100.0)
    assert witnesses.agree(attached, 6.0, 101.0)
    assert not witnesses.agree(attached, 4.0, 101.0)
    assert not witnesses.agree(attached, 60.0, 200.0)
    assert not witnesses.agree(attached, 6.0, 107.0), "the tracker answered the standby since"
    assert not witnesses.agree(frozenset("ab"), 6.0, 101.0)


def test_a_trackers_part_is_kept(tmp_path: Path) -> None:
    """A directory without the file is that of a tracker that grants."""
    assert read_standing(tmp_path) == Standing()
    standing = Standing(duty=Duty.FOLLOWS, term=4, other="b:9290", is_whole=False)
    write_standing(tmp_path, standing)
    assert read_standing(tmp_path) == standing


@pytest.mark.parametrize("text", ["", "[]", '{"duty": "rests"}', '{"term": -1}', '{"other": "a b"}', "\udcff"])
def test_a_damaged_part_keeps_a_tracker_from_starting(tmp_path: Path, text: str) -> None:
    """Two trackers might grant otherwise."""
    (tmp_path / "standing.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=r"standing\.json"):
        read_standing(tmp_path)


def test_the_other_trackers_address_is_kept(tmp_path: Path) -> None:
    """Everything else in the file counts as nothing."""
    path = tmp_path / "other"
    assert OtherTracker(path).addresses == ()
    OtherTracker(path).learn("b:9290")
    assert OtherTracker(path).addresses == ("b:9290",)
    OtherTracker(path).learn("not an address")
    assert OtherTracker(path).addresses == ("b:9290",)
    path.write_bytes(b"\xff")
    assert OtherTracker(path).addresses == ()
