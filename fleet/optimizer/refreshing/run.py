"""One refresh of a device model's records: rebuilds, carries, measures and stores.

Each record is stored at once, so that a killed run loses nothing that was measured. A second run
finds today's code in the records and does not measure it again.
"""

from __future__ import annotations

import asyncio
import math
import random
import statistics
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from fleet.artifacts.artifact import Artifact
from fleet.base.batches import batched
from fleet.base.version import package_version
from fleet.building.built_candidate import BuiltCandidate
from fleet.building.turns import Turns
from fleet.client.steady import SteadyDevice
from fleet.domain.charges import DEVICE_SEC
from fleet.domain.environment import ENVIRONMENT, environment_of
from fleet.domain.keys import trace_digest
from fleet.domain.making import Making, evaluator_facts
from fleet.domain.origin import Origin
from fleet.domain.proving import ProofVerdict
from fleet.domain.scope import RecordScope, ScopeFilter
from fleet.domain.workload import StoredWorkload, Workload
from fleet.errors import FleetError, NotFound
from fleet.jobs.patience import patiently
from fleet.library import Library, Record, RecordKind
from fleet.optimizer.best_artifacts import keep_best
from fleet.optimizer.comparing.intervals import RatioInterval
from fleet.optimizer.core.events import Checked
from fleet.optimizer.core.events import Verdict as CheckVerdict
from fleet.optimizer.refreshing.checks import Checks
from fleet.optimizer.refreshing.measured import Measured, outcome
from fleet.optimizer.refreshing.order import Experience, next_of, sentinels
from fleet.optimizer.refreshing.plan import (
    Group,
    Program,
    best_schedules,
    expected_sec,
    heirs,
    old_codes,
    program_of,
)
from fleet.optimizer.refreshing.programs import Lowered
from fleet.optimizer.refreshing.renewing import renewed
from fleet.optimizer.refreshing.report import RefreshReport
from fleet.optimizer.refreshing.side_by_side import BLOCK, FORMER, OLD, STATIC, Rounder, SideBySide
from fleet.optimizer.refreshing.verdicts import environment_interval
from fleet.optimizer.refreshing.workbench import Workbench, rebuild

_RIGHT = (CheckVerdict.RIGHT, CheckVerdict.NOT_PROVEN)
_WRONG = (CheckVerdict.WRONG, CheckVerdict.NOT_PROVEN, CheckVerdict.LOST)
_PROOFS = (ProofVerdict.PROVEN, ProofVerdict.REFUTED)

_BOUND = 0.03
"""Change of the environment within which times of unchanged code are kept."""

_GROUPS_AT_ONCE = 32
"""Workloads in one turn on the cores: a measurement that needs them waits for no more."""

_LOWERED_AT_ONCE = 64
"""Fragments in one turn on the cores, some 50 ms each."""

_LINES = 10
"""Lines about builds."""

_ROUNDS_SEC = 2.0
"""Time for the rounds of one workload."""


