"""The journal on a real disk: changes survive a reopening, and other files are refused."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet.domain.leases import LeaseClass, LeaseTerms
from fleet.errors import ConfigError, DiskFull
from fleet.testing import Ledger
from fleet.tracker.core.records import Changes, DeviceEntry, Durable, LeaseEntry, RequestEntry, UseEntry
from fleet.tracker.journal import file
from fleet.tracker.journal.file import Journal
from tests.contract.test_library_read_only import read_only
from tests.full_disk import full_disk

NOW = 1_000_000.0
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
SEC = st.floats(0, 4e9)
TERMS = st.builds(
    LeaseTerms,
    selector=TEXT,
    priority=st.integers(-100, 100),
    ttl_sec=SEC,
    max_sec=st.none() | SEC,
    wait_timeout_sec=st.none() | SEC,
    purpose=TEXT,
    prefer=TEXT,
    bid=SEC,
)


def contents(durable: Durable) -> object:
    devices = sorted((dataclasses.astuple(device) for device in durable.devices), key=lambda row: row[0])
    requests = sorted((dataclasses.astuple(request) for request in durable.requests), key=lambda row: row[:2])
    return devices, requests


@st.composite
def leases(draw: st.DrawFn, device_name: str, epoch: int) -> LeaseEntry:
    texts = {name: draw(TEXT) for name in ("name", "client_id", "request_id", "holder")}
    times = {f"{name}_sec": draw(SEC) for name in ("granted_at", "expires_at", "ends_at")}
    return LeaseEntry(device_name=device_name, epoch=epoch, terms=draw(TERMS), **texts, **times)


@st.composite
def devices(draw: st.DrawFn) -> DeviceEntry:
    name, epoch = f"devices/{draw(st.integers(0, 3))}", draw(st.integers(0, 2**62))
    return DeviceEntry(
        name=name,
        kind=draw(TEXT),
        labels=draw(st.dictionaries(TEXT, TEXT, max_size=3)),
        description=draw(st.binary(max_size=8)),
        address=draw(TEXT),
        agent_id=draw(TEXT),
        epoch=epoch,
        attached_at_sec=draw(SEC),
        detached_at_sec=draw(st.none() | SEC),
        lease=draw(st.none() | leases(name, epoch)),
    )


@st.composite
def requests(draw: st.DrawFn) -> RequestEntry:
    return RequestEntry(
        client_id=draw(st.sampled_from(["a", "b"])),
        request_id=draw(st.sampled_from(["1", "2"])),
        holder=draw(TEXT),
        terms=draw(TERMS),
        deadline_sec=draw(st.none() | SEC),
        asked_at_sec=draw(SEC),
        arrival=draw(st.integers(0, 2**40)),
    )


@st.composite
def uses(draw: st.DrawFn) -> UseEntry:
    return UseEntry(
        account=draw(st.sampled_from(["a b", "ünit"])),
        used_sec=draw(SEC),
        at_sec=draw(SEC),
        day=draw(st.integers(0, 2**40)),
        day_sec=draw(st.dictionaries(st.sampled_from(LeaseClass), SEC)),
    )


@st.composite
def changes(draw: st.DrawFn) -> Changes:
    changed = Changes()
    for device in draw(st.lists(devices(), max_size=3)):
        is_gone = draw(st.booleans())
        changed.devices[device.name] = changed.leases[device.name] = None if is_gone else device
    for request in draw(st.lists(requests(), max_size=3)):
        changed.requests[request.key] = request if draw(st.booleans()) else None
    for use in draw(st.lists(uses(), max_size=3)):
        changed.uses[use.account] = use if draw(st.booleans()) else None
    return changed


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(changes(), max_size=6))
@pytest.mark.slow
def test_a_reopened_journal_has_all_changes(tmp_path: Path, written: list[Changes]) -> None:
    """After any sequence of changes, a reopened journal has the contents of a dict in memory."""
    path = Path(tempfile.mkdtemp(dir=tmp_path)) / "journal.sqlite"
    journal, ledger = Journal(path), Ledger()
    journal.open(NOW)
    for change in written:
        journal.write(change)
        ledger.write(change)
    journal.close()

    reopened = Journal(path)
    try:
        assert contents(ledger.open(NOW)) == contents(reopened.open(NOW))
    finally:
        reopened.close()


def test_every_start_counts(tmp_path: Path) -> None:
    """Boot numbers grow with each start, and a fresh journal begins above those of a wiped one."""
    boots = []
    for _ in range(3):
        journal = Journal(tmp_path / "journal.sqlite")
        boots.append(journal.open(NOW).boot)
        journal.close()

    fresh = Journal(tmp_path / "fresh.sqlite")
    boots.append(fresh.open(NOW + 600).boot)
    fresh.close()

    assert boots == sorted(set(boots))


def test_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    """The file is left as it was."""
    path = tmp_path / "journal.sqlite"
    path.write_text("shopping list: " + "milk " * 500)

    with pytest.raises(ConfigError, match="move it away"):
        Journal(path).open(NOW)

    assert path.read_text().startswith("shopping list")


def test_database_of_another_program_is_refused(tmp_path: Path) -> None:
    """A SQLite file without the tracker's mark is not touched."""
    path = tmp_path / "journal.sqlite"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE photos (name TEXT)")
    other.close()

    with pytest.raises(ConfigError, match="another program"):
        Journal(path).open(NOW)


