"""Messages of TVM RPC servers that register with an agent."""

from __future__ import annotations

from collections.abc import Iterator

from device_agents.drivers.tvm_registered.offers import MOST_OFFERS, Offers, parse_put
from fleet.wire.tvm_frames import INT, BrokenMessage, Code, format_frame, frame_length, parse_message
from tests.fuzz.target import Target, no_loop

_MOST_BYTES = 8192
_MOST_SERVERS = {"rpi4": 4, "pixel": 1}
_SEEDS = [
    format_frame([5, {"key": "server:rpi4", "addr": [None, "9090"]}]) + format_frame([3, "rpi4", ["9090", "rpi4:0.1"]]),
    format_frame([3, "rpi4", [9090, "rpi4:0.1"], None]) + format_frame([3, "rpi4", [9090, "rpi4:0.2"], "10.1.0.7"]),
    format_frame([3, "pixel", [5001, "pixel:0.3"], None]) + format_frame([7]) + format_frame([2, "stop"]),
]


def _register(content: bytes) -> None:
    offers = Offers(_MOST_SERVERS, lambda key: key if key in _MOST_SERVERS else None)
    try:
        for frame in _frames(content):
            message = parse_message(frame)
            if message.code is Code.PUT:
                server = offers.add(1, parse_put(message.arguments), "10.1.0.7")
                assert server is None or offers.has(server)
            pending = offers.pending(1)
            assert len(pending) <= MOST_OFFERS
            assert all(key.encode() in format_frame(pending) for key in pending)
    except BrokenMessage:
        pass
    for server in offers.drop(1):
        assert not offers.has(server)


def _frames(content: bytes) -> Iterator[bytes]:
    while len(content) >= INT.size:
        length = frame_length(content[: INT.size], _MOST_BYTES)
        yield content[INT.size : INT.size + length]
        content = content[INT.size + length :]


REGISTRATIONS = [
    Target(
        name="tvm_registration",
        run=no_loop(_register),
        seeds=lambda: _SEEDS,
        words=(b'"rpi4"', b"[3, ", b"null", b'"9090"', b"[7]", b"-1", b"\\u0000"),
    )
]
