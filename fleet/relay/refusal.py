"""Reasons for closing a connection before it leads anywhere. They label a metric."""

from __future__ import annotations

import enum


class Refusal(enum.StrEnum):
    """Kind of refusal."""

    MALFORMED = "malformed"
    """The first bytes are neither a ClientHello for a known kind of name nor an agent's preface, or came too late."""

    UNKNOWN_AGENT = "unknown-agent"
    SILENT_AGENT = "silent-agent"
    """The agent did not connect in time."""

    BUSY_AGENT = "busy-agent"
    """The agent's clients have all of its connections."""

    UNKNOWN_SECRET = "unknown-secret"  # noqa: S105 - the name of a reason
    """No client waits for this connection of an agent."""

    FULL = "full"
    """The source address, or all together, have too many connections."""


class Refused(Exception):
    """Closes a connection."""

    def __init__(self, reason: Refusal) -> None:
        super().__init__(reason.value)
        self.reason = reason
