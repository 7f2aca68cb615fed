"""Separates the effects that wait for the standby, grants and later news of the same leases, from all others. Pure.

A welcome with leases counts as a grant. Until it is sent, its client receives nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fleet.tracker.core import events as ev


class Untold:
    """Effects that wait, by the leases and clients that they concern."""

    def __init__(self) -> None:
        self._waiting: dict[str, int] = {}
        """Number of waiting effects by name of lease or id of client."""

    def split(self, effects: Iterable[ev.Effect]) -> tuple[list[ev.Effect], list[ev.Effect]]:
        """Return the effects that can go at once, and the held ones, each list in order."""
        free: list[ev.Effect] = []
        held: list[ev.Effect] = []
        for effect in effects:
            if self._is_held(effect):
                held.append(effect)
                for name in _blocked_by(effect):
                    self._waiting[name] = self._waiting.get(name, 0) + 1
            else:
                free.append(effect)
        return free, held

    def forget(self, effects: Iterable[ev.Effect]) -> None:
        """Note that effects have gone that `split` held."""
        for effect in effects:
            for name in _blocked_by(effect):
                if (count := self._waiting.pop(name) - 1) > 0:
                    self._waiting[name] = count

    def _is_held(self, effect: ev.Effect) -> bool:
        if isinstance(effect, ev.Granted) or (isinstance(effect, ev.Welcomed) and effect.leases):
            return True
        if not self._waiting or not isinstance(effect, ev.ClientEffect):
            return False
        return effect.client_id in self._waiting or any(name in self._waiting for name in _leases_of(effect))


def _blocked_by(effect: ev.Effect) -> Sequence[str]:
    """Return the lease or client that other effects have to wait for after this one."""
    return (effect.client_id,) if isinstance(effect, ev.Welcomed) else _leases_of(effect)


def _leases_of(effect: ev.Effect) -> Sequence[str]:
    match effect:
        case ev.Granted(lease=lease) | ev.Renewed(lease=lease):
            return (lease.name,)
        case ev.LeaseEnded(lease_name=name) | ev.Outbid(lease_name=name):
            return (name,)
        case ev.YieldWanted(wanted=wanted):
            return (wanted.lease_name,)
    return ()
