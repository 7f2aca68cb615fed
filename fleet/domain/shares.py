"""Result of reading a tracker's rules of shares and quotas again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Reload:
    """Rules in force after a reload, and the extent of the change."""

    path: str
    """tracker.yaml on the tracker's machine."""
    account_count: int
    """Accounts with a weight or quotas of their own."""
    changed_account_count: int
    """Accounts of the file, before or now, with another weight or other quotas than before."""
    class_count: int
    """Classes with quotas for every account."""
    half_life_sec: float
    """Half-life of used device seconds [s]."""
    starvation_sec: float
    """An account that was granted nothing suitable for this long is served next."""
    is_changed: bool
    """True if any rule differs from before."""
