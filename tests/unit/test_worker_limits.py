"""Classes of a worker's failures, and the size of its files."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from device_agents.runtimes.contract import CandidateFailed, classify
from device_agents.runtimes.tvm import run_failure
from device_agents.workers.directory import WorkerDirectory
from device_agents.workers.limits import WorkerLimits, count_files, find_excess
from fleet.domain.measuring import ErrorKind

_HOLDS_A_FILE = """
import os, sys
with open(sys.argv[1], "wb") as file:
    file.write(bytes([1]) * 2_000_000)
    file.flush()
    os.unlink(sys.argv[1])
    print("held", flush=True)
    sys.stdin.readline()
print("closed", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryError(), ErrorKind.OUT_OF_MEMORY),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), ErrorKind.OUT_OF_MEMORY),
        (OSError(errno.ENOSPC, "No space left on device"), ErrorKind.OUT_OF_DISK),
        (OSError(errno.EFBIG, "File too large"), ErrorKind.OUT_OF_DISK),
        (OSError("out of memory, it says"), ErrorKind.RUN_FAILED),
        (ValueError("out of memory, it says"), ErrorKind.RUN_FAILED),
        (CandidateFailed(ErrorKind.LOAD_FAILED, "x"), ErrorKind.LOAD_FAILED),
    ],
)
def test_failures_are_classed_by_class_and_errno(error: Exception, kind: ErrorKind) -> None:
    """Memory and disk are recognized by class and error number."""
    assert classify(error).kind == kind
    assert str(classify(error))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("std::bad_alloc"), ErrorKind.OUT_OF_MEMORY),
        (RuntimeError("CUDA: out of memory"), ErrorKind.OUT_OF_MEMORY),
        (MemoryError(), ErrorKind.OUT_OF_MEMORY),
        (RuntimeError("Mismatched type on argument #0 when calling: `main`"), ErrorKind.BAD_ARGUMENTS),
        (RuntimeError("something else"), ErrorKind.RUN_FAILED),
    ],
)
def test_failures_of_tvm_are_classed_by_their_texts(error: Exception, kind: ErrorKind) -> None:
    """TVM's runtime loses the classes of C++ exceptions."""
    assert run_failure(error).kind == kind


def test_a_directory_is_measured_with_all_below_it(tmp_path: Path) -> None:
    """Blocks on disk, not apparent sizes: a sparse file is no harm."""
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "file").write_bytes(bytes([1]) * 100_000)
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 30)

    count, size = count_files(str(tmp_path), at_most=100)
    assert count == 4
    assert 100_000 <= size < 300_000
    assert count_files(str(tmp_path / "gone"), at_most=100) == (0, 0)
    assert count_files(str(tmp_path), at_most=1)[0] == 2


def nest(folder: Path, depth: int, name: str) -> None:
    """Make folders in one another, as a kernel can: deeper than any path reaches."""
    place = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=place)
        inner = os.open(name, os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = inner
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=place))
    os.close(place)


def test_an_unreadable_folder_exceeds_the_limit(tmp_path: Path) -> None:
    """The check of limits had ended at a folder too deep to have a path, and no limits applied from then on."""
    limits = WorkerLimits(memory_bytes=2**40, disk_bytes=2**40)
    assert find_excess([], str(tmp_path), limits) is None
    nest(tmp_path, 20, "n" * 250)

    excess = find_excess([], str(tmp_path), limits)

    assert excess is not None
    assert excess.kind is ErrorKind.OUT_OF_DISK


@pytest.mark.slow
def test_whatever_a_worker_leaves_is_removed(tmp_path: Path) -> None:
    """The cleanup removes very deep folders, locked ones, and links without their destinations."""
    kept = tmp_path / "kept"
    kept.write_text("kept")
    room = WorkerDirectory.make(tmp_path / "worker")
    nest(room.home, 1200, "deep")
    (room.home / "link").symlink_to(tmp_path)
    (room.home / "shut").mkdir()
    (room.home / "shut" / "link").symlink_to(kept)
    (room.home / "shut" / "inner").mkdir(mode=0)
    (room.home / "shut").chmod(0)

    room.remove()

    assert list(tmp_path.iterdir()) == [kept]
    room.remove()


def test_deleted_open_files_count_on_their_file_system(tmp_path: Path) -> None:
    """A deleted open file still occupies its file system: blocks on the home's disk count as disk."""
    limits = WorkerLimits(memory_bytes=2**40, disk_bytes=1_000_000)
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDS_A_FILE, str(tmp_path / "file")], stdin=PIPE, stdout=PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        held = find_excess([process.pid], str(tmp_path), limits)
        process.stdin.write("close\n")
        process.stdin.flush()
        process.stdout.readline()
        closed = find_excess([process.pid], str(tmp_path), limits)
        process.stdin.close()

    assert held is not None
    assert held.kind is ErrorKind.OUT_OF_DISK
    assert closed is None


def test_files_in_memory_count_as_memory(tmp_path: Path) -> None:
    """A worker's files in its own file systems in memory count; a file system that is gone counts nothing."""
    limits = WorkerLimits(memory_bytes=1, disk_bytes=1)

    excess = find_excess([], str(tmp_path / "home"), limits, [str(tmp_path)])

    assert excess is not None
    assert excess.kind is ErrorKind.OUT_OF_MEMORY
    assert find_excess([], str(tmp_path / "home"), limits, [str(tmp_path / "gone")]) is None
