"""The build pool: a task's effects on its worker never reach other tasks."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cross.pool.build_pool import BuildPool
from cross.pool.fork_server import start_fork_server
from cross.targets.target import parse_target
from fleet.errors import BuildError, InvalidRequest
from fleet.testing.waiting import eventually_sync
from tests.programs import here, is_alive
from tests.unit import cross_pool_tasks as tasks

pytestmark = pytest.mark.slow
TARGET = parse_target('{"kind": "llvm", "mtriple": "x86_64-linux-gnu"}')


@pytest.fixture(scope="module")
def pool() -> Iterator[BuildPool]:
    with BuildPool(2, timeout_sec=30.0, target=TARGET) as pool:
        yield pool


def test_results_come_back(pool: BuildPool) -> None:
    """A task's value reaches its Future."""
    assert [2 * n for n in range(20)] == [pool.submit(tasks.add, n, right=n).result() for n in range(20)]


@pytest.mark.parametrize(("task", "said"), [(tasks.crash, "SIGSEGV"), (tasks.leave, "exit code 3")])
def test_crash_costs_one_task(pool: BuildPool, task: Callable[[], None], said: str) -> None:
    """A worker that dies fails its own task, with the reason; tasks around it succeed."""
    before = [pool.submit(tasks.add, n, 1) for n in range(5)]
    crashed = pool.submit(task)
    after = [pool.submit(tasks.add, n, 1) for n in range(5)]

    with pytest.raises(BuildError, match=said) as caught:
        crashed.result()

    assert caught.value.kind == "BUILD_FAILED"
    assert [future.result() for future in before + after] == [1, 2, 3, 4, 5] * 2


def test_last_words_of_a_crash_are_kept(pool: BuildPool) -> None:
    """The dead worker's last output is part of the error."""
    with pytest.raises(BuildError, match="about to crash"):
        pool.submit(tasks.crash).result()


def test_temporary_files_of_compilers_go_away_with_the_pool() -> None:
    """A linker killed with its worker leaves its files. Before, they stayed in $TMPDIR for good."""
    with BuildPool(1, timeout_sec=30.0, target=TARGET) as pool:
        left = Path(pool.submit(tasks.leave_a_file).result())
        assert left.exists()

    assert not left.exists()


def test_hang_ends_at_its_limit(pool: BuildPool) -> None:
    """A task over its limit is killed with an error that says so, and a fresh worker takes its place."""
    hanging = pool.submit_within(0.3, tasks.hang)

    with pytest.raises(BuildError, match=r"hang took longer than 0.3 s") as caught:
        hanging.result()

    assert caught.value.kind == "BUILD_TIMEOUT"
    assert pool.submit(tasks.add, 1, 2).result() == 3


def test_tasks_of_one_key_run_where_they_ran_before(pool: BuildPool) -> None:
    """A worker can thus keep results that are expensive to make; other keys have other homes."""

    def have_homes() -> bool:
        homes = {
            key: {pool.submit_near(key, 5.0, tasks.process_id).result() for _ in range(5)}
            for key in ("a", "b", "c", "d")
        }
        return {len(workers) for workers in homes.values()} == {1} and len(set.union(*homes.values())) > 1

    eventually_sync(have_homes)  # a worker that is still starting, or has not returned from its last task, has no tasks


def test_waiting_does_not_count_as_running() -> None:
    """A task that waited longer than its limit still gets all of it."""
    with BuildPool(1) as pool:
        blocker = pool.submit_within(3.0, tasks.hang)
        waiting = pool.submit_within(2.9, tasks.add, 1, 1)  # on a busy machine a new worker may take a second

        assert waiting.result() == 2
        assert isinstance(blocker.exception(), BuildError)


