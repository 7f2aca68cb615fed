"""Classes of requests for leases."""

from __future__ import annotations

import enum


class LeaseClass(enum.StrEnum):
    """Urgency of a request, highest first: a class goes before all lower ones."""

    INTERACTIVE = "interactive"
    """A person waits at a prompt. Short, and few at once."""
    NORMAL = "normal"
    """Scripts and CI."""
    BATCH = "batch"
    """Long work without anybody waiting: tuning."""

    @property
    def rank(self) -> int:
        """Number of higher classes."""
        return _RANKS[self]


_RANKS = {lease_class: rank for rank, lease_class in enumerate(LeaseClass)}
