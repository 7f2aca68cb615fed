"""Stock TVM clients, each a process of its own, use a device of the fleet through a gateway."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

import psutil
import pytest

from fleet.testing import eventually
from tests.service.gateway_site import Site, serve_site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
CLIENT = Path(__file__).with_name("stock_client.py")


async def run_client(site: Site, *deeds: str) -> dict[str, str]:
    """Run deeds of a stock client, and return their results by name."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(CLIENT), str(site.port), "board", *deeds), stdout=asyncio.subprocess.PIPE
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), 300)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    assert process.returncode == 0
    lines = [line for line in output.decode().splitlines() if line.split(" ")[0] in deeds]
    return dict(line.split(" ", 1) for line in lines)


async def test_stock_sessions_run_on_a_leased_device(tmp_path: Path) -> None:
    """Sessions upload, load, run, time and read back; MetaSchedule's runner measures. Nothing is left afterwards."""
    async with serve_site(tmp_path) as site:
        found = await run_client(site, "sessions", "runner")

        assert found == {"sessions": "10", "runner": "3"}
        await eventually(lambda: not site.tracker.tracker.state.leases)
        assert not site.agent.worker_pids


async def test_stock_clients_print_the_reason_of_a_failure(tmp_path: Path) -> None:
    """A session past its time limit, a library that crashes, and a key without a device; then the device works on.

    Very much output is no failure.
    """
    async with serve_site(tmp_path) as site:
        found = await run_client(site, "timeout", "crash", "noise", "absent", "sessions")

        assert found["timeout"].startswith("RPCSessionTimeoutError")
        assert "SIGSEGV" in found["crash"]
        assert found["noise"] == "no error"
        assert "no-such-board" in found["absent"]
        assert found["sessions"] == "10"


async def test_a_client_killed_in_an_endless_run_leaves_nothing_behind(tmp_path: Path) -> None:
    """Neither its lease, nor the worker that runs."""
    async with serve_site(tmp_path) as site:
        command = (sys.executable, str(CLIENT), str(site.port), "board", "endless")
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        assert await process.stdout.readline() == b"running\n"
        process.kill()
        await process.wait()

        await eventually(lambda: not site.tracker.tracker.state.leases, 60)
        await eventually(lambda: not site.agent.worker_pids)


async def test_clients_side_by_side_take_turns(tmp_path: Path) -> None:
    """Three clients share two devices."""
    async with serve_site(tmp_path, devices=2) as site:
        found = await asyncio.gather(*(run_client(site, "sessions") for _ in range(3)))

        assert found == [{"sessions": "10"}] * 3


async def test_many_sessions_leave_nothing_behind(tmp_path: Path) -> None:
    """200 in a row, then eight at once on four devices."""
    async with serve_site(tmp_path, devices=4) as site:
        files = psutil.Process().num_fds()
        found = await run_client(site, "row", "crowd")

        assert found == {"row": "200", "crowd": "24"}
        await eventually(lambda: not site.tracker.tracker.state.leases)
        await eventually(lambda: not site.agent.worker_pids)
        await eventually(lambda: psutil.Process().num_fds() <= files + 8)
