"""Temporary folders go away however their maker ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fleet.base.scratch import own, remove_abandoned, scratch_dir
from fleet.testing import eventually_sync

_HOLD = """
import sys, time
from fleet.base.scratch import scratch_dir
with scratch_dir("held") as folder:
    (folder / "large").write_text("x")
    print(folder, flush=True)
    time.sleep(60)
"""


_SERVE = """
import sys, time
from cross.pool.fork_server import start_fork_server
start_fork_server()
print("up", flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def own_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)


def test_it_is_removed_with_all_that_is_in_it() -> None:
    """It goes as any temporary folder does."""
    with scratch_dir("mine") as folder:
        (folder / "deep").mkdir()
        assert folder.name.startswith("fleet-mine-")

    assert not folder.exists()


def test_a_dead_process_folder_is_removed_by_the_next() -> None:
    """The owner's lock is released by its death, and protects the folder until then."""
    with subprocess.Popen([sys.executable, "-c", _HOLD], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        held = Path(holder.stdout.readline().strip())
        with scratch_dir("mine"):
            assert (held / "large").exists()
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()

        with scratch_dir("mine") as mine:
            assert not held.exists()
            assert mine.exists()


@pytest.mark.slow
def test_the_folder_of_a_killed_build_pool_goes_too(tmp_path: Path) -> None:
    """Multiprocessing keeps its socket in a folder of its own; each kill -9 of a tune left one for ever."""
    with subprocess.Popen([sys.executable, "-c", _SERVE], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "up\n"
        (folder,) = tmp_path.glob("pymp-*")
        remove_abandoned(tmp_path)
        assert folder.exists()
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()

    remove_abandoned(tmp_path)

    assert not folder.exists()


@pytest.mark.slow
@pytest.mark.parametrize("is_anywhere_short", [True, False])
def test_a_build_pool_starts_in_a_long_temporary_folder(is_anywhere_short: bool, tmp_path: Path) -> None:
    """A socket's path has at most 107 bytes: the folder is made elsewhere, or the error suggests TMPDIR."""
    long = tmp_path / ("t" * 100)
    long.mkdir()
    nowhere = "" if is_anywhere_short else "from cross.pool import fork_server\nfork_server._SHORT_ROOTS = ()\n"
    words = [sys.executable, "-c", nowhere + _SERVE.replace("time.sleep(60)", "")]

    done = subprocess.run(words, env={**os.environ, "TMPDIR": str(long)}, capture_output=True, text=True, timeout=60)

    assert done.stdout == ("up\n" if is_anywhere_short else "")
    said = "" if is_anywhere_short else f"the path of the temporary folder {long} is too long: set TMPDIR"
    assert said in done.stderr
    assert not is_anywhere_short or not done.stderr
    assert not is_anywhere_short or not list(long.iterdir())


def test_folders_of_others_are_left(tmp_path: Path) -> None:
    """A folder without an owner's file belongs to another program, even if its name is ours."""
    (tmp_path / "fleet-agent").mkdir()

    with scratch_dir("mine"):
        pass

    assert (tmp_path / "fleet-agent").is_dir()


def test_a_folder_that_a_child_still_writes_into_is_removed_later(tmp_path: Path) -> None:
    """Before, the first sweep removed the mark, and a file written meanwhile kept the folder for ever."""
    folder = tmp_path / "fleet-artifacts-x"
    folder.mkdir()
    os.close(own(folder))
    for name in range(5000):
        (folder / f"artifact-{name}").touch()
    script = "import itertools, sys\nfor i in itertools.count(): open(f'{sys.argv[1]}/{i}', 'x').close()"
    with subprocess.Popen([sys.executable, "-c", script, str(folder)], stderr=subprocess.DEVNULL) as child:
        eventually_sync(lambda: (folder / "100").exists(), 30.0)
        remove_abandoned(tmp_path)
        child.kill()
        child.wait()
    remove_abandoned(tmp_path)

    assert list(tmp_path.iterdir()) == []
