"""Programs of a refresh: the best schedules of each workload, rebuilt and compared with their old code. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fleet.artifacts.artifact import Artifact
from fleet.building.built_candidate import BuiltCandidate
from fleet.domain.freshness import BEST
from fleet.domain.keys import trace_digest
from fleet.domain.making import Making
from fleet.domain.workload import StoredWorkload, Workload
from fleet.library import Record, RecordKind
from fleet.optimizer.comparing.intervals import LOOKS
from fleet.optimizer.core.candidates import Candidate
from fleet.optimizer.refreshing.order import Item

_PROGRAMS = BEST + 2
"""Programs of a measured workload: the best schedules, the static one, and the old code of the former best."""

_BLOCK_SEC = 0.02
"""Usual device time of one block [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """A schedule of the library, built today."""

    record: Record
    making: Making
    """Build behind the record."""

    build: BuiltCandidate | None
    problem: str = ""
    """Reason for a missing build."""

    @property
    def is_same(self) -> bool:
        """True if today's build has the code of the record."""
        return self.build is not None and program_of(self.record, self.build, self.making).is_same


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A schedule to measure."""

    record: Record
    build: BuiltCandidate
    is_same: bool
    """It has the code of its record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The best schedules of a workload, the former best first."""

    workload: StoredWorkload
    rebuilt: tuple[Rebuilt, ...]
    calls: float
    """Number of its calls in all models."""

    version: str
    """Today's TVM version."""

    before: Group | None = None
    """Schedules of the program that the same operators had before; None: it is this one."""

    @property
    def former(self) -> Rebuilt:
        """The former best, adapted if the program is new."""
        return self.rebuilt[0]

    @property
    def known(self) -> Group:
        """The schedules as they were measured: on the former program if this one is new."""
        return self.before or self

    @property
    def programs(self) -> tuple[Program, ...]:
        """Schedules to measure: the best ones that were built."""
        found = (program_of(one.record, one.build, one.making) for one in self.rebuilt if one.build is not None)
        return tuple(found)[:BEST]

    @property
    def is_carried(self) -> bool:
        """True if the former best is of another TVM version than today's."""
        return self.former.record.scope.tvm_version != self.version

    @property
    def needs_measuring(self) -> bool:
        """True if the code of any of the schedules to measure has changed, or may have."""
        return not all(one.is_same for one in self.programs)

    @property
    def item(self) -> Item:
        """Facts for the order of measuring. Without models every workload is called once."""
        sec = self.known.former.record.median_sec
        return Item(
            name=self.workload.shash,
            kind=self.workload.kind or self.workload.name,
            models_sec=(self.calls or 1.0) * sec,
            device_sec=LOOKS[0] * self.round_sec,
        )

    @property
    def round_sec(self) -> float:
        """Expected device time of a block of each program [s]."""
        return _PROGRAMS * max(_BLOCK_SEC, 2 * self.known.former.record.median_sec)


def program_of(record: Record, build: BuiltCandidate, making: Making) -> Program:
    """Return a built schedule. Its code is that of its record if it is equal before linking, or after it."""
    artifact = build.artifact
    is_same_object = bool(artifact.object_digest) and artifact.object_digest == making.object_digest
    return Program(record=record, build=build, is_same=is_same_object or artifact.digest == record.artifact_digest)


def new_record(group: Group, workload: str, candidate: Candidate, static_trace: str | None) -> Record:
    """Return the record of a schedule for the new program of a group, without times.

    Args:
        static_trace: schedule that the new program's space chooses; None: it has none.
    """
    is_static = static_trace is not None and candidate.digest == trace_digest(static_trace)
    return Record(
        workload=workload,
        scope=group.former.record.scope,
        kind=RecordKind.STATIC if is_static else RecordKind.CANDIDATE,
        trace_json=candidate.trace_json,
        trace_digest=candidate.digest,
        provenance={} if candidate.origin is None else candidate.origin.provenance,
    )


def heirs(changed: Mapping[str, Workload], known: Collection[str]) -> dict[str, Workload]:
    """Return the new programs to measure, by the hash of the former program: each once, and none with records.

    Args:
        changed: programs of today by the hash of the former one.
        known: hashes of programs with records.
    """
    by_hash = {program.shash: shash for shash, program in sorted(changed.items(), reverse=True)}
    return {shash: changed[shash] for program, shash in by_hash.items() if program not in known}


def best_schedules(by_version: Mapping[str, Sequence[Record]], version: str) -> dict[str, list[Record]]:
    """Return the records to rebuild by workload: for each schedule the one that counts today, the former best first.

    Args:
        by_version: the best records of each TVM version, the newest version last.
        version: today's.
    """
    newest_first = [version, *(one for one in reversed(list(by_version)) if one != version)]
    found: dict[str, dict[str, Record]] = {}
    for one in newest_first:
        for record in sorted(by_version.get(one, ()), key=lambda record: record.median_sec):
            found.setdefault(record.workload, {}).setdefault(record.trace_digest, record)
    return {shash: list(records.values()) for shash, records in found.items()}


def old_codes(groups: Iterable[Group], kept: Mapping[int, Artifact]) -> dict[str, Artifact]:
    """Return the old code of each workload's former best, as far as it is known.

    Args:
        kept: kept artifacts by record id.
    """
    found = {}
    for group in groups:
        former = group.known.former
        if former.is_same and former.build is not None:
            found[group.workload.shash] = former.build.artifact
        elif former.record.id in kept:
            found[group.workload.shash] = kept[former.record.id]
    return found


def expected_sec(groups: Iterable[Group]) -> float:
    """Return the device time that measuring some workloads should take [s]."""
    return math.fsum(group.item.device_sec for group in groups)
