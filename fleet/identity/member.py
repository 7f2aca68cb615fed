"""A member of a fleet, as stored by its tracker."""

from __future__ import annotations

from dataclasses import dataclass

from fleet.identity.roles import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One key. Times are the tracker's [s since 1970]."""

    key_id: str
    name: str
    """Readable name; not unique."""
    role: Role
    joined_at_sec: float
    """Time at which the tracker first saw the key."""
    device_names: tuple[str, ...] = ()
    """Names of the devices that are bound to the key."""
    revoked_at_sec: float | None = None
    """None: it is a member's."""
    revoked_by: str = ""
    reason: str = ""
    account: str = ""
    """Account that its requests count for; empty: its key."""
    may_ask_for_others: bool = False
    """It may acquire devices for other accounts."""
