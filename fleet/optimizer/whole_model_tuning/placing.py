"""Compares the best few schedules of each workload in the model on the device, and compiles the model with the winners.

The choice costs at most a share of the time that the job took before: the builds with tuned and with static schedules
are there anyway, more are compiled as far as that share allows.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial

from fleet.artifacts.artifact import Artifact
from fleet.building.turns import Turns
from fleet.client.steady import SteadyDevice
from fleet.domain.keys import NO_TRACE, trace_digest
from fleet.domain.measuring import Evaluator, Measurement, ModuleKind, TensorSpec, Trial
from fleet.domain.workload import Workload
from fleet.jobs.patience import patiently
from fleet.library import Library, Record, RecordKind
from fleet.optimizer.conditions import Conditions
from fleet.optimizer.whole_model_tuning.selection import (
    MOST_OPTIONS,
    Lineup,
    Placed,
    Selection,
    affordable,
    lineups,
    place,
    secs_in_place,
    selection_of,
    that_matter,
)

_SHARE = 0.15
"""Share of the job's time so far."""

_ROUNDS = 3
"""Number of turns of each build: a disturbance of one round does not decide."""

_ROUND_SEC = 0.5
"""About how long a build runs in one round."""

_FEWEST_RUNS, _MOST_RUNS = 3, 50
_RUN_TIMEOUT_SEC = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Result of the times in the model."""

    placed: tuple[Placed, ...] = ()
    """The workloads that had a choice, the costliest first."""

    lineup: Lineup
    artifact: Artifact | None = None
    """The model with this lineup; None: nothing is faster in place than the schedules fastest alone."""

    took_sec: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Placing:
    """Resources of one comparison in the model."""

    inputs: tuple[TensorSpec, ...]
    """Arguments of the model."""

    workloads: Sequence[Workload]
    device: SteadyDevice
    library: Library
    conditions: Conditions
    turns: Turns
    measuring: Callable[[], AbstractAsyncContextManager[object]]
    """Holds the device, and its cores."""

    is_profiled: bool = True
    """Operators can be timed in this model, on this device; else only models as a whole are compared."""

    async def run(
        self,
        decided: Lineup,
        tuned: Artifact,
        static: Artifact,
        compile_model: Callable[[Lineup], Awaitable[Artifact]],
        compile_sec: float,
    ) -> Placement:
        """Compare, and compile the model with the winners if it differs.

        Args:
            decided: the schedules that are fastest alone.
            tuned: the model with them.
            static: the model with static schedules.
            compile_sec: cost of compiling one more model beside others [s].

        Raises:
            BuildError: a model does not compile.
            DeviceUnreachable: the device never gives a result.
        """
        if not self.is_profiled:
            return Placement(lineup=decided)
        started = time.monotonic()
        share_sec = _SHARE * (started - self.conditions.started_at)
        selections = await patiently(partial(self._selections, decided))
        if not selections or affordable(share_sec, compile_sec, 0.0) is None:
            return Placement(lineup=decided)
        (first,) = await self._profile([tuned], runs=_FEWEST_RUNS)
        runs = max(_FEWEST_RUNS, min(_MOST_RUNS, round(_ROUND_SEC / max(first.median_sec, 1e-6))))
        most = affordable(share_sec, compile_sec, _ROUNDS * (runs + _FEWEST_RUNS) * first.median_sec)
        selections = that_matter(selections, self._secs(first))
        if not selections or most is None:
            return Placement(lineup=decided)
        chosen = lineups(decided, selections, most)
        async with self.turns.building():
            built = await asyncio.gather(*map(compile_model, chosen))
        lined: list[Lineup] = [decided, {}, *chosen]
        rounds: list[tuple[Lineup, Mapping[str, float]]] = []
        for _ in range(_ROUNDS):
            measured = await self._profile([tuned, static, *built], runs=runs)
            rounds += [(lineup, self._secs(found)) for lineup, found in zip(lined, measured, strict=True)]
        placed = tuple(place(selection, rounds) for selection in selections)
        lineup = {**decided, **{item.selection.workload.shash: item.chosen.trace_json for item in placed}}
        artifact = None
        if lineup != dict(decided):
            async with self.turns.building():
                artifact = await compile_model(lineup)
        return Placement(placed=placed, lineup=lineup, artifact=artifact, took_sec=time.monotonic() - started)

    async def keep(self, placement: Placement, *, is_confirmed: bool) -> None:
        """Record in the library the schedules that the model uses, for later builds.

        Args:
            is_confirmed: the model of the winners is faster as a whole; else it has the schedules fastest alone.
        """
        records = [self._record(item, is_confirmed=is_confirmed) for item in placement.placed]
        await self._store([record for record in records if record is not None])

    async def keep_static(self, decided: Lineup) -> bool:
        """Record in the library that later builds use static schedules: with all of them the model is faster as a
        whole.

        Args:
            decided: the schedules that are fastest alone.

        Returns:
            False: nothing was noted, since no workload has another one that is static and right.
        """
        records = await patiently(partial(self._static_records, decided))
        await self._store(records)
        return bool(records)

    async def _store(self, records: Sequence[Record]) -> None:
        if records:
            await patiently(partial(self.library.add_records, records))

    def _static_records(self, decided: Lineup) -> list[Record]:
        records = []
        for workload in self.workloads:
            trace = decided.get(workload.shash, NO_TRACE)
            candidates = self.library.candidates(workload.shash, self.conditions.scope) if trace != NO_TRACE else []
            static = next((one for one in candidates if one.is_static and one.checked), None)
            if static is not None and static.trace_json != trace:
                compared = [trace_digest(trace), static.trace_digest]
                records.append(self._winner(workload, static.trace_json, static.run_secs, compared))
        return records

    def _selections(self, decided: Lineup) -> list[Selection]:
        scope = self.conditions.scope
        found = []
        for workload in self.workloads:
            trace = decided.get(workload.shash, NO_TRACE)
            if trace == NO_TRACE:
                continue
            records = self.library.best(workload.shash, scope, k=MOST_OPTIONS, checked_only=True)
            known = {record.trace_digest for record in records}
            # the decided one may not be among the fastest alone
            others = self.library.candidates(workload.shash, scope)
            more = [one for one in others if one.is_static or one.trace_json == trace]
            records += [one for one in more if one.checked and one.trace_digest not in known]
            found.append(selection_of(workload, trace, records))
        return [selection for selection in found if selection is not None]

    async def _profile(self, artifacts: Sequence[Artifact], runs: int) -> list[Measurement]:
        trials = [
            Trial(
                candidate_id=uuid.uuid4().hex,
                artifact_digest=artifact.digest,
                args=self.inputs,
                evaluator=Evaluator(repeat=_FEWEST_RUNS),
                timeout_sec=_RUN_TIMEOUT_SEC,
                module_kind=ModuleKind.RELAX_VM,
                operator_runs=runs,
            )
            for artifact in artifacts
        ]
        async with self.measuring():
            return [measurement async for measurement in self.device.measure(artifacts, trials)]

    def _secs(self, measured: Measurement) -> dict[str, float]:
        return secs_in_place(measured.operators.calls, self.workloads) if measured.operators is not None else {}

    def _record(self, placed: Placed, *, is_confirmed: bool) -> Record | None:
        option = placed.chosen if is_confirmed else placed.selection.options[0]
        secs = placed.in_place_secs.get(option.trace_json)
        if not secs:
            return None
        compared = [one.trace_digest for one in placed.selection.options]
        return self._winner(placed.selection.workload, option.trace_json, secs, compared)

    def _winner(self, workload: Workload, trace_json: str, run_secs: tuple[float, ...], compared: list[str]) -> Record:
        return Record(
            workload=workload.shash,
            scope=self.conditions.scope,
            trace_json=trace_json,
            run_secs=run_secs,
            job_name=self.conditions.job_name,
            device_name=self.device.last_name,
            device_fingerprint=self.conditions.device_fingerprint,
            kind=RecordKind.IN_PLACE,
            provenance={"compared": compared},
            checked=True,
            uid=uuid.uuid4().hex,  # chosen here: a store repeated after a lost answer is stored once
        )
