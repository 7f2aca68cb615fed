"""A tracker's log is its own, whatever bytes come to its port."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import struct
import sys
from pathlib import Path

import grpc.aio
import pytest

from fleet.testing import eventually

pytestmark = pytest.mark.slow
FORGED = '\n{"level": "ERROR", "event": "forged"}\n'
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, payload: bytes) -> bytes:
    """Return one HTTP/2 frame of stream 0."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, 0]) + struct.pack(">I", 0) + payload


def goaway(debug: str) -> bytes:
    return _PREFACE + frame(4, b"") + frame(7, struct.pack(">II", 0, 11) + debug.encode())


def say(port: int, content: bytes) -> None:
    """Send bytes and wait until the other side has closed or answered."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(content)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            pass


async def test_no_peer_writes_a_line_of_the_log(tmp_path: Path) -> None:
    """Texts within HTTP/2, torn frames and invalid messages leave few lines in the log, all in its JSON form and
    without a traceback.
    """
    command = [
        "-m",
        "fleet.tracker",
        "--port",
        "0",
        "--state-dir",
        str(tmp_path / "state"),
        "--no-discovery",
        "--plain",
    ]
    log_path = tmp_path / "log"
    with log_path.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, "--plain", stdout=asyncio.subprocess.PIPE, stderr=log
        )
        try:
            assert process.stdout
            address = (await process.stdout.readline()).decode().split()[-1]
            port = int(address.rpartition(":")[2])
            for content in (goaway(FORGED), goaway("x" * 16_000), _PREFACE + b"\xff" * 500, FORGED.encode() * 20):
                await asyncio.to_thread(say, port, content)
            async with grpc.aio.insecure_channel(address) as channel:
                call = channel.unary_unary("/fleet.v1.LeaseService/RevokeLease")
                for _ in range(100):
                    with pytest.raises(grpc.aio.AioRpcError):
                        await call(b"\xff\xff\xff")
        finally:
            process.send_signal(signal.SIGTERM)
            await eventually(lambda: process.returncode is not None, 30.0)
    lines = [json.loads(line) for line in log_path.read_text().splitlines()]
    assert [line["event"] for line in lines if line["level"] in ("ERROR", "CRITICAL") or "traceback" in line] == []
    assert len(lines) < 40