def test_python_error_keeps_the_worker(pool: BuildPool) -> None:
    """An exception fails its task only, without the price of a new worker."""
    with BuildPool(1) as single:
        worker = single.submit(tasks.process_id).result()

        with pytest.raises(BuildError, match="ValueError: no good"):
            single.submit(tasks.fail).result()
        with pytest.raises(InvalidRequest, match="not this one"):
            single.submit(tasks.refuse).result()
        with pytest.raises(BuildError, match="pickle"):
            single.submit(tasks.unpicklable).result()

        assert worker == single.submit(tasks.process_id).result()


def test_death_of_an_idle_worker_goes_unnoticed() -> None:
    """A worker killed between two tasks is replaced before the next."""
    with BuildPool(1) as pool:
        worker = pool.submit(tasks.process_id).result()
        os.kill(worker, signal.SIGKILL)
        eventually_sync(lambda: not is_alive(worker), 20.0)

        assert worker != pool.submit(tasks.process_id).result()


def test_a_server_that_was_started_ahead_is_the_pools(pool: BuildPool) -> None:
    """Pools share the server; a second one would load TVM once more, and its workers would not die with the first."""
    before = pool.submit(os.getppid).result()
    start_fork_server(TARGET)

    with BuildPool(1) as another:
        assert before == another.submit(os.getppid).result()


def test_shutdown_leaves_no_process(caplog: pytest.LogCaptureFixture) -> None:
    """Closing the pool ends its workers, running tasks included when it does not wait; that is no reason to warn."""
    pool = BuildPool(2)
    workers = {future.result() for future in [pool.submit(tasks.process_id) for _ in range(20)]}
    hanging = [pool.submit(tasks.hang) for _ in range(2)]
    waiting = pool.submit(tasks.add, 1, 1)
    eventually_sync(lambda: all(future.running() for future in hanging), 20.0)

    pool.shutdown(wait=False)

    assert waiting.cancelled()
    assert all(isinstance(future.exception(), BuildError) for future in hanging)
    eventually_sync(lambda: not any(is_alive(worker) for worker in workers), 20.0)
    assert "build worker replaced" not in caplog.text
    with pytest.raises(RuntimeError, match="shut down"):
        pool.submit(tasks.add, 1, 1)


def test_workers_load_only_the_intrinsics_of_the_target(pool: BuildPool) -> None:
    """TVM's package of all intrinsics, seconds to import, is never loaded."""
    is_light, families = pool.submit(tasks.light_intrinsics).result()

    assert is_light
    assert "x86" in families
    assert "cuda" not in families


async def test_it_serves_asyncio(pool: BuildPool) -> None:
    """It is an Executor like any other."""
    assert await asyncio.get_running_loop().run_in_executor(pool, tasks.add, 2, 3) == 5


SCRIPT = """
import sys
print("main runs", flush=True)
from tests.unit import cross_pool_tasks as tasks
from cross.pool.build_pool import BuildPool
pool = BuildPool(2)
pids = {future.result() for future in [pool.submit(tasks.process_id) for _ in range(30)]}
print(*pids, flush=True)
pool.submit(tasks.hang).result()
"""


