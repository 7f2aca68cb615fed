"""Observers of the tracker: modules that follow changes, effects and telemetry without deciding anything.

The engine calls them in order, on its event loop, between two messages. An observer that raises is logged and costs
neither the engine nor the others their turn.

A package brings observers of its own by entry points of the group "fleet.observers", each the name of a class:

    [project.entry-points."fleet.observers"]
    grant_counter = "grant_counter:GrantCounter"
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol, TypeVarTuple

from fleet.errors import ConfigError
from fleet.tracker.core import events as ev
from fleet.tracker.core.records import Changes
from fleet.v1 import device_pb2

logger = logging.getLogger(__name__)

GROUP = "fleet.observers"

Values = TypeVarTuple("Values")


class Observer(Protocol):
    """Base class of observers. Each method does nothing unless it is overridden.

    Calls return within a fraction of a millisecond, never wait, and modify none of the values.
    """

    def on_change(self, changes: Changes) -> None:
        """Follow entries that one turn of the engine changed, before the turn's effects. None means gone."""
        return

    def on_effect(self, effect: ev.Effect) -> None:
        """Follow one effect, after the journal has its cause."""
        return

    def on_telemetry(self, device_name: str, telemetry: device_pb2.Telemetry, at_sec: float) -> None:
        """Follow readings of a known device. No journal keeps them."""
        return


class Observers(Observer):
    """Observers in the order in which they are called."""

    def __init__(self, members: Iterable[Observer] = ()) -> None:
        self.members = tuple(members)
        self._on_change = [each.on_change for each in self.members if type(each).on_change is not Observer.on_change]
        self._on_effect = [each.on_effect for each in self.members if type(each).on_effect is not Observer.on_effect]

    def on_change(self, changes: Changes) -> None:
        """Pass the changes on."""
        for call in self._on_change:
            _call(call, changes)

    def on_effect(self, effect: ev.Effect) -> None:
        """Pass on an effect. Inlines `_call`: a grant has 24 of these calls."""
        for call in self._on_effect:
            try:
                call(effect)
            except Exception:  # outermost edge of an observer, which must not cost the others
                logger.exception("observer failed", extra=_named(call))

    def on_telemetry(self, device_name: str, telemetry: device_pb2.Telemetry, at_sec: float) -> None:
        """Pass on readings."""
        for member in self.members:
            _call(member.on_telemetry, device_name, telemetry, at_sec)


def installed_observers() -> tuple[Observer, ...]:
    """Return a new observer of each installed class, by name.

    Raises:
        ConfigError: one cannot be loaded.
    """
    return tuple(_load(entry) for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name))


def _load(entry: EntryPoint) -> Observer:
    try:
        observer: Observer = entry.load()()
    except Exception as error:  # code of another package, which may raise anything
        raise ConfigError(
            f"the observer {entry.name!r} of the entry points {GROUP!r} cannot be loaded: "
            f"{type(error).__name__}: {error}; correct it, or uninstall its package"
        ) from error
    return observer


def _call(call: Callable[[*Values], None], *values: *Values) -> None:
    try:
        call(*values)
    except Exception:  # outermost edge of an observer, which must not cost the others
        logger.exception("observer failed", extra=_named(call))


def _named(call: Callable[..., None]) -> dict[str, object]:
    return {"call": getattr(call, "__qualname__", repr(call))}
