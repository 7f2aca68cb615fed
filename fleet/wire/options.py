"""Sizes of messages, and the options of gRPC's channels and servers.

Compressed messages are not taken: 255 kB of gzip became 250 MiB before anybody looked at them. What is compressed for
a reason, as artifacts are, our own code inflates by bounded pieces.
"""

from __future__ import annotations

from collections.abc import Mapping

from fleet.base.open_files import file_limit

MAX_MESSAGE_BYTES = 256 * 1024 * 1024
"""Bound on one message: the arrays of a Call together. Larger than 4 MiB, it travels in pieces."""

MAX_WHOLE_BYTES = 4 * 1024 * 1024
"""Bound on one message with arrays that does not travel in pieces, as clients of earlier releases send them."""

MAX_REQUEST_BYTES = 1024 * 1024
"""Bound on one request without arrays or artifacts."""

MAX_PIECE_MESSAGE_BYTES = MAX_REQUEST_BYTES + 64 * 1024
"""Bound on one message of a stream of pieces: 1 MiB of an artifact or array, and the names beside it."""

_MAX_BYTES: Mapping[str, int] = {
    "fleet.v1.SessionService.PutArtifact": MAX_PIECE_MESSAGE_BYTES,
    "fleet.v1.SessionService.Call": MAX_WHOLE_BYTES,
    "fleet.v1.SessionService.CallInPieces": MAX_PIECE_MESSAGE_BYTES,
    "fleet.v1.SessionService.Measure": MAX_WHOLE_BYTES,
    "fleet.v1.SessionService.Prove": MAX_WHOLE_BYTES,
    "fleet.v1.SessionService.ProveInPieces": MAX_PIECE_MESSAGE_BYTES,
}
"""Of the requests that carry arrays or artifacts, by the rpc's full name."""

_MAX_STREAMS = 1_000
"""Calls of one connection that may be under way at once."""

HANDSHAKE_SEC = 5.0
"""Longest handshake of a connection: TLS is three round trips."""

_IDLE_SEC = 600.0
"""A connection without a call ends after this time; clients connect again by themselves."""

RESERVED_FILES = 256
"""Files kept back from connections: the journal, the log, child processes."""

_BOTH: Mapping[str, int] = {
    "grpc.max_send_message_length": MAX_MESSAGE_BYTES,
    "grpc.keepalive_time_ms": 10_000,
    "grpc.keepalive_timeout_ms": 5_000,
    "grpc.keepalive_permit_without_calls": 1,
    "grpc.http2.max_pings_without_data": 0,
    # A compressed message stays as it came, and cannot be read. The option that refuses it with a status of its own
    # (grpc.compression_enabled_algorithms_bitset) writes a line to stderr for each, of strangers, too.
    "grpc.per_message_decompression": 0,
}

CHANNEL_OPTIONS: list[tuple[str, int]] = [
    *_BOTH.items(),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # Despite its name, how long one try to connect may take: slow boards take a while for TLS.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # A proxy from the environment has no business between a board and its tracker.
    ("grpc.enable_http_proxy", 0),
    # In tests one process talks to many trackers, so a channel must not borrow another's connection.
    ("grpc.use_local_subchannel_pool", 1),
]


AGENT_OPTIONS: Mapping[str, int] = {
    "grpc.max_receive_message_length": MAX_WHOLE_BYTES,
    "grpc.max_concurrent_streams": 100,
    # The window of a stream that nobody reads from: by default it grows to megabytes on a fast link.
    "grpc.http2.bdp_probe": 0,
    "grpc.http2.lookahead_bytes": 256 * 1024,
}
"""Bounds on gRPC's own buffers of unread requests in an agent."""


def server_options(max_request_bytes: int) -> list[tuple[str, int]]:
    """Return the options of a server that takes no larger message than this."""
    return [
        *_BOTH.items(),
        ("grpc.max_receive_message_length", max_request_bytes),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.max_concurrent_streams", _MAX_STREAMS),
        ("grpc.server_handshake_timeout_ms", round(HANDSHAKE_SEC * 1e3)),
        ("grpc.max_connection_idle_ms", round(_IDLE_SEC * 1e3)),
        ("grpc.max_allowed_incoming_connections", max_connections()),
        # Two servers on one port would share its connections at random: a port in use must be an error.
        ("grpc.so_reuseport", 0),
    ]


def max_connections() -> int:
    """Return how many connections a server of this process takes."""
    return max(file_limit() - RESERVED_FILES, RESERVED_FILES)


def max_bytes_of(rpc: str) -> int:
    """Return the bound on one message of a request, by the rpc's full name."""
    return _MAX_BYTES.get(rpc, MAX_REQUEST_BYTES)


def is_large(rpc: str) -> bool:
    """Tell whether an rpc's requests carry arrays or artifacts, which may take their time to come."""
    return rpc in _MAX_BYTES
