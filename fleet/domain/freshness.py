"""Freshness of stored times: reasons to measure them again."""

from __future__ import annotations

import enum
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType

BEST = 3
"""Schedules of a workload that are worth measuring again: a change of the environment may change their order."""


class StaleReason(enum.StrEnum):
    """Reason to measure a record again."""

    ENVIRONMENT = "environment"
    """The devices of its model have other software or settings by now."""

    AGE = "age"
    DOUBT = "doubt"
    """All times of its candidate are disturbed."""

    CODE = "code"
    """Built today, it has other code. Judged only if it is built."""

    PROGRAM = "program"
    """Its operators are lowered to another program today. Judged only if they are lowered."""


_BY_BUILDING = (StaleReason.CODE, StaleReason.PROGRAM)

NOTHING_REBUILT: Mapping[StaleReason, Collection[int]] = MappingProxyType({})
"""Changes of code and programs when neither is judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTime:
    """A schedule's time that counts in the library."""

    measured_at: datetime
    is_disturbed: bool
    environment: str = ""
    """Digest of its environment; empty: not known."""

    device_model: str = ""
    device_sec: float | None = None
    """Device time of its measurement [s]; None: not known."""

    models_sec: float = 0.0
    """Share of all models' time [s] that it stands for; 0 unless it is the fastest of its workload."""

    record_id: int = 0
    workload_id: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Some of the kept times."""

    records: int = 0
    workloads: int = 0
    """Distinct programs; one on two device models counts twice."""

    models_sec: float = 0.0
    device_sec: float = 0.0
    """Device time that measuring them again would take, as far as it is known [s]."""

    without_device_sec: int = 0
    """Number of records with unknown device time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """Kept times by their reasons to be measured again."""

    all: Part
    stale: Part
    """Those with any reason."""

    by_reason: Mapping[StaleReason, Part]
    unknown_environments: int
    """Number of records of which the environment is not known, so that it is not judged."""


def stale_reasons(
    time: KeptTime,
    environments: Collection[str],
    *,
    now: datetime,
    max_age: timedelta,
    changed: Mapping[StaleReason, Collection[int]] = NOTHING_REBUILT,
) -> frozenset[StaleReason]:
    """Return all reasons to measure a time again.

    Args:
        environments: digests of the environments of its model's devices; empty: not known.
        changed: ids of records by reasons that are judged elsewhere.
    """
    is_elsewhere = bool(time.environment and environments) and time.environment not in environments
    holds = {
        StaleReason.ENVIRONMENT: is_elsewhere,
        StaleReason.AGE: now - time.measured_at > max_age,
        StaleReason.DOUBT: time.is_disturbed,
        **{reason: time.record_id in ids for reason, ids in changed.items()},
    }
    return frozenset(reason for reason, is_so in holds.items() if is_so)


def judge(
    times: Iterable[KeptTime],
    environments: Mapping[str, Collection[str]],
    *,
    now: datetime,
    max_age: timedelta,
    changed: Mapping[StaleReason, Collection[int]] = NOTHING_REBUILT,
) -> Freshness:
    """Sort kept times by their reasons.

    Args:
        environments: see `stale_reasons`, by device model.
        changed: see `stale_reasons`; without it code and programs are not judged.
    """
    known = list(times)
    reasons = [
        stale_reasons(time, environments.get(time.device_model, ()), now=now, max_age=max_age, changed=changed)
        for time in known
    ]
    judged_reasons = [reason for reason in StaleReason if reason in changed or reason not in _BY_BUILDING]
    judged = list(zip(known, reasons, strict=True))
    return Freshness(
        all=_part(known),
        stale=_part(time for time, found in judged if found),
        by_reason={reason: _part(time for time, found in judged if reason in found) for reason in judged_reasons},
        unknown_environments=sum(not time.environment for time in known),
    )


def _part(times: Iterable[KeptTime]) -> Part:
    found = list(times)
    return Part(
        records=len(found),
        workloads=len({(time.device_model, time.workload_id) for time in found}),
        models_sec=math.fsum(time.models_sec for time in found),
        device_sec=math.fsum(time.device_sec or 0.0 for time in found),
        without_device_sec=sum(time.device_sec is None for time in found),
    )
