"""Processors to which a device's kernels are pinned."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from device_agents.machine.pinning import OwnCpus, check_setting, choose_cpus
from fleet.errors import ConfigError


def phone(root: Path, file: str = "cpu_capacity") -> Path:
    """Six little cores and two big ones."""
    for cpu in range(8):
        path = root / f"sys/devices/system/cpu/cpu{cpu}" / file
        path.parent.mkdir(parents=True)
        path.write_text("400\n" if cpu < 6 else "1024\n")
    return root


@pytest.mark.parametrize("setting", [None, "all"])
def test_all_processors_are_no_restriction(setting: str | None) -> None:
    """ "all", the default, pins no worker."""
    assert choose_cpus(setting, range(4), where="here") == ()


@pytest.mark.parametrize("setting", [[3, 2], "2,3", "2-3", [2, 3, 3]])
def test_numbers_and_ranges(setting: str | list[int]) -> None:
    """Processors are given as taskset writes them, or as a list."""
    assert choose_cpus(setting, range(4), where="here") == (2, 3)


@pytest.mark.parametrize("file", ["cpu_capacity", "cpufreq/cpuinfo_max_freq"])
def test_big_and_little_cores_follow_the_kernels_capacity(tmp_path: Path, file: str) -> None:
    """Big and little cores differ in capacity, else in their highest clock."""
    root = phone(tmp_path, file)

    assert choose_cpus("big", range(8), root, where="here") == (6, 7)
    assert choose_cpus("little", range(8), root, where="here") == (0, 1, 2, 3, 4, 5)


def test_big_on_a_machine_of_equals_is_refused(tmp_path: Path) -> None:
    """A setting of "big" on a machine with equal cores was meant for another machine."""
    with pytest.raises(ConfigError, match=r"all alike.*name them by number, of 0, 1"):
        choose_cpus("big", range(2), tmp_path, where="here")


def test_a_processor_that_is_not_there_is_named() -> None:
    """The message names the available processors."""
    with pytest.raises(ConfigError, match=r"here: this agent may not use processor 7; it may use 0, 1"):
        choose_cpus([1, 7], range(2), where="here")


@pytest.mark.parametrize("setting", ["fast", "2-", [], ["2"], [-1], [True], "1,,2"])
def test_nonsense_is_refused(setting: object) -> None:
    """Nonsense is refused before any machine is looked at."""
    with pytest.raises(ConfigError, match="expected all, big, little, or numbers"):
        check_setting(setting, where="here")  # type: ignore[arg-type]


@pytest.fixture
def own_cpus() -> Iterator[OwnCpus]:
    cpus = OwnCpus()
    yield cpus
    cpus.restore()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor: nothing to keep off to")
def test_the_agent_keeps_off_with_all_its_threads_and_comes_back(own_cpus: OwnCpus) -> None:
    """Existing threads move, too."""
    before = os.sched_getaffinity(0)
    taken = {max(before)}
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()

    own_cpus.keep_off(taken)

    assert own_cpus.is_apart
    assert os.sched_getaffinity(0) == os.sched_getaffinity(other.native_id or 0) == before - taken
    assert set(own_cpus.for_others) == before
    own_cpus.restore()
    assert os.sched_getaffinity(0) == os.sched_getaffinity(other.native_id or 0) == before
    assert not own_cpus.is_apart
    done.set()
    other.join()


def test_the_agent_stays_where_there_is_nowhere_else(own_cpus: OwnCpus) -> None:
    """A device that uses every processor leaves none to keep off to; one without its own takes none."""
    before = os.sched_getaffinity(0)

    own_cpus.keep_off(before)
    own_cpus.keep_off(())

    assert not own_cpus.is_apart
    assert os.sched_getaffinity(0) == before
    assert own_cpus.for_others == ()
