"""Files of a refresh in idle time: the use of each device, and the end of each pass, kept across restarts."""

from __future__ import annotations

import json
import logging
import math
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from fleet.base.config import state_dir
from fleet.base.digests import digest_of
from fleet.base.private_files import write_private
from fleet.base.version import package_version
from fleet.domain.scope import RecordScope
from fleet.optimizer.refreshing.idle import DayUse

logger = logging.getLogger(__name__)

K = TypeVar("K")


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleFiles:
    """Files of one fleet, in a folder of this account on this machine."""

    folder: Path

    @classmethod
    def of_fleet(cls, fleet_id: str) -> IdleFiles:
        """Return the files of a fleet."""
        return cls(folder=state_dir() / "idle-refresh" / platform.node() / (quote(fleet_id, safe="") or "fleet"))

    def use(self, device_name: str) -> DayUse:
        """Return the use of a device."""
        return DayUse(_read(self._use_path(device_name), int))

    def write_use(self, device_name: str, use: DayUse) -> None:
        """Store the use of a device. Only the holder of its lease may do so.

        Raises:
            OSError: the disk is full, or the folder cannot be written.
        """
        _write(self._use_path(device_name), use.sec_by_minute)

    def passes(self) -> Mapping[str, float]:
        """Return the end of the last pass by key of its scope [s since 1970]."""
        return _read(self._passes_path, str)

    def note_pass(self, key: str, ended_at_sec: float) -> None:
        """Store the end of a pass.

        Raises:
            OSError: the disk is full, or the folder cannot be written.
        """
        _write(self._passes_path, {**self.passes(), key: ended_at_sec})

    @property
    def _passes_path(self) -> Path:
        return self.folder / "passes.json"

    def _use_path(self, device_name: str) -> Path:
        return self.folder / f"{quote(device_name, safe='')}.json"


def pass_key(scope: RecordScope) -> str:
    """Return the key of a pass: another TVM, or another version of this package, begins a new one."""
    return digest_of(json.dumps([scope.target_json, scope.device_model, scope.tvm_version, package_version()]).encode())


def _read(path: Path, key: Callable[[str], K]) -> dict[K, float]:
    """Return a mapping to finite numbers of at least zero; of a missing or damaged file nothing."""
    try:
        found = {key(name): float(value) for name, value in json.loads(path.read_bytes()).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        logger.warning("file of the idle refresh is damaged", extra={"file": str(path), "error": str(error)})
        return {}
    return {name: value for name, value in found.items() if 0 <= value < math.inf}


def _write(path: Path, values: Mapping[K, float]) -> None:
    write_private(path, json.dumps({str(name): value for name, value in values.items()}).encode())
