"""`fleet tracker backup` of a running tracker, and a tracker that goes on from it."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fleet.aio
from fleet.cli.main import app
from fleet.client.identity_calls import IdentityCalls
from fleet.errors import ConfigError, JournalDamaged
from fleet.identity.certificates import own_key_id
from fleet.identity.roles import Role
from fleet.testing import SimulatedAgent, eventually, serve_tracker
from fleet.testing.identity import join_user
from fleet.tracker.backup import AUTHORITY, HISTORY, JOURNAL, MEMBERS, SIGNING_KEY, back_up, restore
from fleet.tracker.members import Members

DEVICES = ["devices/a", "devices/b"]
KEYS = (AUTHORITY, SIGNING_KEY)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the backup of a tracker without members, devices and leases."""
    folder = tmp_path_factory.mktemp("saved")

    async def make() -> None:
        async with serve_tracker(state_dir=folder / "state"):
            pass

    asyncio.run(make())
    back_up(folder / "state", folder / "tracker.tar")
    return folder / "tracker.tar"


async def test_a_restored_tracker_goes_on_with_members_bookings_and_leases(tmp_path: Path) -> None:
    old, new, file = tmp_path / "old", tmp_path / "new", tmp_path / "tracker.tar"
    async with (
        serve_tracker(state_dir=old) as served,
        SimulatedAgent(served.address, DEVICES),
        fleet.aio.connect(served.address) as client,
        IdentityCalls(served.address) as calls,
    ):
        now_sec = served.tracker.engine.clock.now_sec()
        booking = await client.book("name=a", now_sec + 3600.0, 3600.0)
        lease = (await client.acquire_device("name=b")).lease
        expelled = own_key_id((await join_user(served.address, "ann")).key_pem)
        await calls.revoke(expelled)
        made = await asyncio.to_thread(back_up, old, file)
    assert (made.devices, made.leases, made.bookings) == (2, 1, 1)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600

    assert restore(file, new) == made
    assert [(new / name).read_bytes() for name in KEYS] == [(old / name).read_bytes() for name in KEYS]
    async with serve_tracker(state_dir=new) as served, fleet.aio.connect(served.address) as client:
        assert served.tracker.members.is_revoked(expelled)
        entry = served.tracker.engine.queries.device("devices/b")
        assert entry is not None
        assert entry.lease is not None
        assert entry.lease.name == lease.name
        assert [listed.name for listed in await client.bookings()] == [booking.name]


async def test_a_backup_beside_changes_is_whole_each_time(tmp_path: Path) -> None:
    async with (
        serve_tracker(state_dir=tmp_path / "state") as served,
        SimulatedAgent(served.address, DEVICES),
        fleet.aio.connect(served.address) as client,
    ):
        is_over = asyncio.Event()
        cycles = 0

        async def cycle() -> None:
            nonlocal cycles
            while not is_over.is_set():
                async with client.acquire("simulated"):
                    cycles += 1

        cycling = asyncio.create_task(cycle())
        for number in range(5):
            before = cycles
            await asyncio.to_thread(back_up, tmp_path / "state", tmp_path / "tracker.tar")
            restore(tmp_path / "tracker.tar", tmp_path / f"new{number}")
            await eventually(lambda before=before: cycles > before)
        is_over.set()
        await cycling


async def test_join_tokens_are_not_restored(tmp_path: Path) -> None:
    async with serve_tracker(state_dir=tmp_path / "old") as served:
        async with IdentityCalls(served.address) as calls:
            await calls.invite(Role.USER, ttl_sec=60.0)
        back_up(tmp_path / "old", tmp_path / "tracker.tar")
    restore(tmp_path / "tracker.tar", tmp_path / "new")
    former, restored = (Members(tmp_path / name / MEMBERS) for name in ("old", "new"))
    assert len(former.tokens(0.0)) == 1
    assert restored.tokens(0.0) == []


