"""A device that agent.yaml asks for and that is not here: shown as faulted with the reason, beside those that are.

A kernel module that did not load, or a vendor's driver that is being replaced, must not take a machine's other devices
away. What is asked for is looked for again when the agent starts again.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from itertools import chain, count
from typing import Any

from device_agents.driver import Driver, Health, WorkerSpec
from device_agents.host import read_host
from fleet.errors import DeviceFaulted
from fleet.v1 import device_pb2


class MissingDevice(Driver):
    """Stands for one entry of agent.yaml, or for one device of it, until the agent is started again."""

    def __init__(self, device_id: str, kind: str, reason: str) -> None:
        super().__init__(device_id)
        self.kind = kind
        self._reason = f"{reason} (looked for when the agent started: restart it then)"

    @classmethod
    def of_entry(cls, entry: Mapping[str, Any], reason: str, host_name: str, taken: Collection[str]) -> MissingDevice:
        """Return what stands for an entry whose devices could not even be named.

        Args:
            taken: names that it must not have.
        """
        kind = str(entry["driver"])
        base = f"{host_name}-{re.sub(r'[^A-Za-z0-9._-]', '-', kind)}"
        names = chain([base], (f"{base}-{number}" for number in count(1)))
        return cls(str(entry.get("name") or next(name for name in names if name not in taken)), kind, reason)

    @classmethod
    def from_config(cls, values: Mapping[str, Any], *, where: str, host_name: str) -> list[Any]:
        """Nobody asks for a device that is missing."""
        return []

    def _probe(self) -> Health:
        return Health(is_healthy=False, reason=self._reason)

    def _inventory(self) -> device_pb2.Inventory:
        host = read_host()
        return device_pb2.Inventory(
            kind=self.kind,
            labels={"arch": host.arch, "missing": "true"},
            target_json='{"kind": "llvm"}',
            device_model="not found",
            core_count=1,
            host_fingerprint=host.fingerprint,
        )

    def _worker_spec(self) -> WorkerSpec:
        raise DeviceFaulted(f"{self.name}: {self._reason}")

    def _telemetry(self) -> device_pb2.Telemetry:
        return device_pb2.Telemetry()
