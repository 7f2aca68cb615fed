"""Fuzzing finds planted faults."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fleet.identity.credentials import PlainSecret
from fleet.v1 import fleet_service_pb2
from fleet.wire import rpc, stubs
from fleet.wire.peers import SECRET_HEADER, Guard
from tests.fuzz import frames
from tests.fuzz.engine import Run, explore, inputs_of
from tests.fuzz.loops import ServerLoop
from tests.fuzz.target import Target, no_loop
from tests.fuzz.watch import Limits, check
from tests.service.identity_parts import Answering

_ENDLESS = 1000.0


def limits(*, cpu_sec: float = _ENDLESS, turn_sec: float = _ENDLESS, memory_mib: float = _ENDLESS) -> Limits:
    return Limits(cpu_sec=cpu_sec, turn_sec=turn_sec, memory_mib=memory_mib)


def target_of(read: Callable[[bytes], object]) -> Target:
    return Target(name="planted", run=no_loop(read), seeds=lambda: [b"a;b;c"], words=(b";", b"x"))


def raises_at_two_words(content: bytes) -> None:
    if b"x;" in content:
        raise IndexError("planted")


def is_slow_when_long(content: bytes) -> None:
    ends_at = time.thread_time() + (0.02 if len(content) > 10_000 else 0)
    while time.thread_time() < ends_at:
        pass


def takes_memory_when_long(content: bytes) -> None:
    bytearray(b"x" * (40_000_000 if len(content) > 10_000 else 10))


@pytest.mark.parametrize(
    ("read", "limits", "said"),
    [
        (raises_at_two_words, limits(), "IndexError at test_engine.py"),
        (is_slow_when_long, limits(cpu_sec=0.01), "time at watch.py"),
        (takes_memory_when_long, limits(memory_mib=10.0), "memory at watch.py"),
    ],
    ids=["an error", "time", "memory"],
)
def test_a_planted_fault_is_found(read: Callable[[bytes], object], limits: Limits, said: str, tmp_path: Path) -> None:
    """Each kind of fault is found; the input that shows it is kept, one for each place."""
    run = Run(target=target_of(read), limits=limits, kept_in=tmp_path)

    explore(run, 400, seed=1)

    (place,) = run.findings
    assert place.startswith(said)
    (kept,) = tmp_path.iterdir()
    assert kept.read_bytes() == run.findings[place]


def test_a_target_without_faults_has_no_findings() -> None:
    """No input of a target without faults is a finding."""
    run = Run(target=target_of(len), limits=limits())

    explore(run, 300, seed=1)

    assert (run.findings, run.count) == ({}, 301)


def test_inputs_are_the_same_for_the_same_seed() -> None:
    """A failure in CI can be reproduced at a desk."""
    target = target_of(len)

    first, second, other = (list(inputs_of(target, 50, seed)) for seed in (1, 1, 2))

    assert first == second != other


def test_a_turn_that_is_too_long_is_found() -> None:
    """A long turn is a finding even if the loop's total time is within the limit."""
    loop = ServerLoop()

    async def work() -> None:
        await asyncio.sleep(0)
        is_slow_when_long(bytes(20_000))

    target = Target(name="planted", run=lambda _: loop.run(work()), seeds=lambda: [b""])
    with pytest.raises(Exception, match="turn: "):
        check(target, b"", limits(turn_sec=0.01))
    loop.close()


def test_a_server_error_logged_with_traceback_is_a_finding() -> None:
    """An error that is logged with its traceback is raised as itself; a warning is none."""
    loop, logger = ServerLoop(), logging.getLogger("fleet.planted")

    async def work() -> None:
        logger.warning("a peer said nonsense")
        try:
            raise IndexError("planted")
        except IndexError:
            logger.exception("event failed")

    with pytest.raises(IndexError, match="planted"):
        loop.run(work())
    loop.close()


class Listening(Answering):
    """Notes that it was called."""

    def __init__(self) -> None:
        self.is_called = asyncio.Event()

    async def get_fleet(self, request: object, context: object) -> fleet_service_pb2.GetFleetResponse:
        self.is_called.set()
        return await super().get_fleet(request, context)


async def test_a_call_written_by_hand_reaches_its_service() -> None:
    """A frame written by hand is valid before it is cut off or mixed up; random bytes alone would prove little."""
    secret, servicer, server = PlainSecret(secret=bytes(100)), Listening(), rpc.make_server()
    stubs.add_fleet_service(server, servicer, Guard(secret=lambda: secret))
    port = rpc.bind(server, "127.0.0.1", 0, None, what="the test")
    await server.start()
    call = frames.headers("/fleet.v1.FleetService/GetFleet", [(SECRET_HEADER, secret.secret)]) + frames.message(b"")

    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(frames.greeting() + call)

    async with asyncio.timeout(30.0):
        await servicer.is_called.wait()
    writer.close()
    await server.stop(None)