def test_history_is_kept_only_if_asked_for(saved: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    restore(saved, state)
    (state / HISTORY).write_bytes(b"")
    assert HISTORY not in back_up(state, tmp_path / "small.tar").files
    assert HISTORY in back_up(state, tmp_path / "large.tar", has_history=True).files


def _changed(saved: Path, change: Callable[[dict[str, bytes]], None]) -> bytes:
    """Return a backup with changed files."""
    with tarfile.open(saved) as archive:
        files = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
    change(files)
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:") as archive:
        for name, content in files.items():
            archive.addfile(_member(name, len(content)), io.BytesIO(content))
    return made.getvalue()


def _member(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.type, member.linkname = size, kind, target
    return member


def _manifest(found: dict[str, bytes], **changes: object) -> None:
    found["manifest.json"] = json.dumps({**json.loads(found["manifest.json"]), **changes}).encode()


def _with_member(saved: Path, member: tarfile.TarInfo) -> bytes:
    made = io.BytesIO(saved.read_bytes())
    with tarfile.open(fileobj=made, mode="a:") as archive:
        archive.addfile(member, io.BytesIO(b"\0" * member.size))
    return made.getvalue()


HOSTILE: dict[str, tuple[Callable[[Path], bytes], str]] = {
    "empty": (lambda _: b"", "no intact backup"),
    "noise": (lambda _: bytes(range(256)) * 64, "no intact backup"),
    "cut": (lambda saved: saved.read_bytes()[:9000], "no intact backup"),
    "changed authority": (
        lambda saved: _changed(saved, lambda files: files.update({AUTHORITY: files[AUTHORITY] + b"\n"})),
        f"{AUTHORITY} is missing or changed",
    ),
    "without members": (lambda saved: _changed(saved, lambda files: files.pop(MEMBERS)), f"{MEMBERS} is missing"),
    "without manifest": (lambda saved: _changed(saved, lambda files: files.pop("manifest.json")), "does not begin"),
    "newer": (lambda saved: _changed(saved, lambda files: _manifest(files, format=2)), "format 2"),
    "manifest of lists": (lambda saved: _changed(saved, lambda files: _manifest(files, files=[])), "manifest.json"),
    "manifest of nests": (
        lambda saved: _changed(saved, lambda files: files.update({"manifest.json": b"[" * 60_000})),
        "manifest.json",
    ),
    "other name": (
        lambda saved: _changed(saved, lambda files: _manifest(files, files={"../planted": "0"})),
        "unexpected '../planted'",
    ),
    "path outside": (lambda saved: _with_member(saved, _member("../planted", 8)), "unexpected '../planted'"),
    "twice": (lambda saved: _with_member(saved, _member(AUTHORITY, 8)), "unexpected 'authority.pem'"),
    "link": (
        lambda saved: _changed_kind(saved, AUTHORITY, tarfile.SYMTYPE, "/etc/passwd"),
        "'authority.pem' is no plain file",
    ),
    "device": (lambda saved: _changed_kind(saved, AUTHORITY, tarfile.CHRTYPE), "'authority.pem' is no plain file"),
}


def _changed_kind(saved: Path, name: str, kind: bytes, target: str = "") -> bytes:
    made = io.BytesIO()
    with tarfile.open(saved) as archive, tarfile.open(fileobj=made, mode="w:") as changed:
        for member in archive:
            if member.name == name:
                changed.addfile(_member(name, 0, kind, target))
            else:
                changed.addfile(member, archive.extractfile(member))
    return made.getvalue()


@pytest.mark.parametrize("kind", HOSTILE)
def test_other_files_are_refused_and_leave_nothing(kind: str, saved: Path, tmp_path: Path) -> None:
    make, problem = HOSTILE[kind]
    bad = tmp_path / "bad.tar"
    bad.write_bytes(make(saved))
    bad.chmod(0o600)
    with pytest.raises(ConfigError, match=problem):
        restore(bad, tmp_path / "state")
    assert list(tmp_path.iterdir()) == [bad]


def test_a_backup_that_others_can_read_is_refused(saved: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.tar"
    bad.write_bytes(saved.read_bytes())
    bad.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        restore(bad, tmp_path / "state")


def test_a_directory_in_use_is_never_replaced(saved: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    restore(saved, state)
    authority = (state / AUTHORITY).read_bytes()
    with pytest.raises(ConfigError, match="is not empty"):
        restore(saved, state)
    assert (state / AUTHORITY).read_bytes() == authority


def test_a_damaged_journal_is_not_backed_up(saved: Path, tmp_path: Path) -> None:
    """The former backup stays."""
    state, made = tmp_path / "state", tmp_path / "tracker.tar"
    restore(saved, state)
    former = back_up(state, made)
    with (state / JOURNAL).open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 4096)
    with pytest.raises((ConfigError, JournalDamaged), match=JOURNAL):
        back_up(state, made)
    assert restore(made, tmp_path / "new").made_at == former.made_at


def test_a_killed_restore_leaves_no_half_of_a_tracker(saved: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    dying = (
        "import os, signal, sys; from pathlib import Path; from fleet.tracker import backup\n"
        "backup.copy.restore = lambda journal: os.kill(os.getpid(), signal.SIGKILL)\n"
        "backup.restore(Path(sys.argv[1]), Path(sys.argv[2]))"
    )
    done = subprocess.run([sys.executable, "-c", dying, saved, state], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not state.exists()
    restore(saved, state)
    assert list(tmp_path.iterdir()) == [state]


def test_the_commands_say_what_they_kept(saved: Path, tmp_path: Path) -> None:
    run = CliRunner().invoke
    state = tmp_path / "state"
    restored = run(app, ["tracker", "restore", str(saved), "--state-dir", str(state)])
    assert restored.exit_code == 0
    assert "0 leases, 0 bookings" in restored.output
    again = run(app, ["tracker", "restore", str(saved), "--state-dir", str(state)])
    assert (again.exit_code, "is not empty" in again.output) == (2, True)
    nothing = run(app, ["tracker", "backup", str(tmp_path / "new.tar"), "--state-dir", str(tmp_path / "nope")])
    assert (nothing.exit_code, "lacks authority.pem" in nothing.output) == (2, True)
    nowhere = run(app, ["tracker", "backup", str(tmp_path / "no" / "new.tar"), "--state-dir", str(state)])
    assert (nowhere.exit_code, "No such file" in nowhere.output) == (2, True)
