"""Runs a stock TVM client as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

_CLIENT = Path(__file__).with_name("stock_client.py")
_LIMIT_SEC = 300


async def run_client(port: int, *deeds: str) -> dict[str, str]:
    """Run deeds of a stock client of a gateway at this port; return their results by name."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(_CLIENT), str(port), "board", *deeds), stdout=asyncio.subprocess.PIPE
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), _LIMIT_SEC)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    assert process.returncode == 0
    lines = [line for line in output.decode().splitlines() if line.split(" ")[0] in deeds]
    return dict(line.split(" ", 1) for line in lines)
