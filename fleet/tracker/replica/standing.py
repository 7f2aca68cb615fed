"""Part of a tracker in its fleet, kept in its state directory: it grants, it follows, or it was superseded.

A directory without the file is that of a tracker that grants and never had a standby.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from fleet.base.network import is_address
from fleet.base.plain import from_plain, to_plain
from fleet.base.private_files import write_private
from fleet.domain.terms import MOST_TERM
from fleet.errors import ConfigError, DiskFull, InvalidRequest
from fleet.tracker.backup import STANDING


class Duty(StrEnum):
    """Duty of a tracker."""

    GRANTS = "grants"
    FOLLOWS = "follows"
    """Stands by. Nothing is granted on its journal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Part of one tracker."""

    duty: Duty = Duty.GRANTS
    term: int = 0
    """Number of the takeover since which it grants, or the largest known one; 0 before the first."""
    other: str = ""
    """Address of the fleet's other tracker; empty: none is known."""
    is_whole: bool = True
    """False while a snapshot is being put in place."""


def read_standing(directory: Path) -> Standing:
    """Return the part of the tracker in a state directory.

    Raises:
        ConfigError: the file is damaged.
    """
    path = directory / STANDING
    try:
        found = from_plain(Standing, json.loads(path.read_text()))
    except FileNotFoundError:
        return Standing()
    except (OSError, ValueError, RecursionError, InvalidRequest) as error:
        raise ConfigError(f"cannot read {path}: {error}; restore the state directory from a backup") from error
    if not 0 <= found.term < MOST_TERM or (found.other and not is_address(found.other)):
        raise ConfigError(f"{path} has values that no tracker writes; restore the state directory from a backup")
    return found


def write_standing(directory: Path, standing: Standing) -> None:
    """Write it durably.

    Raises:
        DiskFull: it cannot be written.
    """
    try:
        write_private(directory / STANDING, json.dumps(to_plain(standing)).encode())
    except OSError as error:
        raise DiskFull(f"cannot write {directory / STANDING}: {error.strerror}; free some space there") from error
