"""A systemd unit that keeps a service running for its user. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def unit_text(description: str, command: Sequence[str]) -> str:
    """Return a unit for `systemctl --user` that runs a command and restarts it whenever it ends.

    Args:
        description: one line, of ours.
        command: absolute path of the program and its arguments.

    Raises:
        ValueError: an argument has a line end, which no unit can hold.
    """
    return f"""\
[Unit]
Description={description}

[Service]
ExecStart={" ".join(map(_quoted, command))}
Restart=always
# Clients and agents come back by themselves, and leases outlive a short absence.
RestartSec=1
TimeoutStopSec=20
# One for each connection.
LimitNOFILE=65536
UMask=0077
NoNewPrivileges=yes

[Install]
WantedBy=default.target
"""


def _quoted(word: str) -> str:
    """Quote for systemd: backslashes and quotes escaped, % and $ doubled."""
    if "\n" in word or "\r" in word:
        raise ValueError(f"{word!r} has a line end")
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if escaped != word or not word or any(c in word for c in " ;'") else word
