"""A preloaded library leads connections to other ports."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

_CONNECT = """
import socket, sys
socket.create_connection(("127.0.0.1", int(sys.argv[1]))).close()
"""
_CALL = """
import grpc, sys
channel = grpc.insecure_channel(f"127.0.0.1:{sys.argv[1]}")
channel.subscribe(lambda state: None, try_to_connect=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("ways") / "ways.so"
    source = Path(__file__).with_name("ways.c")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", source, "-o", made], check=True)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("program", [_CONNECT, _CALL])
def test_connections_to_a_port_go_to_another(shim: Path, program: str) -> None:
    """Those of Python's sockets and gRPC's, which use IPv6 sockets for IPv4 addresses."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and does not listen
        named, port = unused.getsockname()[1], server.getsockname()[1]
        ways = f"1:2 {named}:{port}"
        environment = {**os.environ, "LD_PRELOAD": str(shim), "CHAOS_WAYS": ways}
        words = [sys.executable, "-c", program, str(named)]
        with subprocess.Popen(words, env=environment, stdin=subprocess.PIPE) as process:
            server.settimeout(60.0)
            connection, _ = server.accept()
            connection.close()
            process.communicate()
