"""The tracker's records of its members, and its audit log."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import stat
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.errors import ConfigError, DiskFull, InvalidRequest, KeyRevoked, NotFound, Unauthenticated
from fleet.identity.audit_entry import AuditEntry
from fleet.identity.roles import Identity, Role
from fleet.tracker.audit import AuditLog, read_entries
from fleet.tracker.members import Members, WaitingToken
from tests.full_disk import full_disk


def token(digest: str = "d" * 64, *, until: float = 100.0) -> WaitingToken:
    return WaitingToken(
        digest=digest, role=Role.AGENT, created_at_sec=1.0, expires_at_sec=until, created_by="admin a", note="pi"
    )


def entry(number: int, outcome: str = "ok", at_sec: float = 1.0) -> AuditEntry:
    return AuditEntry(
        at_sec=at_sec,
        name="a@b",
        role="user",
        key_id="k",
        peer="ipv4:127.0.0.1:1",
        action="LeaseService.RevokeLease",
        subject=str(number),
        outcome=outcome,
    )


def test_a_join_token_is_used_once_and_in_time(tmp_path: Path) -> None:
    """A second use, a use after its end, and a use after its revocation are refused."""
    members = Members(tmp_path / "members.sqlite")
    for each in (token("a" * 64), token("b" * 64, until=5.0), token("c" * 64)):
        members.add_token(each, now=2.0)

    assert Role.AGENT is members.use_token("a" * 64, now=3.0).role
    members.revoke_token("c" * 12, now=3.0)

    for digest, now in (("a" * 64, 3.0), ("b" * 64, 5.0), ("c" * 64, 3.0)):
        with pytest.raises(Unauthenticated, match="fleet tracker token create"):
            members.use_token(digest, now)
    with pytest.raises(NotFound):
        members.revoke_token("c" * 12, now=3.0)
    members.close()


async def test_names_and_tokens_survive_a_restart(tmp_path: Path) -> None:
    """A device name belongs to its first key, also after a restart; only the owner can read the file."""
    members = Members(tmp_path / "members.sqlite")
    await members.bind(["devices/a", "devices/b"], "one", 1.0)
    await members.bind(["devices/b", "devices/c"], "two", 2.0)
    members.add_token(token(), now=2.0)
    members.close()

    again = Members(tmp_path / "members.sqlite")

    assert {"devices/a": "one", "devices/b": "one", "devices/c": "two"} == dict(again.keys)
    assert [token()] == again.tokens(2.0)
    assert 0o600 == stat.S_IMODE((tmp_path / "members.sqlite").stat().st_mode)
    assert "one" == again.unbind("devices/b")
    await again.bind(["devices/b"], "two", 3.0)
    assert "two" == again.keys["devices/b"]
    again.close()


async def test_members_are_listed_and_revocations_survive_a_restart(tmp_path: Path) -> None:
    """Revocations survive a restart; a revoked key's device names are free, and a unique prefix identifies a key."""
    members = Members(tmp_path / "members.sqlite")
    alice, bob, carol = (
        Identity(name=name, role=Role.USER, key_id=digits * 20)
        for name, digits in (("alice", "aa"), ("bob", "ab"), ("carol", "cd"))
    )
    for caller in (alice, bob, carol, alice):
        members.check(caller, 1.0)
    await members.bind(["devices/a", "devices/b"], alice.key_id, 2.0)
    assert alice.key_id == members.find("aaaaaaaa")
    assert "0" * 40 == members.find("0" * 40)
    for beginning in ("a", "ABABABAB", ""):
        with pytest.raises(InvalidRequest):
            members.find(beginning)
    with pytest.raises(NotFound):
        members.find("12345678")

    for _ in range(2):
        revoked, _freed = members.revoke(alice.key_id, 3.0, by="admin carol", reason="left")
    members.close()
    again = Members(tmp_path / "members.sqlite")

    assert (3.0, "admin carol") == (revoked.revoked_at_sec, revoked.revoked_by)
    assert {} == dict(again.keys)
    assert ["bob", "carol", "alice"] == [each.name for each in again.all()]
    with pytest.raises(KeyRevoked, match="admin carol: left"):
        again.check(alice, 4.0)
    again.close()


