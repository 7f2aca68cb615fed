"""Journals of older versions are migrated with all that they hold; newer ones are refused."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import sqlite3
import subprocess
import sys
import zlib
from collections.abc import Iterable
from pathlib import Path

import pytest

from fleet.domain.health import HealthState
from fleet.domain.leases import LeaseTerms
from fleet.errors import ConfigError, DiskFull, JournalDamaged
from fleet.tracker import fsck
from fleet.tracker.core import events as ev
from fleet.tracker.core.invariants import validate
from fleet.tracker.core.records import Changes, DeviceEntry, Durable, LeaseEntry, RequestEntry
from fleet.tracker.core.state import TrackerState
from fleet.tracker.journal.codec import changed_rows
from fleet.tracker.journal.copy import copy_path, keep_copy
from fleet.tracker.journal.file import Journal
from fleet.tracker.journal.migrations import SCHEMA_VERSION
from tests.full_disk import full_disk

VERSION_2 = Path(__file__).parents[1] / "golden" / "journals" / "version_2.sqlite"
"""Written by the last tracker with that version: five devices, two leases and three waiting requests."""
VERSION_3 = VERSION_2.with_name("version_3.sqlite")
"""The same entries, written by the last tracker that kept the places of requests."""
VERSION_4 = VERSION_2.with_name("version_4.sqlite")
"""The same entries and the use of one account, written by the last tracker without marks of health."""
VERSION_5 = VERSION_2.with_name("version_5.sqlite")
"""The same entries and a mark of health, written by the last tracker without bookings."""
NOW = 1_800_000_000.0
EPOCH = int(NOW * 1e3) << 20
MANY = 12_000
"""Requests that fill more than SQLite's cache, so that rows reach the disk before their transaction is committed."""