def test_a_full_disk_writes_atomically(tmp_path: Path) -> None:
    """A change that does not fit raises DiskFull, leaves the file as it was, and fits later."""
    journal = Journal(tmp_path / "journal.sqlite")
    journal.open(NOW)
    names = [f"devices/{i}" for i in range(200)]
    device = {
        name: DeviceEntry(name=name, kind="cpu", labels={}, description=b"x" * 500, address="", agent_id="")
        for name in names
    }
    change = Changes(devices=dict(device), leases=dict(device))

    with (
        full_disk(tmp_path / "journal.sqlite-wal", free_bytes=20_000),
        pytest.raises(DiskFull, match=r"journal\.sqlite"),
    ):
        journal.write(change)
    with contextlib.closing(sqlite3.connect(journal.path)) as reader:
        (count,) = reader.execute("SELECT count(*) FROM entries").fetchone()
    journal.write(change)
    journal.close()

    assert count == 0
    reopened = Journal(journal.path)
    assert len(reopened.open(NOW).devices) == 200
    reopened.close()


@pytest.mark.parametrize("was_killed", [False, True])
def test_a_directory_that_may_not_be_written_is_no_damage(tmp_path: Path, was_killed: bool) -> None:
    """No restore is advised, and nothing is lost."""
    journal, state = Journal(tmp_path / "journal.sqlite"), tmp_path / "state"
    journal.open(NOW)
    if not was_killed:
        journal.close()
    state.mkdir()
    for path in tmp_path.glob("journal.sqlite*"):
        shutil.copy(path, state)

    with read_only(state), pytest.raises(ConfigError, match=r"cannot be written: .*name another --state-dir"):
        Journal(state / "journal.sqlite").open(NOW)

    again = Journal(state / "journal.sqlite")
    again.open(NOW)
    again.close()
    journal.close()


def test_a_log_that_fills_the_disk_begins_anew(tmp_path: Path) -> None:
    """A checkpoint frees the log's space, so only one change fails and the tracker needs no restart."""
    journal = Journal(tmp_path / "journal.sqlite")
    journal.open(NOW)
    device = DeviceEntry(name="devices/a", kind="cpu", labels={}, description=b"", address="", agent_id="")
    failed_at = []

    with full_disk(tmp_path / "journal.sqlite-wal", free_bytes=200_000):
        for epoch in range(100):
            device.epoch = epoch
            try:
                journal.write(Changes(devices={device.name: device}, leases={device.name: device}))
            except DiskFull:
                failed_at.append(epoch)
            journal.wait_until_free()
    journal.close()

    assert failed_at
    assert all(later - earlier > 10 for earlier, later in itertools.pairwise(failed_at))
    reopened = Journal(journal.path)
    assert reopened.open(NOW).devices[0].epoch == 99
    reopened.close()


def test_the_logs_of_killed_trackers_do_not_add_up(tmp_path: Path) -> None:
    """Each start checkpoints the log of the one before it, however early that was killed."""
    path = tmp_path / "journal.sqlite"
    log_bytes = []
    for _ in range(5):
        subprocess.run([sys.executable, "-c", _WRITE_AND_DIE, path], check=True, timeout=60)
        log_bytes.append(path.with_name(f"{path.name}-wal").stat().st_size)

    assert max(log_bytes) < 1.5 * log_bytes[0]
    journal = Journal(path)
    assert journal.open(NOW).devices[0].epoch == 100
    journal.close()


_WRITE_AND_DIE = f"""
import os, sys
from pathlib import Path
from fleet.tracker.core.records import Changes, DeviceEntry
from fleet.tracker.journal.file import Journal

journal = Journal(Path(sys.argv[1]))
journal.open({NOW})
device = DeviceEntry(name="devices/a", kind="cpu", labels={{}}, description=b"", address="", agent_id="")
for epoch in range(101):
    device.epoch = epoch
    journal.write(Changes(devices={{device.name: device}}, leases={{device.name: device}}))
os._exit(0)  # without closing the journal
"""


def test_a_log_that_is_never_caught_up_with_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If commits never pause, checkpoints beside them stay behind; a moment without commits then resets the log."""
    real = file.checkpoint
    monkeypatch.setattr(file, "checkpoint", lambda path, how: 101 if how == "PASSIVE" else real(path, how))
    journal = Journal(tmp_path / "journal.sqlite", checkpoint_pages=20, max_log_pages=100)
    journal.open(NOW)
    device = DeviceEntry(name="devices/a", kind="cpu", labels={}, description=b"", address="", agent_id="")

    def write() -> None:
        device.epoch += 1
        journal.write(Changes(devices={device.name: device}, leases={device.name: device}))
        for thread in [each for each in threading.enumerate() if each.name == "journal-checkpoint"]:
            thread.join()

    def times_begun() -> int:
        return int.from_bytes((tmp_path / "journal.sqlite-wal").read_bytes()[12:16], "big")

    write()
    begun = times_begun()
    for _ in range(30):
        write()

    assert not journal.is_busy
    assert times_begun() > begun
    journal.close()
    reopened = Journal(journal.path)
    assert reopened.open(NOW).devices[0].epoch == 31
    reopened.close()


@pytest.mark.slow
def test_log_is_folded_into_the_file(tmp_path: Path) -> None:
    """A tracker that runs for months does not keep every change it ever made."""
    journal = Journal(tmp_path / "journal.sqlite")
    journal.open(NOW)
    name = "devices/a"
    device = DeviceEntry(name=name, kind="cpu", labels={}, description=b"", address="", agent_id="")
    for epoch in range(12_000):
        device.epoch = epoch
        journal.write(Changes(devices={name: device}, leases={name: device}))
        # Without this wait the log grows until a checkpoint catches up, which depends on the machine.
        for thread in [each for each in threading.enumerate() if each.name == "journal-checkpoint"]:
            thread.join()

    log_bytes = (tmp_path / "journal.sqlite-wal").stat().st_size
    journal.close()

    assert log_bytes < 12_000 * 2 * 4096 / 2