VERSION_1 = """
PRAGMA application_id = 1414942025; PRAGMA user_version = 1;
CREATE TABLE join_tokens (
    digest TEXT PRIMARY KEY, role TEXT NOT NULL, created_at_sec REAL NOT NULL, expires_at_sec REAL NOT NULL,
    created_by TEXT NOT NULL, note TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE device_keys (
    device_name TEXT PRIMARY KEY, key_id TEXT NOT NULL, bound_at_sec REAL NOT NULL
) WITHOUT ROWID;
INSERT INTO join_tokens VALUES ('dddd', 'agent', 1.0, 100.0, 'admin a', 'pi');
INSERT INTO device_keys VALUES ('devices/a', 'one', 1.0);
"""
MEMBERS_OF_VERSION_2 = """
PRAGMA user_version = 2;
CREATE TABLE members (
    key_id TEXT PRIMARY KEY, name TEXT NOT NULL, role TEXT NOT NULL, joined_at_sec REAL NOT NULL, revoked_at_sec REAL,
    revoked_by TEXT NOT NULL, reason TEXT NOT NULL
) WITHOUT ROWID;
INSERT INTO members VALUES ('one', 'pi', 'agent', 1.0, NULL, '', ''), ('two', 'eve', 'user', 2.0, 3.0, 'ann', 'left');
"""


@pytest.mark.parametrize(("added", "names"), [("", []), (MEMBERS_OF_VERSION_2, ["pi", "eve"])])
def test_a_file_of_an_earlier_version_keeps_its_content(added: str, names: list[str], tmp_path: Path) -> None:
    """Members, tokens and device keys stay; members without an account count by their key, also after a restart."""
    with closing(sqlite3.connect(tmp_path / "members.sqlite")) as file:
        file.executescript(VERSION_1)
        file.executescript(added)

    for _ in range(2):
        members = Members(tmp_path / "members.sqlite")
        assert {"devices/a": "one"} == dict(members.keys)
        assert names == [each.name for each in members.all()]
        (waiting,) = members.tokens(2.0)
        assert ("dddd", "pi", "", False) == (
            waiting.digest,
            waiting.note,
            waiting.account,
            waiting.may_ask_for_others,
        )
        assert ("one", False) == members.account_of("one")
        assert bool(names) is members.is_revoked("two")
        members.close()


def test_the_account_of_a_token_becomes_the_members_at_once(tmp_path: Path) -> None:
    """It survives a kill of the tracker; later calls change it no more, and another token does."""
    members = Members(tmp_path / "members.sqlite")
    members.add_token(replace(token(), role=Role.USER, account="team-a", may_ask_for_others=True), now=1.0)
    alice = Identity(name="alice", role=Role.USER, key_id="a" * 40)
    used = members.use_token("d" * 64, now=2.0)
    members.admit(alice, 2.0, account=used.account, may_ask_for_others=used.may_ask_for_others)

    again = Members(tmp_path / "members.sqlite")  # the former was not closed
    again.check(replace(alice, name="alice (2)"), 3.0)
    assert ("team-a", True) == again.account_of("a" * 40)
    assert [("alice (2)", "team-a", True, 2.0)] == [
        (each.name, each.account, each.may_ask_for_others, each.joined_at_sec) for each in again.all()
    ]
    again.admit(alice, 4.0)
    assert ("a" * 40, False) == again.account_of("a" * 40)
    members.close()
    again.close()


