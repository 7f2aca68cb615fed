"""Size limits of messages, and options of gRPC channels and servers.

Compressed messages are refused: 255 kB of gzip expanded to 250 MiB before any check. Artifacts, which are compressed on
purpose, are inflated by our own code in bounded chunks.
"""

from __future__ import annotations

from collections.abc import Mapping

from fleet.base.open_files import file_limit

MAX_MESSAGE_BYTES = 256 * 1024 * 1024
"""Limit of one message: all arrays of a Call together. Above 4 MiB it is sent in chunks."""

MAX_WHOLE_BYTES = 4 * 1024 * 1024
"""Limit of one message with arrays that is not sent in chunks, as by clients of earlier releases."""

MAX_REQUEST_BYTES = 1024 * 1024
"""Limit of one request without arrays or artifacts."""

MAX_CHUNK_MESSAGE_BYTES = MAX_REQUEST_BYTES + 64 * 1024
"""Limit of one message in a stream of chunks: 1 MiB of an artifact or array, and the other fields."""

TUNNEL_BYTES = 128 * 1024
"""Limit of the content of one message of a tunnel."""

_MAX_BYTES: Mapping[str, int] = {
    "fleet.v1.SessionService.PutArtifact": MAX_CHUNK_MESSAGE_BYTES,
    "fleet.v1.SessionService.Call": MAX_WHOLE_BYTES,
    "fleet.v1.SessionService.CallInPieces": MAX_CHUNK_MESSAGE_BYTES,
    "fleet.v1.SessionService.Measure": MAX_WHOLE_BYTES,
    "fleet.v1.SessionService.Prove": MAX_WHOLE_BYTES,
    "fleet.v1.SessionService.ProveInPieces": MAX_CHUNK_MESSAGE_BYTES,
}
"""Limits of requests with arrays or artifacts, by the rpc's full name."""

_MAX_STREAMS = 1_000
"""Maximum number of concurrent calls per connection."""

HANDSHAKE_SEC = 5.0
"""Time limit of a connection's handshake: TLS takes three round trips."""

_IDLE_SEC = 600.0
"""Time limit of a connection without calls. Clients reconnect by themselves."""

RESERVED_FILES = 256
"""File descriptors reserved for other uses than connections: the journal, the log, child processes."""

_BOTH: Mapping[str, int] = {
    "grpc.max_send_message_length": MAX_MESSAGE_BYTES,
    "grpc.keepalive_time_ms": 10_000,
    "grpc.keepalive_timeout_ms": 5_000,
    "grpc.keepalive_permit_without_calls": 1,
    "grpc.http2.max_pings_without_data": 0,
    # A compressed message stays compressed, and parsing it fails. The option that refuses it with a status of its own
    # (grpc.compression_enabled_algorithms_bitset) would log each such message to stderr, even from strangers.
    "grpc.per_message_decompression": 0,
}

CHANNEL_OPTIONS: list[tuple[str, int]] = [
    *_BOTH.items(),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # Despite its name, the time limit of one connection attempt: TLS is slow on small boards.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Ignore proxies of the environment between a board and its tracker.
    ("grpc.enable_http_proxy", 0),
    # In tests one process talks to many trackers, so a channel must not borrow another's connection.
    ("grpc.use_local_subchannel_pool", 1),
]


AGENT_OPTIONS: Mapping[str, int] = {
    "grpc.max_receive_message_length": MAX_WHOLE_BYTES,
    "grpc.max_concurrent_streams": 100,
    # Limit the flow control window of an unread stream, which by default grows to megabytes on a fast link.
    "grpc.http2.bdp_probe": 0,
    "grpc.http2.lookahead_bytes": 256 * 1024,
}
"""Limits of gRPC's buffers for unread requests in an agent."""


def server_options(max_request_bytes: int) -> list[tuple[str, int]]:
    """Return the options of a server with this limit of a message's size."""
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
    """Return the maximum number of connections to a server of this process."""
    return max(file_limit() - RESERVED_FILES, RESERVED_FILES)


def max_bytes_of(rpc: str) -> int:
    """Return the size limit of one request message, by the rpc's full name."""
    return _MAX_BYTES.get(rpc, MAX_REQUEST_BYTES)


def is_large(rpc: str) -> bool:
    """Tell whether an rpc's requests carry arrays or artifacts, which may arrive slowly."""
    return rpc in _MAX_BYTES
