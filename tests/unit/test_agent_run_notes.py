"""Notes of running programs: found by the next agent if one is lost, and without harm if they cannot be kept."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from device_agents.serving.run_notes import RunNotes
from fleet.testing import FakeClock

A, B = ("sha256:" + letter * 64 for letter in "ab")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "running"


def opened(path: Path) -> RunNotes:
    notes = RunNotes(path)
    notes.open()
    return notes


def begin(notes: RunNotes, device_name: str, digest: str) -> None:
    asyncio.run(notes.begin(device_name, digest))


def test_programs_that_run_when_an_agent_is_lost_are_known_to_the_next(path: Path) -> None:
    """Once: the one after that finds nothing."""
    notes = opened(path)
    begin(notes, "devices/a", A)
    begin(notes, "devices/b", B)
    begin(notes, "devices/c", B)

    assert RunNotes(path).open() == {A: "devices/a", B: "devices/c"}
    assert RunNotes(path).open() == {}


def test_a_program_that_ended_is_not_found(path: Path) -> None:
    """Another one on the same device is."""
    notes = opened(path)
    begin(notes, "devices/a", A)
    notes.end("devices/a")
    notes.end("devices/b")
    begin(notes, "devices/b", A)
    begin(notes, "devices/b", B)

    assert RunNotes(path).open() == {B: "devices/b"}


def test_an_end_in_order_leaves_nothing(path: Path) -> None:
    """Even if programs run until the agent's process is gone."""
    notes = opened(path)
    begin(notes, "devices/a", A)
    notes.close()
    notes.close()
    begin(notes, "devices/a", A)

    assert not path.exists()
    assert RunNotes(path).open() == {}


def test_programs_are_noted_durably_for_an_hour_after_the_machine_went_down(path: Path) -> None:
    """Otherwise a trial waits for no disk."""
    clock, synced = FakeClock(), [0]

    def booted(boot_id: str) -> RunNotes:
        def sync(_: int) -> None:
            synced[0] += 1

        notes = RunNotes(path, clock=clock.now_sec, boot_id=boot_id, sync=sync)
        notes.open()
        synced[0] = 0
        return notes

    begin(booted("one"), "devices/a", A)
    assert synced == [0]
    begin(booted("one"), "devices/a", A)
    assert synced == [0]

    notes = booted("two")
    begin(notes, "devices/a", A)
    assert synced == [1]
    clock.advance(3_601.0)
    begin(notes, "devices/a", B)
    assert synced == [1]

    notes.close()
    begin(booted("three"), "devices/a", A)
    assert synced == [0]


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lambda content: b"\xff" * 256 + content[256:], {A: "devices/a", B: "devices/b"}),
        (lambda content: content[:256] + b"x" + content[257:], {B: "devices/b"}),
        (lambda content: content[:600], {A: "devices/a"}),
        (lambda content: content[1:], {}),
        (lambda content: os.urandom(len(content)), {}),
        (lambda content: b"[" * 5_000_000, {}),
        (lambda content: b"", {}),
    ],
    ids=["boot", "one", "cut", "shifted", "random", "huge", "empty"],
)
def test_damaged_notes_are_skipped(path: Path, damage: Callable[[bytes], bytes], found: dict[str, str]) -> None:
    """Intact notes still count."""
    notes = opened(path)
    begin(notes, "devices/a", A)
    begin(notes, "devices/b", B)
    path.write_bytes(damage(path.read_bytes()))

    assert RunNotes(path).open() == found
    assert RunNotes(path).open() == {}


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("elsewhere")])
def test_an_agent_runs_programs_where_no_file_can_be_written(path: Path, make: Callable[[Path], None]) -> None:
    """Nothing is noted then."""
    make(path)
    notes = opened(path)
    begin(notes, "devices/a", A)
    notes.end("devices/a")

    assert RunNotes(path).open() == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="a small file system is mounted for it")
def test_notes_on_a_full_disk_are_left_out(path: Path) -> None:
    """Once a device has its record, no more room is needed."""
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", path.parent], check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        notes = opened(path)
        begin(notes, "devices/a", A)
        with pytest.raises(OSError, match="No space left"):
            (path.parent / "other").write_bytes(bytes(8192))
        begin(notes, "devices/a", B)
        assert RunNotes(path).open() == {B: "devices/a"}
        path.unlink()
        with pytest.raises(OSError, match="No space left"):
            (path.parent / "another").write_bytes(bytes(8192))

        notes = opened(path)
        begin(notes, "devices/a", A)
        notes.end("devices/a")

        assert RunNotes(path).open() == {}
    finally:
        subprocess.run(["umount", "--lazy", path.parent], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="a file system is mounted for it")
def test_notes_that_cannot_be_cleared_do_not_count(path: Path) -> None:
    """On a read-only disk, each start of the agent would find them again."""
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", path.parent], check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        notes = opened(path)
        begin(notes, "devices/a", A)
        content = path.read_bytes()
        notes.close()
        path.write_bytes(content)
        subprocess.run(["mount", "-o", "remount,ro", path.parent], check=True)

        assert [RunNotes(path).open() for _ in range(2)] == [{}, {}]

        subprocess.run(["mount", "-o", "remount,rw", path.parent], check=True)
        assert RunNotes(path).open() == {A: "devices/a"}
    finally:
        subprocess.run(["umount", "--lazy", path.parent], check=True)