async def test_a_name_is_reserved_while_it_is_written(tmp_path: Path) -> None:
    """Two new agents cannot both have a name, and the event loop does not wait for the disk."""
    members = Members(tmp_path / "members.sqlite")

    first = asyncio.create_task(members.bind(["devices/a"], "one", 1.0))
    await asyncio.sleep(0)
    await members.bind(["devices/a", "devices/b"], "two", 1.0)
    await first
    members.close()

    again = Members(tmp_path / "members.sqlite")
    assert {"devices/a": "one", "devices/b": "two"} == dict(again.keys)
    again.close()


async def test_a_name_with_a_failed_write_is_free_again(tmp_path: Path) -> None:
    """The agent gets an error, and the name is free for the next one."""
    members = Members(tmp_path / "members.sqlite")
    with closing(sqlite3.connect(tmp_path / "members.sqlite", isolation_level=None)) as other:
        other.execute("DROP TABLE device_keys")
        with pytest.raises(DiskFull):
            await members.bind(["devices/a"], "one", 1.0)

    assert {} == dict(members.keys)
    members.close()


async def test_a_join_during_revocation_does_not_undo_it(tmp_path: Path) -> None:
    """Earlier notes on the member are written later than the revocation, and do not undo it."""
    members = Members(tmp_path / "members.sqlite")
    alice = Identity(name="alice", role=Role.USER, key_id="aa" * 20)
    members.check(alice, 1.0)
    members.revoke(alice.key_id, 2.0, by="admin", reason="left")
    await members.write_noted()
    members.close()

    again = Members(tmp_path / "members.sqlite")
    with pytest.raises(KeyRevoked):
        again.check(alice, 3.0)
    again.close()


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    """It is not overwritten, and the message has a remedy."""
    path = tmp_path / "members.sqlite"
    path.write_text("this is no database, but long enough to look at" * 10)

    with pytest.raises(ConfigError, match="move it away"):
        Members(path)


def test_the_log_keeps_the_newest_and_survives_a_torn_line(tmp_path: Path) -> None:
    """A line torn by a crash is left out; only the owner can read the file."""
    log = AuditLog(tmp_path / "audit.jsonl")
    for number in range(5):
        log.write(entry(number))
    log.close()
    with (tmp_path / "audit.jsonl").open("a") as file:
        file.write('{"at_sec": 1.0, "name"\n')
    log.write(entry(5))

    assert ["3", "4", "5"] == [found.subject for found in read_entries(log.newest(3), 3)]
    assert 0o600 == stat.S_IMODE((tmp_path / "audit.jsonl").stat().st_mode)
    log.close()


def test_the_log_does_not_grow_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old files are removed; the newest entries are kept in order."""
    monkeypatch.setattr("fleet.tracker.audit._MAX_FILE_BYTES", 1000)
    log = AuditLog(tmp_path / "audit.jsonl")
    for number in range(200):
        log.write(entry(number))

    numbers = [int(found.subject) for found in read_entries(log.newest(1000), 1000)]

    assert list(range(numbers[0], 200)) == numbers
    assert 0 < numbers[0] < 199
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 5000
    log.close()


def test_entries_are_rewritten_after_a_full_disk(tmp_path: Path) -> None:
    """Calls do not fail, and once there is room, entries are written again, a line each.

    Before, every client that came after a full disk was turned away until the tracker was restarted.
    """
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path)
    log.write(entry(0))
    with full_disk(path, free_bytes=20):
        log.write(entry(1))
        log.write(entry(2))

    log.write(entry(3))

    assert ["0", "3"] == [found.subject for found in read_entries(log.newest(9), 9)]
    log.close()


def test_refusals_cannot_push_actions_out(tmp_path: Path) -> None:
    """Only some refusals of a flood are written; the next entry counts the others."""
    log = AuditLog(tmp_path / "audit.jsonl")
    for number in range(5000):
        log.write(entry(number, "NotAllowed", at_sec=1000.0))
    log.write(entry(-1, at_sec=1000.0))

    lines = (tmp_path / "audit.jsonl").read_text().splitlines()

    assert len(lines) < 300
    assert 5000 == len(lines) - 1 + json.loads(lines[-1])["refusals_not_shown"]
    log.close()