@pytest.fixture(params=[VERSION_2, VERSION_3, VERSION_4, VERSION_5], ids=["2", "3", "4", "5"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A journal of an older version in a state directory."""
    return Path(shutil.copyfile(request.param, tmp_path / "journal.sqlite"))


def opened(path: Path) -> Durable:
    journal = Journal(path)
    try:
        return journal.open(NOW)
    finally:
        journal.close()


def version_of(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def rows_of(entries: Durable) -> dict[str, object]:
    """Return the content of each row that this version writes for these entries."""
    devices = {device.name: device for device in entries.devices}
    requests = {request.key: request for request in entries.requests}
    changes = Changes(devices=dict(devices), leases=dict(devices), requests=dict(requests))
    return {key: json.loads(content or "") for key, content in changed_rows(changes)}


def device(name: str, epoch: int, lease: LeaseEntry | None = None, gone_sec: float | None = None) -> DeviceEntry:
    return DeviceEntry(
        name=f"devices/{name}",
        kind="cpu",
        labels={"name": name, "kind": "cpu", "arch": "aarch64", "model": "Raspberry Pi 4"},
        description=bytes(range(64)),
        address="10.0.0.7:9291",
        agent_id=f"key7:agent-{name}",
        epoch=epoch,
        attached_at_sec=NOW - 100,
        detached_at_sec=gone_sec,
        lease=lease,
    )


def lease(device_name: str, number: int, client_id: str) -> LeaseEntry:
    return LeaseEntry(
        name=f"leases/41edf1438482-{number}",
        device_name=f"devices/{device_name}",
        epoch=EPOCH + number,
        client_id=client_id,
        request_id="r1",
        holder="ann@läb",
        terms=LeaseTerms(selector="*", ttl_sec=20.5, purpose='tune "résnet18"'),
        granted_at_sec=NOW - 50.25,
        expires_at_sec=NOW + 3000,
        ends_at_sec=NOW + 86349.75,
    )


def request(client_id: str, request_id: str, arrival: int, **terms: object) -> RequestEntry:
    given = {"selector": "kind=cpu,model=Raspberry*", "max_sec": 86400.0, **terms}
    return RequestEntry(
        client_id=client_id,
        request_id=request_id,
        holder="bob@lab",
        terms=LeaseTerms(**given),  # type: ignore[arg-type]
        deadline_sec=None,
        asked_at_sec=NOW - 30,
        arrival=arrival,
    )


def expected() -> Durable:
    """Return the content of the journal of version 2 at its creation."""
    urgent = request(
        "key2:client-b",
        'r3 "quoted"',
        8,
        priority=10,
        ttl_sec=5.0,
        max_sec=90.5,
        purpose="fleet test — ünit",
    )
    urgent.asked_at_sec, urgent.deadline_sec = NOW - 20, NOW + 5000.5
    late = request("key3:client-c", "q", 9, selector="*", priority=-1)
    late.asked_at_sec = NOW - 10
    return Durable(
        boot=int(NOW * 1e3) + 1,
        devices=[
            device("new", 0),
            device("old", 2**62 - 1, gone_sec=NOW - 20.5),
            device("pi4-01", EPOCH + 17, lease("pi4-01", 17, "key1:client-a")),
            device("pi4-02", EPOCH + 18, lease("pi4-02", 18, "key2:client-b")),
            device("pi4-03", EPOCH + 12),
        ],
        requests=[request("key2:client-b", "r2", 7), urgent, late],
    )


def write_version_2(path: Path, rows: Iterable[tuple[str, str]]) -> None:
    """Write a journal as version 2 did."""
    summed = [(key, content, zlib.crc32((key + content).encode())) for key, content in rows]
    chain = (1_000, 7, len(summed), sum(row[2] for row in summed))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript(
            "PRAGMA journal_mode = WAL; BEGIN; PRAGMA application_id = 0x54564D46; PRAGMA user_version = 2;"
            "CREATE TABLE chain (id INTEGER PRIMARY KEY CHECK (id = 0), boot INTEGER NOT NULL,"
            " commits INTEGER NOT NULL, entries INTEGER NOT NULL, total INTEGER NOT NULL, sum INTEGER NOT NULL);"
            "CREATE TABLE entries (key TEXT PRIMARY KEY, content TEXT NOT NULL, sum INTEGER NOT NULL) WITHOUT ROWID;"
        )
        connection.executemany("INSERT INTO entries VALUES (?, ?, ?)", summed)
        chain_sum = zlib.crc32(",".join(map(str, chain)).encode())
        connection.execute("INSERT INTO chain VALUES (0, ?, ?, ?, ?, ?)", (*chain, chain_sum))
        connection.execute("COMMIT")


def test_a_journal_of_an_older_version_keeps_all_that_it_held(path: Path) -> None:
    """Devices with epochs and leases, and requests with their places, in place; the boot number grows."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        ((boot,),) = connection.execute("SELECT boot FROM chain").fetchall()

    durable = opened(path)

    assert durable.boot == max(boot + 1, expected().boot)
    assert rows_of(durable) == rows_of(expected())
    assert version_of(path) == SCHEMA_VERSION
    assert rows_of(opened(path)) == rows_of(expected())


def test_marks_and_use_of_the_version_before_are_kept(tmp_path: Path) -> None:
    durable = opened(Path(shutil.copyfile(VERSION_5, tmp_path / "journal.sqlite")))

    assert [(name, entry.mark.state, entry.mark.reason) for name, entry in durable.health] == [
        ("devices/new", HealthState.DRAINING, "new switch")
    ]
    assert [use.account for use in durable.uses] == ["ann@läb"]
    assert durable.bookings == []


def test_clients_find_their_leases_and_places_after_the_upgrade(path: Path) -> None:
    """A repeated request is answered by its lease or its place in the queue, with its former terms."""
    state = TrackerState.restore(opened(path), NOW)
    validate(state)
    state.apply(ev.ClientConnected("key1:client-a", "ann@läb"), NOW)
    state.apply(ev.ClientConnected("key2:client-b", "bob@lab"), NOW)

    (held,) = state.apply(ev.Acquire("key1:client-a", "r1", LeaseTerms(selector="cpu")), NOW)
    (queued,) = state.apply(ev.Acquire("key2:client-b", "r2", LeaseTerms(selector="cpu", bid=2.0)), NOW)

    assert isinstance(held, ev.Granted)
    assert (held.lease.name, held.lease.epoch, held.is_repeat) == ("leases/41edf1438482-17", EPOCH + 17, True)
    assert isinstance(queued, ev.Queued)
    assert queued.request.arrival == 7
    assert (queued.request.terms.selector, queued.request.terms.bid) == ("kind=cpu,model=Raspberry*", 2.0)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["_write_chain", "_count_boot"])
def test_a_migration_that_is_killed_loses_no_data(tmp_path: Path, step: str) -> None:
    """Before its commit the journal is still of version 2, after it of the new one; either has every request."""
    path = tmp_path / "journal.sqlite"
    values = ["bob@lab", "kind=cpu", 0, 30.0, 86400.0, None, NOW, "x" * 100, NOW]
    write_version_2(path, ((f'request ["c","{n}"]', json.dumps([*values, n])) for n in range(MANY)))
    code = (
        "import os, signal\nfrom pathlib import Path\nfrom fleet.tracker.journal.file import Journal\n"
        f"Journal.{step} = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\nJournal(Path({str(path)!r})).open({NOW})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    log_bytes = path.with_name(f"{path.name}-wal").stat().st_size
    assert log_bytes > 1_000_000, "rows were written before the kill"
    assert version_of(path) == (2 if step == "_write_chain" else SCHEMA_VERSION)

    durable = opened(path)

    assert sorted(int(each.request_id) for each in durable.requests) == list(range(MANY))
    assert {each.terms.purpose for each in durable.requests} == {"x" * 100}
    assert durable.boot > 1_000
    assert version_of(path) == SCHEMA_VERSION


@pytest.mark.slow
def test_a_migration_that_does_not_fit_the_disk_has_no_effect(tmp_path: Path) -> None:
    """The start fails with advice, and works once there is space."""
    path = tmp_path / "journal.sqlite"
    values = ["bob@lab", "kind=cpu", 0, 30.0, 86400.0, None, NOW, "x" * 100, NOW]
    write_version_2(path, ((f'request ["c","{n}"]', json.dumps([*values, n])) for n in range(MANY)))

    with full_disk(path, free_bytes=0), pytest.raises(DiskFull, match="free some"):
        opened(path)

    assert version_of(path) == 2
    assert len(opened(path).requests) == MANY


def test_a_journal_of_a_newer_version_is_refused(path: Path) -> None:
    """The message names the version and both ways out, and the file stays as it was."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    before = path.read_bytes()

    with pytest.raises(ConfigError, match=r"version 99.*start the newer tracker.*fsck --empty"):
        opened(path)

    assert path.read_bytes() == before


def test_a_damaged_journal_of_an_older_version_is_restored_from_its_copy(path: Path) -> None:
    """It is refused as one of this version, and `fsck` continues with the copy that the older tracker made."""
    keep_copy(path)
    assert version_of(copy_path(path)) == version_of(path)
    path.write_bytes(path.read_bytes().replace(b"leases/41edf1438482-17", b"leases/41edf1438482-16"))
    with pytest.raises(JournalDamaged, match="fleet tracker fsck"):
        opened(path)

    assert "restored the copy" in fsck.restore(path.parent)
    assert fsck.check(path.parent).journal.startswith("whole, with 5 devices, 2 leases and 3 waiting requests")
    assert rows_of(opened(path)) == rows_of(expected())


def test_rows_without_a_new_field_take_its_default(tmp_path: Path) -> None:
    """A term that was added later needs no new version of the journal, in either direction."""
    path = tmp_path / "journal.sqlite"
    opened(path)
    journal = Journal(path)
    journal.open(NOW)
    entry = request("c", "r", 1)
    journal.write(Changes(requests={entry.key: entry}))
    journal.close()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        ((key, content),) = connection.execute("SELECT key, content FROM entries").fetchall()
        changed = content.replace('"bid":0.0', '"of_a_newer_tracker":1')
        assert changed != content
        found = zlib.crc32((key + changed).encode())
        connection.execute("UPDATE entries SET content = ?, sum = ?", (changed, found))

    (found_request,) = opened(path).requests

    assert found_request.terms == entry.terms
