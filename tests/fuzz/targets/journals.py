"""Files that trackers and agents leave for their next start."""

from __future__ import annotations

import contextlib
import functools

from google.protobuf.message import DecodeError

from device_agents.serving import run_notes
from device_agents.serving.doubts import Doubts
from device_agents.serving.epochs import EpochLedger
from device_agents.serving.hook_notes import HookNotes
from device_agents.serving.run_notes import RunNotes
from device_agents.workers import ledger
from fleet.domain.health import HealthMark, HealthState
from fleet.domain.leases import LeaseClass, LeaseTerms
from fleet.domain.poison import DIGEST, Poison
from fleet.domain.usage import Usage, UsageKey
from fleet.errors import ConfigError, FleetError, JournalDamaged
from fleet.tracker.core.records import (
    BookingEntry,
    Changes,
    DeviceEntry,
    HealthEntry,
    LeaseEntry,
    RequestEntry,
    UseEntry,
)
from fleet.tracker.history_file import HistoryFile, LeaseRow, read_latest, read_usage
from fleet.tracker.journal.checking import Chain, read_journal
from fleet.tracker.journal.codec import UNREADABLE, changed_rows, entries_of, sum_of
from fleet.tracker.journal.commits import Commit
from fleet.tracker.journal.file import Journal, checkpoint
from fleet.tracker.journal.mark import mark_path
from fleet.tracker.journal.replica import ReplicaJournal
from fleet.tracker.lengths import Lengths
from fleet.tracker.replica.messages import commit_from_proto, commit_to_proto
from fleet.v1 import replica_service_pb2
from fleet.wire.usage import usage_to_proto
from tests.fuzz.target import Target, no_loop
from tests.fuzz.targets.places import scratch, written

_BETWEEN = b"|||"
_NOW_SEC = 1_800_000_000.0
_DIGEST = f"sha256:{64 * '0'}"


def _journal(content: bytes) -> None:
    path = written("journal.sqlite", content)
    with contextlib.suppress(ConfigError):
        read_journal(path)


def _entries(content: bytes) -> None:
    lines = content.decode(errors="replace").split(_BETWEEN.decode())
    with contextlib.suppress(*UNREADABLE):
        entries_of(zip(lines[::2], lines[1::2], strict=False), boot=1)


def _replica(content: bytes) -> None:
    """Have a standby take a message of its tracker, then take over."""
    path = written("replica.sqlite", _empty_journal())
    for left in scratch().glob("replica.sqlite-*"):
        left.unlink()
    replica = ReplicaJournal(path)
    with contextlib.suppress(DecodeError, JournalDamaged):
        commits = map(commit_from_proto, replica_service_pb2.FollowResponse.FromString(content).commits)
        replica.write([commit for commit in commits if commit is not None])
    replica.close()
    with contextlib.suppress(ConfigError):
        read_journal(path)


@functools.cache
def _empty_journal() -> bytes:
    path = scratch() / "empty.sqlite"
    journal = Journal(path)
    journal.open(_NOW_SEC)
    journal.close()
    checkpoint(path, "TRUNCATE")
    return path.read_bytes()


def _replica_messages() -> list[bytes]:
    rows = [(key, text) for key, text in changed_rows(_changes()) if text is not None]
    chain = Chain(boot=int(_NOW_SEC * 1e3), commits=2)
    commit = Commit(chain=chain, rows=tuple((key, text, sum_of(key, text)) for key, text in rows), removed=("use eve",))
    again = replica_service_pb2.FollowResponse(commits=[commit_to_proto(commit)])
    return [again.SerializeToString()]


def _mark(content: bytes) -> None:
    path = scratch() / "marked.sqlite"
    mark_path(path).write_bytes(content)
    with contextlib.suppress(ConfigError):
        read_journal(path)


def _history(content: bytes) -> None:
    path = written("history.sqlite", content)
    with contextlib.suppress(FleetError):
        for by in UsageKey:
            for row in read_usage(path, by, 0.0):
                usage_to_proto(Usage(since_sec=0.0, rows=(row,)))
    with contextlib.suppress(FleetError):
        lengths = Lengths()
        for row in read_latest(path, 100):
            lengths.add(row.account, LeaseClass.BATCH, row.model, row.length_sec)


def _epochs(content: bytes) -> None:
    written("epochs.json", content)
    EpochLedger(scratch()).read()


def _hook_notes(content: bytes) -> None:
    notes = HookNotes(written("hooks.json", content))
    notes.of("devices/1").cycled_at_sec.append(1.0)
    notes.write()


def _run_notes(content: bytes) -> None:
    notes = RunNotes(written("running", content), sync=lambda _: None)
    assert all(DIGEST.fullmatch(digest) for digest in notes.open())
    notes.close()


def _doubts(content: bytes) -> None:
    Doubts(written("doubts.json", content)).confirm(_DIGEST)


def _noted() -> bytes:
    return run_notes._record("boot", "b-1") + run_notes._record(_DIGEST, "devices/1")  # noqa: SLF001


def _processes(content: bytes) -> None:
    boot = ledger._BOOT_ID.read_bytes().strip()  # noqa: SLF001 - kill_listed would kill
    ledger._read(written("processes.json", content.replace(b"BOOT", boot)))  # noqa: SLF001


