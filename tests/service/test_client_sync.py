"""The client without asyncio, against a small tracker and agent that live on another thread."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import fleet
from fleet.artifacts.artifact import Artifact
from fleet.cli.main import app
from fleet.errors import FleetError, TrackerUnavailable
from fleet.testing import eventually_sync
from tests.service.client_fakes import SmallAgent, SmallTracker, small_fleet


@contextlib.contextmanager
def served() -> Iterator[tuple[str, SmallTracker, SmallAgent]]:
    """Serve a small fleet on a thread."""
    box: list[tuple[str, SmallTracker, SmallAgent]] = []
    ready, loop = threading.Event(), asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)
    done = asyncio.Event()

    async def serve() -> None:
        async with small_fleet() as parts:
            box.append(parts)
            ready.set()
            await done.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(60)
    try:
        yield box[0]
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join()
        loop.close()


def test_the_example_of_the_package_works(tmp_path: Path) -> None:
    """The same names do the same work without asyncio."""
    path = tmp_path / "matmul.so"
    path.write_bytes(b"no real library")
    values = np.ones((2, 2), "float32")
    with served() as (address, tracker, _):
        with fleet.connect(address) as client, client.acquire("simulated") as device:
            module = device.load(path)
            timing = module.time("main", [((2, 2), "float32")], min_repeat_ms=50)
            outputs = module(values)
            artifact = Artifact.of_file(path)
            trials = [fleet.Trial(candidate_id=str(i), artifact_digest=artifact.digest) for i in range(50)]
            ids = [measurement.candidate_id for measurement in device.measure(trial for trial in trials)]
            stopped = device.measure(trials)
            assert next(stopped).candidate_id == "0"
            stopped.close()
            assert next(iter(device.logs())) == "hello\n"
        eventually_sync(lambda: tracker.leases == {})

    assert timing.median_sec == 1e-6
    np.testing.assert_array_equal(outputs, 2 * values)
    assert [str(i) for i in range(50)] == ids


def test_repr_of_client_device_and_module_is_one_line(tmp_path: Path) -> None:
    """Client, device and module are one line each; devices are values."""
    path = tmp_path / "matmul.so"
    path.write_bytes(b"no real library")
    with served() as (address, _, _):
        with fleet.connect(address) as client:
            with client.acquire("simulated") as device:
                assert repr(client) == f"<Fleet {address}, connected, holds devices/small>"
                assert repr(device) == "<Device devices/small under leases/1>"
                assert repr(device.load(path)) == "<RemoteModule main(...) of matmul.so on devices/small>"
            assert repr(device).startswith("<Device devices/small under leases/1, over: devices/small was given back")
            assert [one.name for one in client.devices()] == ["devices/small"]
            assert client.devices("kind=cpu") == []
        assert repr(client) == f"<Fleet {address}, closed>"


def test_timing_repeats_as_the_command_does(tmp_path: Path) -> None:
    """`module.time()`, `device.time()` and `fleet time` have the same defaults."""
    path = tmp_path / "matmul.so"
    path.write_bytes(b"no real library")
    args = [((2, 2), "float32")]
    with served() as (address, _, agent), fleet.connect(address) as client, client.acquire("simulated") as device:
        device.load(path).time("main", args)
        device.time(Artifact.of_file(path), args)
        command = ["time", str(path), "--args", "float32[2,2]", "--on", "simulated", "--tracker", address]
        device.release()
        done = CliRunner().invoke(app, command)

    assert done.exit_code == 0, done.output
    assert [(one.number, one.repeat, one.min_repeat_ms) for one in agent.evaluators] == 3 * [(1, 5, 50)]


def test_an_interrupt_while_waiting_leaves_the_queue() -> None:
    """Ctrl-C in the waiting thread cancels the request before the exception arrives."""
    with served() as (address, tracker, _):
        tracker.grants = False
        with fleet.connect(address) as client:
            with pytest.raises(KeyboardInterrupt):
                client.acquire_device("simulated", on_queued=lambda _: os.kill(os.getpid(), signal.SIGINT))
            client.snapshot()
            eventually_sync(lambda: tracker.kinds() == ["acquire", "cancel"])


def test_an_interrupt_while_measuring_gives_the_device_back() -> None:
    """Ctrl-C in the middle of a measurement ends the block, and the lease with it."""
    with served() as (address, tracker, agent):
        agent.hold.clear()

        def measure() -> None:
            with fleet.connect(address) as client, client.acquire("simulated") as device:
                device.open()
                threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
                list(device.measure([fleet.Trial(candidate_id="1", artifact_digest="sha256:0")]))

        with pytest.raises(KeyboardInterrupt):
            measure()

        eventually_sync(lambda: tracker.leases == {} and agent.is_closed)


def test_a_missing_tracker_is_named() -> None:
    """The error names the address, the time spent and the remedy."""
    with pytest.raises(TrackerUnavailable, match=r"no tracker answers at 127.0.0.1:9 \(tried for 0.2 s\).*fleet up"):
        fleet.connect("127.0.0.1:9", connect_timeout_sec=0.2)


def test_a_callback_cannot_deadlock_the_client() -> None:
    """A callback that calls the client gets an error instead of blocking for ever."""
    with served() as (address, tracker, _):
        tracker.grants = False
        errors: list[Exception] = []

        def ask(_: object) -> None:
            try:
                client.snapshot()
            except fleet.FleetError as error:
                errors.append(error)

        with fleet.connect(address) as client, pytest.raises(fleet.errors.WaitTimeout, match="held by bob@host"):
            client.acquire_device("simulated", wait_timeout_sec=0.05, on_queued=ask)

    assert len(errors) == 1


def test_closing_the_client_wakes_the_threads_that_wait_for_it() -> None:
    """A thread that waits for a device gets an error when the client is closed, instead of waiting for ever."""
    heard: list[BaseException] = []

    def wait_for_a_device(client: fleet.Fleet) -> None:
        try:
            client.acquire_device("simulated")
        except FleetError as error:
            heard.append(error)

    with served() as (address, tracker, _):
        tracker.grants = False
        client = fleet.connect(address)
        thread = threading.Thread(target=wait_for_a_device, args=(client,), daemon=True)
        thread.start()
        eventually_sync(lambda: "acquire" in tracker.kinds())
        client.close()
        thread.join(60)
    assert not thread.is_alive()
    assert "closed" in str(heard[0])
