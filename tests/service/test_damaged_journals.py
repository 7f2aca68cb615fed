"""After any damage of a journal's files, a tracker starts with all its state, or refuses to start."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fleet.cli.main import app
from fleet.domain.leases import LeaseTerms
from fleet.errors import ConfigError, JournalDamaged
from fleet.testing import serve_tracker
from fleet.tracker import fsck
from fleet.tracker.core.records import Changes, DeviceEntry, Durable, LeaseEntry, RequestEntry
from fleet.tracker.journal import file as journal_file
from fleet.tracker.journal.copy import copy_path, keep_copy
from fleet.tracker.journal.file import Journal
from fleet.tracker.journal.mark import mark_path

NOW = 1_800_000_000.0
DAMAGES = int(os.environ.get("FLEET_DAMAGED_JOURNALS", "60"))
"""Number of damages to try; 1,500 take a minute."""


def device(number: int, *, is_leased: bool) -> DeviceEntry:
    name = f"devices/{number}"
    lease = LeaseEntry(
        name=f"leases/{number}",
        device_name=name,
        epoch=number + 1,
        client_id=f"client-{number}",
        request_id="r",
        holder="me@here",
        terms=LeaseTerms(selector="kind=cpu", purpose="x" * (number % 50)),
        granted_at_sec=NOW,
        expires_at_sec=NOW + 30,
        ends_at_sec=NOW + 86400,
    )
    return DeviceEntry(
        name=name,
        kind="cpu",
        labels={"arch": "x86_64"},
        description=bytes(range(200)),
        address="here:1",
        agent_id="a",
        epoch=number + 1,
        lease=lease if is_leased else None,
    )


def waiting(number: int) -> RequestEntry:
    return RequestEntry(
        client_id=f"client-{number}",
        request_id="r",
        holder="me@here",
        terms=LeaseTerms(selector="kind=cpu", max_sec=100.0, purpose="p"),
        deadline_sec=None,
        asked_at_sec=NOW,
        arrival=number,
    )


def fill(journal: Journal) -> None:
    """Write some hundred entries, some of them twice, and take a few back."""
    for start in range(0, 120, 4):
        devices = {f"devices/{n}": device(n, is_leased=n % 3 > 0) for n in range(start, start + 4)}
        requests = {request.key: request for request in map(waiting, range(start, start + 4))}
        journal.write(Changes(devices=dict(devices), leases=dict(devices), requests=dict(requests)))
        journal.write(Changes(leases={f"devices/{start}": device(start, is_leased=True)}))
        journal.write(Changes(requests={waiting(start + 1).key: None}))


def write_and_be_killed(folder: Path, *, folds: bool) -> None:
    """Leave a journal as a killed tracker does: a part in the file, the rest in its log."""
    code = (
        "import os, signal\nfrom pathlib import Path\nfrom tests.service.test_damaged_journals import *\n"
        f"journal = Journal(Path({str(folder / 'journal.sqlite')!r}), checkpoint_pages={5 if folds else 10**9})\n"
        "journal.open(NOW)\nfill(journal)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr


def held(durable: Durable) -> tuple[int, int, int]:
    leases = sum(1 for entry in durable.devices if entry.lease)
    return len(durable.devices), leases, len(durable.requests)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """State directories of killed trackers: with everything in the log, and with most of it in the file."""
    folders = [tmp_path_factory.mktemp("in-the-log"), tmp_path_factory.mktemp("in-the-file")]
    for folder, folds in zip(folders, (False, True), strict=True):
        write_and_be_killed(folder, folds=folds)
        keep_copy(folder / "journal.sqlite")
    return folders


def opened(folder: Path) -> Durable:
    journal = Journal(folder / "journal.sqlite")
    try:
        return journal.open(NOW)
    finally:
        journal.close()


def flip(content: bytearray, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 1, 3, 50))):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)


def cut(content: bytearray, rng: random.Random) -> None:
    del content[rng.randrange(len(content)) :]


def clear(content: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(content))
    length = min(rng.choice((1, 24, 512, 4096, 20_000)), len(content) - start)
    content[start : start + length] = bytes(length)


def swap_pages(content: bytearray, rng: random.Random) -> None:
    pages = max(1, len(content) // 4096)
    one, other = rng.randrange(pages) * 4096, rng.randrange(pages) * 4096
    content[one : one + 4096], content[other : other + 4096] = (
        content[other : other + 4096],
        content[one : one + 4096],
    )


def scribble(content: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(content))
    content[start : start + 100] = rng.randbytes(100)


DAMAGERS: tuple[Callable[[bytearray, random.Random], None], ...] = (flip, cut, clear, swap_pages, scribble)


def damage(folder: Path, rng: random.Random) -> None:
    path = folder / "journal.sqlite"
    file = rng.choice([path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-wal"), mark_path(path)])
    if rng.random() < 0.05:
        file.unlink()
        return
    content = bytearray(file.read_bytes())
    rng.choice(DAMAGERS)(content, rng)
    file.write_bytes(content)


@pytest.mark.slow
@pytest.mark.timeout(120 + DAMAGES)
def test_no_damaged_journal_is_taken_for_a_whole_one(killed: list[Path], tmp_path: Path) -> None:
    """After flipped bits, cut-off ends, swapped pages and missing files, a tracker has all its state or refuses to
    start with one sentence. One command then restores it, and boot numbers never decrease.
    """
    rng = random.Random(10)
    refusals = []
    for number in range(DAMAGES):
        folder = tmp_path / str(number)
        shutil.copytree(rng.choice(killed), folder)
        damage(folder, rng)
        try:
            durable = opened(folder)
        except JournalDamaged as error:
            refusals.append(str(error))
            fsck.restore(folder)
            durable = opened(folder)
        assert held(durable) == (120, 90, 90), f"damage {number} of seed 10"
        assert durable.boot > NOW * 1e3
        shutil.rmtree(folder)
    assert len(refusals) > DAMAGES // 4
    assert [words for words in refusals if "fleet tracker fsck" not in words or "\n" in words] == []


@pytest.mark.slow
def test_a_killed_journal_is_whole(killed: list[Path], tmp_path: Path) -> None:
    """No committed change is lost, and the next start reports no damage."""
    for number, source in enumerate(killed):
        folder = tmp_path / str(number)
        shutil.copytree(source, folder)
        assert held(opened(folder)) == (120, 90, 90)
        found = fsck.check(folder)
        assert found.is_whole
        assert found.journal.startswith("whole, with 120 devices, 90 leases and 90 waiting requests")


def filled(folder: Path) -> Path:
    journal = Journal(folder / "journal.sqlite")
    journal.open(NOW)
    fill(journal)
    journal.close()
    return journal.path


def test_a_journal_that_is_gone_is_missed(tmp_path: Path) -> None:
    """An emptied or deleted file does not count as a first start; the copy is restored with a larger boot number."""
    path = filled(tmp_path)
    keep_copy(path)
    boot = opened(tmp_path).boot
    path.write_bytes(b"")
    with pytest.raises(JournalDamaged, match="is gone"):
        opened(tmp_path)
    path.unlink()
    with pytest.raises(JournalDamaged, match="is gone"):
        opened(tmp_path)

    words = fsck.restore(tmp_path)

    assert "restored the copy" in words
    durable = opened(tmp_path)
    assert held(durable) == (120, 90, 90)
    assert durable.boot > boot


def test_an_older_file_in_its_place_is_noticed(tmp_path: Path) -> None:
    """A file from a backup is missing its later changes; restoring accepts the loss."""
    path = filled(tmp_path)
    older = path.read_bytes()
    journal = Journal(path)
    journal.open(NOW)
    journal.write(Changes(requests={waiting(500).key: waiting(500)}))
    journal.close()
    path.write_bytes(older)

    with pytest.raises(JournalDamaged, match="lacks its last 2 changes"):
        opened(tmp_path)

    assert "what is left of the journal itself" in fsck.restore(tmp_path)
    assert held(opened(tmp_path)) == (120, 90, 90)


def test_a_power_cut_may_cost_the_last_moments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a reboot of the machine, changes that had not reached the disk are lost, and the tracker starts without
    manual repair.
    """
    path = filled(tmp_path)
    older = path.read_bytes()
    journal = Journal(path)
    journal.open(NOW)
    journal.close()
    path.write_bytes(older)
    monkeypatch.setattr("fleet.tracker.journal.mark.machine_fingerprint", lambda: "0123456789abcdef")

    assert held(opened(tmp_path)) == (120, 90, 90)