@functools.cache
def _changes() -> Changes:
    lease = LeaseEntry(
        name="leases/1",
        device_name="devices/1",
        epoch=1,
        client_id="c",
        request_id="r",
        holder="me@here",
        terms=LeaseTerms(selector="kind=cpu", purpose="p"),
        granted_at_sec=1.0,
        expires_at_sec=31.0,
        ends_at_sec=100.0,
    )
    device = DeviceEntry(
        name="devices/1",
        kind="cpu",
        labels={"arch": "x86_64"},
        description=b"abc",
        epoch=1,
        address="here:1",
        agent_id="a",
        lease=lease,
    )
    request = RequestEntry(
        client_id="c",
        request_id="q",
        holder="me",
        terms=LeaseTerms(selector="kind=cpu", max_sec=100.0, purpose="p"),
        deadline_sec=None,
        asked_at_sec=1.0,
        arrival=2,
    )
    use = UseEntry(account="ann", used_sec=30.0, at_sec=31.0, day=1, day_sec={LeaseClass.BATCH: 30.0})
    found = Poison(digest=_DIGEST, device_name=device.name, at_sec=7.0)
    mark = HealthMark(state=HealthState.DRAINING, by="ann", at_sec=7.0, reason="fan", until_sec=9.0)
    booking = BookingEntry(
        name="bookings/t3wtc0",
        selector="kind=cpu",
        starts_at_sec=100.0,
        ends_at_sec=200.0,
        booked_at_sec=1.0,
        holder="me@here",
        account="ann",
        key_id="k",
        request_id="r",
        device_names=("devices/1", ""),
        unused_since_sec=(110.0, 1.0),
    )
    return Changes(
        devices={device.name: device},
        leases={device.name: device},
        requests={request.key: request},
        uses={use.account: use},
        health={device.name: HealthEntry(mark=mark, fault_count=2, is_used=True)},
        poison={found.digest: found},
        bookings={booking.name: booking},
    )


def _rows() -> bytes:
    return _BETWEEN.join(text.encode() for row in changed_rows(_changes()) for text in row if text is not None)


def _files() -> list[bytes]:
    path = scratch() / "seed.sqlite"
    for each in (path, mark_path(path)):
        each.unlink(missing_ok=True)
    journal = Journal(path)
    journal.open(1_800_000_000.0)
    journal.write(_changes())
    journal.close()
    return [path.read_bytes()]


def _histories() -> list[bytes]:
    path = scratch() / "seed-history.sqlite"
    path.unlink(missing_ok=True)
    file = HistoryFile(path)
    lease = LeaseRow(
        ended_sec=100.0,
        account="ann",
        holder="ann",
        device="devices/1",
        model="rpi4",
        lease_class="batch",
        end="released",
        leases=1,
        length_sec=30.0,
        wait_sec=2.0,
        forecast_sec=None,
    )
    file.write([lease])
    file.close()
    return [path.read_bytes()]


JOURNALS = [
    Target(
        name="replica_rows",
        run=no_loop(_replica),
        seeds=_replica_messages,
        words=(b"use ann", b"lease "),
        quick_inputs=100,
    ),
    Target(name="history_file", run=no_loop(_history), seeds=_histories, most_bytes=16_384, quick_inputs=60),
    Target(name="journal", run=no_loop(_journal), seeds=_files, most_bytes=32768, quick_inputs=40),
    Target(
        name="journal_entries",
        run=no_loop(_entries),
        seeds=lambda: [_rows()],
        words=(_BETWEEN, b"device ", b"lease ", b"request ", b"use ", b"poison ", b"null", b"1e999", b"[", b"NaN"),
    ),
    Target(name="journal_mark", run=no_loop(_mark), seeds=lambda: [b"fleetJM1" + bytes(36)], quick_inputs=200),
    Target(
        name="epochs_file",
        run=no_loop(_epochs),
        seeds=lambda: [b'{"public_key": "00ff", "admitted": {"devices/a": 7}, "fenced": {"devices/a": 6}}'],
        words=(b"Infinity", b"NaN", b"null", b"[", b"{", b"true", b"4611686018427387904", b"-1"),
    ),
    Target(
        name="hook_notes_file",
        run=no_loop(_hook_notes),
        seeds=lambda: [b'{"devices/1": {"cycled_at_sec": [1.5, 7], "lease_name": "leases/1", "holder": "me"}}'],
        words=(b"Infinity", b"NaN", b"null", b"[", b"{", b"true", b"1e999", b"-1", b"\\ud800"),
    ),
    Target(
        name="run_notes_file",
        run=no_loop(_run_notes),
        seeds=lambda: [_noted()],
        words=(b"boot ", b"sha256:", b" ", b"\0", b"\xff"),
    ),
    Target(
        name="doubts_file",
        run=no_loop(_doubts),
        seeds=lambda: [f'{{"{_DIGEST}": 1.5}}'.encode()],
        words=(b"Infinity", b"NaN", b"null", b"[", b"{", b"true", b"1e999", b"-1", b"\\ud800"),
        quick_inputs=200,
    ),
    Target(
        name="processes_file",
        run=no_loop(_processes),
        seeds=lambda: [b'{"boot_id": "BOOT", "processes": [[1, 2], [30, 4]]}'],
        words=(b"Infinity", b"NaN", b"null", b"[", b"{", b"true", b"1e999", b"-1"),
    ),
]
