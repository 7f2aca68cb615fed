"""Marks devices as suspect whose reference kernel is slower than that of their siblings, and lifts that mark again."""

from __future__ import annotations

from fleet.domain.health import HealthMark, HealthState
from fleet.tracker.core import events as ev
from fleet.tracker.core.records import Changes
from fleet.tracker.core.siblings import Siblings
from fleet.tracker.engine import Engine
from fleet.tracker.observers import Observer
from fleet.v1 import device_pb2

_SLOW = "its reference kernel was 15 % slower than the median of its siblings for half an hour"
_WELL = "its reference kernel was as fast as its siblings' for half an hour"


class SpeedWatch(Observer):
    """Compares readings of the reference kernel. Simulated devices are left out: their times are made up."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._siblings = Siblings()
        self._models: dict[str, tuple[bytes, str]] = {}
        """Description and model of each device; the model of a simulated device is empty."""

    def on_change(self, changes: Changes) -> None:
        """Forget devices that are gone."""
        for name, device in changes.devices.items():
            if device is None:
                self._siblings.forget(name)
                self._models.pop(name, None)

    def on_effect(self, effect: ev.Effect) -> None:
        """Begin again after a mark, so that a resumed device has half an hour."""
        if isinstance(effect, ev.HealthMarked):
            self._siblings.restart(effect.device_name)

    def on_telemetry(self, device_name: str, telemetry: device_pb2.Telemetry, at_sec: float) -> None:
        """Compare a reading, and mark the device if need be."""
        device = self._engine.queries.device(device_name)
        if device is None or not telemetry.HasField("reference_sec"):
            return
        model = self._model(device_name, device.description)
        is_slow = self._siblings.note(device_name, model, telemetry.reference_sec, at_sec) if model else None
        if is_slow and device.mark.state is HealthState.GOOD:
            self._mark(device_name, HealthState.SUSPECT, _SLOW, at_sec)
        elif is_slow is False and device.mark.state is HealthState.SUSPECT and not device.mark.by:
            self._mark(device_name, HealthState.GOOD, _WELL, at_sec)

    def _mark(self, name: str, state: HealthState, reason: str, at_sec: float) -> None:
        self._siblings.restart(name)
        self._engine.submit(ev.MarkHealth((name,), HealthMark(state=state, at_sec=at_sec, reason=reason)))

    def _model(self, name: str, description: bytes) -> str:
        known, model = self._models.get(name, (b"", ""))
        if known != description:
            inventory = device_pb2.Inventory.FromString(description)
            model = "" if inventory.is_simulated else inventory.device_model
            self._models[name] = description, model
        return model
