"""Carries the bytes of a stock client's session to the server of a device and back. Blocking."""

from __future__ import annotations

import contextlib
import socket
import threading

_CHUNK_BYTES = 256 * 1024


def relay(client: socket.socket, server: socket.socket) -> None:
    """Copy in both directions until either side ends; then end both."""
    threading.Thread(target=_copy, args=(client, server), daemon=True).start()
    _copy(server, client)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while content := source.recv(_CHUNK_BYTES):
            target.sendall(content)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
