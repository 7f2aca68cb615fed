"""Two network namespaces joined by a link with a chosen round trip, in user space: kernels may lack netem.

    with DelayLink(round_trip_ms=20) as link:
        subprocess.run(link.far.command(["some-server", "--host", link.far.address]))
        subprocess.run(link.near.command(["some-client", link.far.address]))

Each end is a tun device; a thread of this process carries packets from one to the other and holds each for half the
round trip. Needs root, `ip`, and /dev/net/tun. `python -m benchmarks.delay_link` shows the round trip that it makes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from benchmarks.common import say

_TUN_DEVICE = "/dev/net/tun"
_TUNSETIFF = 0x400454CA
_IFF_TUN_WITHOUT_HEADERS = 0x0001 | 0x1000

_PACKET_BYTES = 65536
_IDLE_SEC = 0.1
"""Pause of the carrier without packets; bounds its reaction to a stop."""


class LinkUnavailable(Exception):
    """This machine or user cannot make the link; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """One side of the link."""

    namespace: str
    address: str

    @property
    def interface(self) -> str:
        """Name of its device, at most 15 characters."""
        return self.namespace.replace("fleet-", "fl-")[:15]

    def command(self, command: Sequence[str]) -> list[str]:
        """Return the command that runs `command` on this side."""
        return ["ip", "netns", "exec", self.namespace, *command]


class DelayLink:
    """The link, for the time of the `with` block."""

    def __init__(self, *, round_trip_ms: float) -> None:
        self.near = End(namespace=f"fleet-near-{os.getpid()}", address="10.77.0.1")
        self.far = End(namespace=f"fleet-far-{os.getpid()}", address="10.77.0.2")
        self._delay_sec = round_trip_ms / 2e3
        self._is_over = threading.Event()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> DelayLink:
        """Make it.

        Raises:
            LinkUnavailable: not possible here.
        """
        try:
            near_tun = self._open_end(self.near, self.far)
            far_tun = self._open_end(self.far, self.near)
        except OSError as error:
            self._stack.close()
            raise LinkUnavailable(f"no link between network namespaces here: {error}") from error
        except subprocess.CalledProcessError as error:
            self._stack.close()
            reason = error.stderr.decode(errors="replace").strip()
            raise LinkUnavailable(f"no link between network namespaces here: {reason}") from error
        carrier = threading.Thread(target=self._carry, args=(near_tun, far_tun), name="delay link", daemon=True)
        carrier.start()
        self._stack.callback(carrier.join)
        self._stack.callback(self._is_over.set)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def _open_end(self, end: End, other: End) -> int:
        """Make one namespace with its tun device, return the device's descriptor."""
        _ip("netns", "add", end.namespace)
        self._stack.callback(subprocess.run, ["ip", "netns", "del", end.namespace], check=False)
        tun = os.open(_TUN_DEVICE, os.O_RDWR | os.O_NONBLOCK)
        self._stack.callback(os.close, tun)
        name = end.interface
        fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH14x", name.encode(), _IFF_TUN_WITHOUT_HEADERS))
        _ip("link", "set", name, "netns", end.namespace)
        _ip("-n", end.namespace, "addr", "add", end.address, "peer", other.address, "dev", name)
        _ip("-n", end.namespace, "link", "set", name, "up")
        _ip("-n", end.namespace, "link", "set", "lo", "up")
        return tun

    def _carry(self, near_tun: int, far_tun: int) -> None:
        """Move packets both ways until it is over. All wait equally long, so each way is a plain queue."""
        under_way: dict[int, deque[tuple[float, bytes]]] = {near_tun: deque(), far_tun: deque()}
        opposite = {near_tun: far_tun, far_tun: near_tun}
        while not self._is_over.is_set():
            now = time.monotonic()
            due_secs = [packets[0][0] - now for packets in under_way.values() if packets]
            # select, because poll and epoll round to milliseconds.
            readable, _, _ = select.select(list(opposite), [], [], max(0.0, min([_IDLE_SEC, *due_secs])))
            for tun in readable:
                under_way[opposite[tun]].extend(_read_all(tun, self._delay_sec))
            for tun, packets in under_way.items():
                _write_due(tun, packets)


def _read_all(tun: int, delay_sec: float) -> list[tuple[float, bytes]]:
    """Return all packets that a device has for us, each with the time at which it is due at the other end."""
    packets = []
    with contextlib.suppress(BlockingIOError):
        while True:
            packet = os.read(tun, _PACKET_BYTES)
            packets.append((time.monotonic() + delay_sec, packet))
    return packets


def _write_due(tun: int, packets: deque[tuple[float, bytes]]) -> None:
    while packets and packets[0][0] <= time.monotonic():
        _, packet = packets.popleft()
        with contextlib.suppress(OSError):  # a full queue drops the packet, as a wire would
            os.write(tun, packet)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


_ECHO = """
import socket, sys
with socket.create_server((sys.argv[1], 7777)) as server:
    print("ready", flush=True)
    connection, _ = server.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while data := connection.recv(4096):
        connection.sendall(data)
"""

_PING = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 7777)) as connection:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(int(sys.argv[2])):
        start = time.perf_counter()
        connection.sendall(b"x")
        connection.recv(1)
        print(time.perf_counter() - start)
"""


def measure_round_trips_ms(link: DelayLink, count: int = 20) -> list[float]:
    """Return the round trips of single bytes over an open TCP connection [ms]."""
    server = link.far.command([sys.executable, "-c", _ECHO, link.far.address])
    client = link.near.command([sys.executable, "-c", _PING, link.far.address, str(count)])
    with subprocess.Popen(server, stdout=subprocess.PIPE) as echo:
        try:
            if echo.stdout is not None:
                echo.stdout.readline()
            output = subprocess.run(client, check=True, capture_output=True, text=True, timeout=60).stdout
        finally:
            echo.kill()
    return [float(line) * 1e3 for line in output.split()]


def main() -> int:
    """Measure the round trip of a link of 20 ms."""
    try:
        with DelayLink(round_trip_ms=20) as link:
            round_trips_ms = measure_round_trips_ms(link)
    except LinkUnavailable as error:
        say(str(error))
        return 1
    print(f"wanted 20 ms, median {statistics.median(round_trips_ms):.2f} ms, longest {max(round_trips_ms):.2f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
