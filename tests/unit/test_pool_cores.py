"""The thread that starts kernels is on no core of TVM's pool."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from device_agents.driver import NoStrays
from device_agents.drivers.cpu import CpuDriver
from device_agents.runtimes.pool_cores import cores_apart, move_to
from tests.programs import here

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core is everybody's")

_CORE = 36
"""Index in /proc/PID/stat, behind the name, of the core that a thread ran on last."""


@pytest.fixture
def taken() -> Iterator[int]:
    """A core that another thread of this process is bound to."""
    core, ended, started = max(os.sched_getaffinity(0)), threading.Event(), threading.Event()

    def stay() -> None:
        os.sched_setaffinity(0, {core})
        started.set()
        ended.wait()

    thread = threading.Thread(target=stay)
    thread.start()
    started.wait()
    yield core
    ended.set()
    thread.join()


def core_of_this_thread() -> int:
    return int(Path("/proc/thread-self/stat").read_text().rpartition(")")[2].split()[_CORE])


def test_a_thread_moves_off_a_core_that_another_one_is_bound_to(taken: int) -> None:
    """After the move the thread may run anywhere again."""
    usable = os.sched_getaffinity(0)
    move_to(frozenset({taken}))
    assert core_of_this_thread() == taken

    move_to(cores_apart())

    assert cores_apart() == usable - {taken}
    assert os.sched_getaffinity(0) == usable


@pytest.mark.parametrize("cores", [frozenset(), frozenset({4095})])
def test_a_thread_that_cannot_move_stays(cores: frozenset[int]) -> None:
    """The thread stays if all cores are taken, or if its process may not use the core any more."""
    usable = os.sched_getaffinity(0)

    move_to(cores)

    assert os.sched_getaffinity(0) == usable


@pytest.mark.slow
def test_tvms_pool_leaves_one_core_to_the_thread_that_starts_kernels() -> None:
    """TVM binds one thread to each of the other cores."""
    code = """
import json, os
from device_agents.runtimes.tvm import TvmRuntime
usable = sorted(os.sched_getaffinity(0))
runtime = TvmRuntime()
runtime._settle()
print(json.dumps({"usable": usable, "own": sorted(runtime._own_cores)}))
"""
    count = os.cpu_count()
    environment = {**here(), "TVM_NUM_THREADS": str(count)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)

    if len(found["usable"]) < (count or 1):
        pytest.skip("TVM binds no thread where it may not use all cores")
    assert len(found["own"]) == 1


async def test_idle_threads_of_the_pool_sleep_soon() -> None:
    """The driver sets TVM's variable, which the runtime must still read."""
    (driver,) = CpuDriver.from_config({}, where="here", host_name="here")
    await driver.open(NoStrays())
    environment = driver.worker_spec().environment
    await driver.close()

    spec = importlib.util.find_spec("tvm")
    assert spec is not None
    assert spec.origin is not None
    runtime = Path(spec.origin).parent / "lib/libtvm_runtime.so"
    assert int(environment["TVM_THREAD_POOL_SPIN_COUNT"]) <= 20_000
    assert b"TVM_THREAD_POOL_SPIN_COUNT" in runtime.read_bytes()