def test_without_any_good_file_only_starting_empty_is_left(tmp_path: Path) -> None:
    """An operator must decide to start empty. The damaged file is kept, and boot numbers go on."""
    path = filled(tmp_path)
    boot = opened(tmp_path).boot
    for file in (path, copy_path(path)):
        file.write_bytes(b"SQLite format 3\0" + b"rubbish" * 1000)
    with pytest.raises(JournalDamaged, match="fsck --empty"):
        fsck.restore(tmp_path)

    words = fsck.start_empty(tmp_path)

    (aside,) = tmp_path.glob("damaged-*")
    assert str(aside) in words
    assert b"rubbish" in (aside / path.name).read_bytes()
    durable = opened(tmp_path)
    assert held(durable) == (0, 0, 0)
    assert durable.boot > boot


def test_the_copy_is_as_new_as_the_journal(tmp_path: Path) -> None:
    """It is made while the journal is open, only after changes, and readable by its owner alone."""
    journal = Journal(tmp_path / "journal.sqlite")
    journal.open(NOW)
    fill(journal)
    for suffix in ("", "-journal"):
        (tmp_path / f".{copy_path(journal.path).name}.4242{suffix}").write_text("of a tracker killed as it copied")

    assert keep_copy(journal.path)
    assert not keep_copy(journal.path)
    journal.write(Changes(requests={waiting(500).key: waiting(500)}))
    assert keep_copy(journal.path)
    journal.close()

    copy = copy_path(journal.path)
    assert copy.stat().st_mode & 0o777 == 0o600
    assert {path.name for path in tmp_path.iterdir()} == {journal.path.name, copy.name, mark_path(journal.path).name}
    copy.rename(journal.path)
    assert held(opened(tmp_path)) == (120, 90, 91)