def test_kill_of_the_parent_kills_the_workers(tmp_path: Path) -> None:
    """Workers die with the process that owns the pool, busy or idle, even by kill -9. And a script without a main
    guard is not run again in them.
    """
    script = tmp_path / "unguarded.py"
    script.write_text(SCRIPT)
    parent = subprocess.Popen([sys.executable, script], env=here(), stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline().strip() == "main runs"
    workers = [int(pid) for pid in parent.stdout.readline().split()]
    assert all(is_alive(worker) for worker in workers)

    parent.kill()
    rest = parent.communicate()[0]

    assert rest == ""
    eventually_sync(lambda: not any(is_alive(worker) for worker in workers), 20.0)


INTERRUPTED_SCRIPT = """
import os
import signal
import sys
signal.signal(signal.SIGINT, lambda *_: os.write(1, b"interrupted\\n"))  # print may be under way already
from tests.unit import cross_pool_tasks as tasks
from cross.pool.build_pool import BuildPool
with BuildPool(1) as pool:
    pool.start()
    print("started", flush=True)
    sys.stdin.readline()
    print(pool.submit(tasks.add, 1, 1).result(), flush=True)
"""


CRAMPED_SCRIPT = """
import itertools
import os
import resource
from pathlib import Path
from tests.unit import cross_pool_tasks as tasks
from cross.pool.build_pool import BuildPool
with BuildPool(1) as pool:
    pool.submit(tasks.process_id).result()
with BuildPool(1) as pool:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = (number for number in itertools.count() if not Path(f"/proc/self/fd/{number}").exists())
    resource.setrlimit(resource.RLIMIT_NOFILE, (next(free) + 1, limits[1]))
    print(type(pool.submit(tasks.add, 1, 1).exception(timeout=60)).__name__)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    print(pool.submit(tasks.add, 1, 1).result(timeout=60))
"""


def test_a_failed_worker_start_is_an_error_and_can_be_retried(tmp_path: Path) -> None:
    """With too many open files the start fails, and works later. Tasks used to wait for ever."""
    script = tmp_path / "cramped.py"
    script.write_text(CRAMPED_SCRIPT)

    done = subprocess.run([sys.executable, script], env=here(), capture_output=True, text=True, check=False)

    assert done.stdout.split() == ["OSError", "2"], done.stderr


PRELOADING_SCRIPT = """
from tests.unit import cross_pool_tasks as tasks
from cross.pool.build_pool import BuildPool
with BuildPool(1, modules=["colorsys", "no_such_module_anywhere"]) as pool:
    print(pool.submit(tasks.has_imported, "colorsys").result())
"""


def test_workers_preload_the_modules_of_their_tasks(tmp_path: Path) -> None:
    """Modules are imported once, in the process from which workers are forked; missing ones fail in the task that needs
    them.
    """
    script = tmp_path / "preloading.py"
    script.write_text(PRELOADING_SCRIPT)

    done = subprocess.run([sys.executable, script], env=here(), capture_output=True, text=True, check=False)

    assert (done.stdout.strip(), done.stderr) == ("True", "")


LOCKING_SCRIPT = """
from tests.unit import cross_pool_tasks as tasks
from cross.pool.build_pool import BuildPool
pool = BuildPool(1)
print(pool.submit(tasks.make_a_lock).result())
pool.shutdown(wait=False)
"""


def test_a_killed_worker_leaves_no_semaphore(tmp_path: Path) -> None:
    """A module imported by tasks makes locks; a killed worker causes no warning about leaked semaphores."""
    script = tmp_path / "locking.py"
    script.write_text(LOCKING_SCRIPT)

    done = subprocess.run([sys.executable, script], env=here(), capture_output=True, text=True, check=False)

    assert (done.stdout.strip(), done.stderr) == ("made", "")


PRODUCT_SCRIPT = """
from tests.unit import cross_pool_tasks as tasks
from cross.pool.build_pool import BuildPool
with BuildPool(1) as pool:
    print(*pool.submit(tasks.threads_of_a_product).result())
"""


def test_a_worker_computes_on_one_core(tmp_path: Path) -> None:
    """Other workers use the other cores; numpy's thread count has to be set before it is loaded, for all workers."""
    script = tmp_path / "product.py"
    script.write_text(PRODUCT_SCRIPT)
    environment = {name: value for name, value in here().items() if name != "OMP_NUM_THREADS"}

    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=True)
    before, after = done.stdout.split()

    assert before == after


def test_an_interrupt_of_the_terminal_is_the_parents_alone(tmp_path: Path) -> None:
    """Ctrl-C reaches the whole process group; a pool that is only starting neither dies of it nor complains."""
    script = tmp_path / "interrupted.py"
    script.write_text(INTERRUPTED_SCRIPT)
    parent = subprocess.Popen(
        [sys.executable, script],
        env=here(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert parent.stdout is not None
    assert parent.stdout.readline().strip() == "started"

    os.killpg(parent.pid, signal.SIGINT)
    out, err = parent.communicate("\n", timeout=60)

    assert out.split() == ["interrupted", "2"]
    assert "Traceback" not in err
