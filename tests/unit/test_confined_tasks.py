"""Workers that run untrusted code: access to the given files only, no network, no other process, no trusted answer."""

from __future__ import annotations

import io
import os
import pickle
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cross.pool.build_pool import BuildPool
from cross.pool.confined import Confined, read_answer
from fleet.confinement.process import AllowedFiles, missing_features
from fleet.domain.measuring import ErrorKind, TensorSpec
from fleet.errors import BuildError, FleetError, ImportFailed
from tests.unit import hostile_tasks as hostile

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing_features()), reason=f"this machine has no {missing_features()}"),
]


@pytest.fixture(scope="module")
def pool() -> Iterator[BuildPool]:
    pool = BuildPool(1)
    yield pool
    pool.shutdown(wait=False)


def confined(pool: BuildPool, fn: Callable[..., Any], *args: object, files: AllowedFiles | None = None) -> Any:
    return pool.submit_within(60.0, Confined(fn, files or AllowedFiles()), *args).result()


def test_files_outside_the_allowlist_are_closed(pool: BuildPool, tmp_path: Path) -> None:
    """The restriction also applies to programs started by the task."""
    given, secret = tmp_path / "model", tmp_path / "id_ed25519"
    given.write_text("weights")
    secret.write_text("secret")
    files = AllowedFiles(readable=(str(given),))

    assert confined(pool, hostile.read, str(given), files=files) == "weights"
    assert confined(pool, hostile.run_and_read, str(given), files=files) == "weights"
    for path in (str(secret), "/etc/shadow", f"{tmp_path}/../"):
        with pytest.raises(FleetError, match="PermissionError"):
            confined(pool, hostile.read, path, files=files)
    with pytest.raises(FleetError, match="CalledProcessError"):
        confined(pool, hostile.run_and_read, str(secret), files=files)
    for path in (given, secret, tmp_path / "new"):
        with pytest.raises(FleetError, match="PermissionError"):
            confined(pool, hostile.write, str(path), files=files)
    assert secret.read_text() == "secret"


def test_a_task_writes_where_it_may(pool: BuildPool, tmp_path: Path) -> None:
    """A task can write to its own folder, which is removed afterwards, and to the caller's output path."""
    assert confined(pool, hostile.write_temporary).startswith("mine")
    confined(pool, hostile.write, str(tmp_path / "result"), files=AllowedFiles(writable=(str(tmp_path),)))

    assert (tmp_path / "result").read_text() == "theirs"


def test_there_is_no_network_and_no_other_process(pool: BuildPool, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        local.bind(str(tmp_path / "socket"))
        local.listen()
        with pytest.raises(FleetError, match=r"OSError|PermissionError"):
            confined(pool, hostile.connect, server.getsockname()[1])
        with pytest.raises(FleetError, match=r"OSError|PermissionError"):
            confined(pool, hostile.connect_unix, str(tmp_path / "socket"))
    with pytest.raises(FleetError, match="PermissionError"):
        confined(pool, hostile.environment_of, os.getpid())
    with pytest.raises(FleetError, match="PermissionError"):
        confined(pool, hostile.kill, os.getpid())


def test_memory_is_bounded(pool: BuildPool) -> None:
    with pytest.raises(FleetError, match="MemoryError"):
        confined(pool, hostile.take_memory, 2 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def test_an_answer_that_is_code_does_not_run(pool: BuildPool, tmp_path: Path) -> None:
    """The calling process is not confined: unpickled code would run there."""
    marker = tmp_path / "ran"

    with pytest.raises(BuildError, match=r"posix\.system, which is not allowed there"):
        confined(pool, hostile.answer_with_code, str(marker))
    assert not marker.exists()


def test_a_confined_worker_serves_no_other_task(pool: BuildPool, tmp_path: Path) -> None:
    """The next task, from another caller, has all rights again."""
    first, second = confined(pool, hostile.pid), pool.submit(hostile.pid).result()
    pool.submit(hostile.write, str(tmp_path / "free")).result()

    assert first != second
    assert (tmp_path / "free").read_text() == "theirs"


@pytest.mark.parametrize(
    "value",
    [
        TensorSpec((1, 2), "float32"),
        {"a": [1, 2.5, None, b"x", {3}, (4,), True]},
        np.arange(6, dtype="float32").reshape(2, 3),
        np.float64(2.5),
        ErrorKind.TIMEOUT,
        Path("/somewhere"),
    ],
    ids=repr,
)
def test_plain_values_are_read(value: object) -> None:
    found = read_answer(pickle.dumps(value))

    assert type(found) is type(value)
    assert np.array_equal(found, value) if isinstance(value, np.ndarray) else found == value


def test_members_of_enumerations_are_read_as_python_3_11_2_pickles_them() -> None:
    """Debian 12 has that Python: every command that read a model file ended there."""
    assert read_answer(_getattr("fleet.errors", "ErrorKind", "TIMEOUT")) is ErrorKind.TIMEOUT


def _getattr(module: str, name: str, attribute: str) -> bytes:
    return f"cbuiltins\ngetattr\n(c{module}\n{name}\nS'{attribute}'\ntR.".encode()


def _as_a_worker_pickles(value: object) -> bytes:
    """Pickle without the reducers of exceptions that Dask installs in the whole process; no build worker imports it."""
    content = io.BytesIO()
    pickler = pickle.Pickler(content)
    pickler.dispatch_table = {}
    pickler.dump(value)
    return content.getvalue()


def test_errors_are_read() -> None:
    found = read_answer(_as_a_worker_pickles(ImportFailed("no model")))

    assert (type(found), str(found)) == (ImportFailed, "no model")


@pytest.mark.parametrize(
    "content",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"cfleet.base.scratch\nos\n.",
        b"cfleet.cli.build\nrun_build\n.",
        b"cfleet.library.store\nLibrary\n.",
        b"\x80\x04\x8c\x19fleet.confinement.process\x94\x8c\x09os.system\x94\x93.",
        _getattr("fleet.errors", "ErrorKind", "__init_subclass__"),
        _getattr("fleet.domain.measuring", "TensorSpec", "__init__"),
        b"nonsense",
        b"",
    ],
    ids=range(10),
)
def test_functions_and_classes_that_do_something_are_refused(content: bytes) -> None:
    with pytest.raises(BuildError, match=r"not allowed there|cannot be read"):
        read_answer(content)