@pytest.mark.slow
async def test_a_tracker_closes_once_its_copy_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tracker neither reads nor writes its state directory afterwards, so its owner may remove it."""
    begun, made = threading.Event(), list[bool]()

    def copy_slowly(path: Path) -> bool:
        begun.set()
        time.sleep(0.2)
        made.append(keep_copy(path))
        return made[-1]

    monkeypatch.setattr(journal_file, "keep_copy", copy_slowly)
    async with serve_tracker(state_dir=tmp_path):
        assert await asyncio.to_thread(begun.wait, 60)

    assert made == [True]


def test_the_command_reports_the_state_of_a_journal(tmp_path: Path) -> None:
    """The exit code serves scripts; a missing journal is a usage error."""
    path = filled(tmp_path)
    keep_copy(path)
    run = CliRunner().invoke
    assert run(app, ["tracker", "fsck", "--state-dir", str(tmp_path)]).exit_code == 0
    path.write_bytes(path.read_bytes()[:8192])

    broken = run(app, ["tracker", "fsck", "--state-dir", str(tmp_path)])
    restored = run(app, ["tracker", "fsck", "--restore", "--state-dir", str(tmp_path)])
    again = run(app, ["tracker", "fsck", "--state-dir", str(tmp_path)])

    assert broken.exit_code == 1
    assert "copy:    whole, with 120 devices" in broken.stdout
    assert (restored.exit_code, again.exit_code) == (0, 0)
    with pytest.raises(ConfigError, match="there is no"):
        fsck.check(tmp_path / "elsewhere")
