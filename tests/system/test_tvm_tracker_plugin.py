"""Test files of Apache TVM's kind, run by pytest with a fleet in place of TVM's tracker."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
TESTS = """
import contextlib
import socket
import struct
import time

import pytest
import tvm
import tvm.testing
from tvm import rpc
from tvm.rpc.proxy import Proxy
from tvm.rpc.tracker import Tracker

needs_rpc = pytest.mark.skipif(not tvm.testing.env.build_flag_enabled("USE_RPC"), reason="need rpc")


@pytest.fixture(scope="module")
def tracker():
    made = Tracker(port=9000, port_end=10000)
    yield made
    made.terminate()


@contextlib.contextmanager
def serving(kind, *args, **keywords):
    made = kind(*args, **keywords)
    yield made
    made.terminate()


def until(condition):
    for _ in range(300):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("was not true in time")


@needs_rpc
def test_servers_are_listed_while_they_live(tracker):
    key = "127.0.0.1:5555"
    client = rpc.connect_tracker("127.0.0.1", tracker.port)

    def is_listed(free, *servers):
        found = client.summary()
        rows = [tuple(one["addr"]) for one in found["server_info"] if one["key"] == f"server:{key}"]
        return found["queue_info"].get(key, {}).get("free") == free and sorted(rows) == sorted(servers)

    at = {"port": 9000, "port_end": 10000, "key": key, "tracker_addr": ("127.0.0.1", tracker.port)}
    with serving(rpc.Server, "127.0.0.1", **at) as first:
        here = ("127.0.0.1", first.port)
        until(lambda: is_listed(1, here))
        with serving(rpc.Server, "127.0.0.1", custom_addr="no_such_host", **at) as second:
            until(lambda: is_listed(2, here, ("no_such_host", second.port)))
            session = client.request(key)
            assert session.get_function("testing.echo")(7) == 7
            assert is_listed(1, here, ("no_such_host", second.port))
            del session
            until(lambda: is_listed(2, here, ("no_such_host", second.port)))
        until(lambda: is_listed(1, here))
    until(lambda: is_listed(0))


@needs_rpc
def test_two_servers_behind_a_proxy_and_a_time_limit(tracker):
    address = ("127.0.0.1", tracker.port)
    with serving(Proxy, "127.0.0.1", port=8888, port_end=8988, tracker_addr=address) as proxy:
        behind = {"host": proxy.host, "port": proxy.port, "key": "phone", "is_proxy": True}
        with serving(rpc.Server, **behind), serving(rpc.Server, **behind):
            client = rpc.connect_tracker(*address)
            limited, other = client.request("phone", session_timeout=1), client.request("phone")
            assert other.get_function("testing.echo")("x") == "x"
            with pytest.raises(tvm.error.RPCSessionTimeoutError):
                late = limited.get_function("testing.echo")
                time.sleep(2)
                late(10)


def test_a_huge_message_ends_its_connection(tracker):
    with socket.create_connection(("127.0.0.1", tracker.port), 10) as peer:
        peer.sendall(struct.pack("<i", 0x2F271))
        assert peer.recv(4, socket.MSG_WAITALL) == struct.pack("<i", 0x2F271)
        peer.sendall(struct.pack("<i", 2**31 - 1))
        assert peer.recv(4096) == b""
"""


def test_tvms_tests_run_on_a_fleet(tmp_path: Path) -> None:
    """None is skipped, although TVM's wheel does not list RPC among its parts."""
    path = tmp_path / "test_rpc.py"
    path.write_text(TESTS)
    command = (sys.executable, "-m", "pytest", "-p", "fleet.testing.tvm_tracker", "-p", "no:cacheprovider", str(path))
    environment = {**os.environ, "TVM_USE_RUNTIME_LIB": "1"}  # starts faster
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=250, env=environment)

    assert re.search(r"\b3 passed\b(?!.*(skipped|failed))", ended.stdout), ended.stdout + ended.stderr
