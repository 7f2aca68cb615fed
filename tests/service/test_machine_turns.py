"""Processes of one machine take turns on its cores: a measurement never overlaps another process's build."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.building.machine_turns import MachineTurns, Side
from fleet.testing import eventually
from tests.programs import here

_PROCESS = """
import asyncio, random, sys, time
from pathlib import Path
from fleet.building.machine_turns import MachineTurns, Side

async def work(seed):
    chance, turns = random.Random(seed), MachineTurns(Path(sys.argv[1]))
    for side in [Side.BUILDING, Side.MEASURING_ALONE, Side.MEASURING] * 4:
        async with turns.turn(side):
            begun = time.monotonic()
            await asyncio.sleep(chance.random() / 100)
            print(side.value, begun, time.monotonic(), sep=",")

async def main():
    await asyncio.gather(*(work(int(sys.argv[2]) + n) for n in range(2)))

asyncio.run(main())
"""

_HOLDER = """
import asyncio, sys
from pathlib import Path
from fleet.building.machine_turns import MachineTurns, Side

async def main():
    async with MachineTurns(Path(sys.argv[1])).turn(Side(sys.argv[2])):
        print("mine", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def start(code: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code, *words], env=here(), stdout=subprocess.PIPE, text=True)


@pytest.fixture
def builder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process, which is building."""
    with start(_HOLDER, str(tmp_path), Side.BUILDING.value) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "mine\n"
        yield process
        process.kill()


@pytest.mark.slow
def test_no_process_builds_while_another_measures(tmp_path: Path) -> None:
    """Builds overlap with builds, measurements on accelerators with each other, and a processor measures alone."""
    processes = [start(_PROCESS, str(tmp_path), seed) for seed in ("10", "20")]
    found = [process.communicate(timeout=60)[0].splitlines() for process in processes]
    lines = [line.split(",") for line in itertools.chain(*found)]
    turns = [(Side(side), float(begun), float(ended)) for side, begun, ended in lines]

    clashes = [
        (one, other)
        for one, other in itertools.combinations(turns, 2)
        if one[1] < other[2] and other[1] < one[2] and (one[0] is not other[0] or one[0] is Side.MEASURING_ALONE)
    ]
    assert len(turns) == 48
    assert clashes == []


@pytest.mark.slow
async def test_the_turn_of_a_killed_process_ends(tmp_path: Path, builder: subprocess.Popen[str]) -> None:
    """The kernel releases the lock; another builder does not wait for it."""
    turns, entered = MachineTurns(tmp_path), asyncio.Event()

    async def measure() -> None:
        async with turns.turn(Side.MEASURING):
            entered.set()

    async with turns.turn(Side.BUILDING):
        measuring = asyncio.create_task(measure())
        await asyncio.sleep(0)
    assert not entered.is_set()
    builder.kill()

    await eventually(entered.is_set)
    await measuring


@pytest.mark.slow
async def test_a_stopped_process_delays_others_for_a_bounded_time(
    tmp_path: Path, builder: subprocess.Popen[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A stopped process, or one in a debugger, delays others by a few minutes with a warning."""
    with caplog.at_level(logging.WARNING):
        async with MachineTurns(tmp_path, most_wait_sec=0.05).turn(Side.MEASURING):
            assert builder.poll() is None

    assert "another process has had the cores for long" in caplog.text


@pytest.mark.slow
async def test_a_cancelled_waiter_releases_the_lock(tmp_path: Path, builder: subprocess.Popen[str]) -> None:
    """Another builder gets its turn at once."""
    turns = MachineTurns(tmp_path)

    async def measure() -> None:
        async with turns.turn(Side.MEASURING):
            pass

    waiting = asyncio.create_task(measure())
    await asyncio.sleep(0)  # as far as the gate, and the lock that the builder holds
    waiting.cancel()
    await asyncio.wait([waiting])

    async with asyncio.timeout(60), turns.turn(Side.BUILDING):
        assert builder.poll() is None


async def test_turns_go_on_when_their_files_were_tidied_away(tmp_path: Path) -> None:
    """An optimizer runs for months, and systems empty temporary folders after days: each job failed from then on."""
    turns = MachineTurns(tmp_path / "turns")
    async with turns.turn(Side.BUILDING):
        shutil.rmtree(tmp_path / "turns")

    async with turns.turn(Side.MEASURING):
        assert (tmp_path / "turns").is_dir()


_FOREIGN = """
import fcntl, os, pathlib, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
held = []
for folder in map(pathlib.Path, sys.argv[1:]):
    for path in [folder / name for name in ("gate", "building", "measuring")]:
        try:
            held.append(os.open(path, os.O_RDONLY | os.O_CREAT))
            fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pass
print("mine", flush=True)
sys.stdin.read()
"""


async def _measure_alone() -> None:
    turns = MachineTurns.of_this_machine()
    assert turns is not None
    async with asyncio.timeout(20), turns.turn(Side.MEASURING_ALONE):
        pass


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="becoming another account takes root")
def test_another_account_of_the_machine_delays_no_turn(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The other account locks every file that it can open; before, each turn was five minutes late."""
    with tempfile.TemporaryDirectory() as name:
        monkeypatch.setenv("XDG_STATE_HOME", name)
        Path(name).chmod(0o755)
        asyncio.run(_measure_alone())
        files = list(Path(name).rglob("gate"))
        folders = [str(path.parent) for path in files] + [str(Path(tempfile.gettempdir()) / "tvm-fleet-turns")]
        words = [sys.executable, "-c", _FOREIGN, *folders]
        with subprocess.Popen(
            words, cwd="/", env=here(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as foreign:
            assert foreign.stdout is not None
            assert foreign.stdout.readline() == "mine\n"
            asyncio.run(_measure_alone())
            foreign.communicate()

    assert len(files) == 1
    assert "another process has had the cores for long" not in caplog.text