@dataclass(slots=True, kw_only=True)
class Refresh:
    """A refresh of the records of one device model and target."""

    library: Library
    scope: RecordScope
    """Scope in which the records shall count."""

    bench: Workbench
    folder: Path
    """Place of the built artifacts."""

    checks: Checks
    device: SteadyDevice
    turns: Turns
    narrate: Callable[[str], object]
    deadline_sec: float = math.inf
    """No measurement begins after this, on the monotonic clock [s]."""

    is_dry_run: bool = False
    most_round_sec: float = math.inf
    """Workloads with a longer round are not measured [s]."""

    rounds_sec: float = _ROUNDS_SEC
    seed: int = 0

    _measured: dict[str, Measured] = field(default_factory=dict, init=False)
    _problem: FleetError | None = field(default=None, init=False)
    _carried: int = field(default=0, init=False)
    _fragments: Mapping[str, bytes] = field(default_factory=dict, init=False)
    _lowered: Lowered = field(default_factory=Lowered, init=False)

    async def run(self) -> RefreshReport:
        """Refresh the records. An error of the device ends the measurements, and is part of the report.

        Raises:
            NotFound: the library has none of this device model and target.
            LibraryError, DiskFull: a result cannot be stored.
        """
        groups = await self._rebuild()
        formers = [group.known.former for group in groups]
        kept = [former.record.id for former in formers if not former.is_same]
        old = old_codes(groups, await patiently(partial(self.library.write_artifacts, kept, self.folder)))
        by_name = {group.workload.shash: group for group in groups}
        first = [by_name[item.name] for item in sentinels([by_name[shash].item for shash in old])]
        changed = [group for group in groups if group.needs_measuring and group.programs]
        if not self.is_dry_run:
            await self._measure_all(first, changed, groups, old)
        environment = self._environment
        wanted = {group.workload.shash: group for group in [*first, *changed]}
        return RefreshReport(
            scope=self.scope,
            outcomes=tuple(outcome(one, self._measured.get(one.workload.shash), environment) for one in groups),
            environment=environment,
            carried=self._carried,
            to_measure=len(changed),
            refused_fragments=len(self._lowered.refusals),
            refusal=self._lowered.refusal,
            expected_sec=expected_sec(wanted.values()),
            device_sec=math.fsum(sum(one.turns.device_sec.values()) for one in self._measured.values()),
            is_dry_run=self.is_dry_run,
            problem=self._problem,
        )

    async def _rebuild(self) -> list[Group]:
        """Build the best schedules again, and carry those with the same code."""
        best = await patiently(self._best)
        workloads = await patiently(partial(self.library.workloads, list(best)))
        calls = await patiently(self.library.calls)
        makings = await patiently(partial(self.library.makings, [one.id for found in best.values() for one in found]))
        groups: list[Group] = []
        every = max(1, len(workloads) // _LINES)
        new = await self._new_programs(list(best))
        slots = asyncio.Semaphore(_GROUPS_AT_ONCE)
        async with asyncio.TaskGroup() as building:
            tasks = [
                building.create_task(self._group(slots, one, best[one.shash], makings, calls.get(one.shash, 0.0), new))
                for one in workloads
            ]
            for count, done in enumerate(asyncio.as_completed(tasks), 1):
                group = await done
                await self._carry(group.known)
                if group.before is not None or group.workload.shash not in self._lowered.changed:
                    groups.append(group)
                if count % every == 0:
                    self.narrate(f"rebuilt the best schedules of {count} of {len(best)} workloads")
        return sorted(groups, key=lambda group: (-group.item.models_sec, group.workload.shash))

    async def _new_programs(self, shashes: Sequence[str]) -> dict[str, Workload]:
        """Lower the operators of workloads again, and return the new programs to measure by the former hash."""
        self._fragments = await patiently(partial(self.library.fragments, self.scope.target_json, shashes))
        for part in batched(self._fragments.items(), _LOWERED_AT_ONCE):
            async with self.turns.building():
                self._lowered = self._lowered.joined(await self.bench.lower(dict(part)))
            count = len(self._lowered.programs) + len(self._lowered.refusals)
            self.narrate(f"lowered the operators of {count} of {len(self._fragments)} workloads")
        return heirs(self._lowered.changed, shashes)

    def _best(self) -> dict[str, list[Record]]:
        within = ScopeFilter(target_json=self.scope.target_json, device_model=self.scope.device_model)
        scopes = self.library.scopes(within=within)
        if not scopes:
            raise NotFound(
                f"the library has no records of {self.scope.device_model!r} with its target; "
                "'fleet library best' lists the others"
            )
        by_version = {scope.tvm_version: self.library.best_schedules(scope) for scope in scopes}
        return best_schedules(by_version, self.scope.tvm_version)

    async def _group(
        self,
        slots: asyncio.Semaphore,
        workload: StoredWorkload,
        found: Sequence[Record],
        makings: Mapping[int, Making],
        calls: float,
        new: Mapping[str, Workload],
    ) -> Group:
        known = ((record, makings.get(record.id, Making())) for record in found)
        async with slots, self.turns.building():
            rebuilt = [await rebuild(self.bench, workload, record, making) for record, making in known]
            group = Group(workload=workload, rebuilt=tuple(rebuilt), calls=calls, version=self.scope.tvm_version)
            return await renewed(self.bench, group, new[workload.shash]) if workload.shash in new else group

    async def _carry(self, group: Group) -> None:
        version = self.scope.tvm_version
        for one in group.rebuilt:
            if one.build is None or not one.is_same or one.record.scope.tvm_version == version:
                continue
            self._carried += 1
            if not self.is_dry_run:
                await patiently(partial(self.library.carry, one.record.id, version, _making(one.build)))

    async def _measure_all(
        self, first: Sequence[Group], changed: Sequence[Group], groups: Sequence[Group], old: Mapping[str, Artifact]
    ) -> None:
        """Measure the sentinels, then changed code, and all if the environment has changed, in the order of worth."""
        for group in first:
            await self._measure(group, old)
        rest = changed if _is_bound(self._environment) else groups
        waiting = {one.workload.shash: one for one in rest if one.programs}
        for shash in self._measured.keys() & waiting.keys():
            del waiting[shash]
        experience = Experience()
        while self._may_go_on and (item := next_of([one.item for one in waiting.values()], experience)) is not None:
            await self._measure(waiting.pop(item.name), old)
            if (found := self._measured.get(item.name)) is not None:
                experience.note(item.kind, has_changed=found.chosen != FORMER)

    @property
    def _may_go_on(self) -> bool:
        return self._problem is None and time.monotonic() < self.deadline_sec

    async def _measure(self, group: Group, old: Mapping[str, Artifact]) -> None:
        if not self._may_go_on or not group.programs or group.round_sec > self.most_round_sec:
            return
        shash = group.workload.shash
        self.narrate(f"measuring {group.workload.operator} ({len(self._measured)} workloads are done)")
        programs = await self._programs(group)
        artifacts = {name: one.build.artifact for name, one in programs.items()}
        old_name = FORMER if group.former.is_same else OLD if shash in old else ""
        if old_name == OLD:
            artifacts[OLD] = old[shash]
        rounder = Rounder(device=self.device, rng=random.Random(f"{self.seed}:{shash}"), budget_sec=self.rounds_sec)
        try:
            inventory = (await self.device.device()).inventory
            async with self.turns.measuring(inventory):
                found = await rounder.run(artifacts)
                checked = await self._check(group.workload, programs, found)
        except FleetError as error:
            self._problem = error
            return
        if group.before is not None:
            await patiently(partial(self._store_program, group))
        await self._store(group.workload, programs, found, checked)
        wrong = {name: one.message for name, one in checked.items() if one.verdict in _WRONG}
        self._measured[shash] = Measured(group=group, turns=found, programs=programs, old_name=old_name, wrong=wrong)

    async def _programs(self, group: Group) -> dict[str, Program]:
        """Return today's programs by name: the former best, other good ones, and the static schedule."""
        found = dict(zip([FORMER, "second", "third"], group.programs, strict=False))
        async with self.turns.building():
            trace = await self.bench.static_trace(group.workload)
            if trace is None or trace_digest(trace) in {one.record.trace_digest for one in found.values()}:
                return found
            record = Record(workload=group.workload.shash, scope=self.scope, trace_json=trace, kind=RecordKind.STATIC)
            static = await rebuild(self.bench, group.workload, record, Making())
        if static.build is None:
            return found
        return found | {STATIC: program_of(record, static.build, static.making)}

    async def _check(
        self, workload: StoredWorkload, programs: Mapping[str, Program], found: SideBySide
    ) -> dict[str, Checked]:
        """Check changed code before it is stored: a record without a check would be neither used nor tried again."""
        changed = {name: one for name, one in programs.items() if found.rounds.secs.get(name) and not one.is_same}
        claims = {
            name: 0.0 if one.record.is_static else statistics.median(found.rounds.secs[name])
            for name, one in changed.items()
        }
        return await self.checks.check(workload, changed, claims) if changed else {}

    def _store_program(self, group: Group) -> None:
        """Store a new program and its operators; those of the former one stay."""
        self.library.add_workloads([group.workload])
        content = self._fragments[group.known.workload.shash]
        self.library.add_fragments(self.scope.target_json, {group.workload.shash: content})

    async def _store(
        self,
        workload: StoredWorkload,
        programs: Mapping[str, Program],
        found: SideBySide,
        checked: Mapping[str, Checked],
    ) -> None:
        lost = {name for name, one in checked.items() if one.verdict is CheckVerdict.LOST}
        names = [name for name in programs if found.rounds.secs.get(name) and name not in lost]
        new = [self._record(programs[name], name, found, checked.get(name)) for name in names]
        stored = await patiently(partial(self.library.add_records, new))
        for name, record in zip(names, stored, strict=True):
            if name in checked:
                await patiently(partial(_note, self.library, record, checked[name]))
        await patiently(partial(keep_best, self.library, [workload], self.scope, self.folder))

    def _record(self, one: Program, name: str, found: SideBySide, checked: Checked | None) -> Record:
        provenance = found.last[name].provenance
        return replace(
            one.record,
            scope=self.scope,
            run_secs=tuple(found.rounds.secs[name]),
            job_name="",
            device_name=found.device_name,
            device_fingerprint=found.inventory.host_fingerprint,
            artifact_digest=one.build.artifact.digest,
            provenance={
                **{key: value for key, value in provenance.items() if key != ENVIRONMENT},
                **Origin.of_record(one.record.provenance, one.record.trace_json).provenance,
                DEVICE_SEC: round(found.device_sec[name], 6),
            },
            checked=one.record.checked if checked is None else True if checked.verdict in _RIGHT else None,
            created_at=datetime.now(UTC),
            uid=uuid.uuid4().hex,  # chosen here: a store repeated after a lost answer is stored once
            environment=environment_of(found.inventory, provenance),
            making=replace(_making(one.build), evaluator=evaluator_facts(BLOCK)),
        )

    @property
    def _environment(self) -> RatioInterval | None:
        ratios = [one.ratio_to_then for one in self._measured.values()]
        return environment_interval([ratio for ratio in ratios if ratio is not None], random.Random(self.seed))


def _is_bound(environment: RatioInterval | None) -> bool:
    """Tell whether unchanged code keeps its times: the environment has not changed, or is not known to."""
    return environment is None or (environment.low > 1 - _BOUND and environment.high < 1 + _BOUND)


def _note(library: Library, record: Record, checked: Checked) -> None:
    """Store the verdict on a record's numbers and its time."""
    if checked.verdict is CheckVerdict.WRONG:
        library.mark_wrong(record.id, checked.message)
    if checked.proof is not None and checked.proof.verdict in _PROOFS:
        library.add_proof(record.workload, record.scope, record.trace_json, checked.proof)


def _making(build: BuiltCandidate) -> Making:
    return Making(object_digest=build.artifact.object_digest, version=package_version())
