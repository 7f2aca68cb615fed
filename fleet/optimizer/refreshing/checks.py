"""Checks of changed code: its numbers against the unscheduled program's, and its time by the agent's clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fleet.building.pool import Pool, run_within
from fleet.client.steady import SteadyDevice
from fleet.domain.keys import trace_digest
from fleet.domain.scope import RecordScope
from fleet.domain.workload import StoredWorkload, Workload
from fleet.errors import BuildError
from fleet.optimizer.checker import Checker
from fleet.optimizer.conditions import Conditions
from fleet.optimizer.core.candidates import Candidate
from fleet.optimizer.core.events import Checked, CheckOutputs, Verdict
from fleet.optimizer.refreshing.plan import Program
from fleet.optimizer.refreshing.side_by_side import BLOCK
from fleet.optimizer.searcher import Searcher
from fleet.workloads.workload import module_of, workload_of

_TIMEOUT_SEC = 60.0


class Checks(Protocol):
    """Checks programs of a workload."""

    async def check(
        self, workload: StoredWorkload, programs: Mapping[str, Program], claims: Mapping[str, float]
    ) -> dict[str, Checked]:
        """Return the verdict on each program.

        Args:
            claims: time to prove by name [s]; 0 for no proof.

        Raises:
            FleetError: the device is lost.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceChecks:
    """Checks on the device of a refresh, as jobs make them."""

    pool: Pool
    device: SteadyDevice
    scope: RecordScope
    folder: Path

    async def check(
        self, workload: StoredWorkload, programs: Mapping[str, Program], claims: Mapping[str, float]
    ) -> dict[str, Checked]:
        inventory = (await self.device.device()).inventory
        checker = None if inventory.is_pretended else await self._checker(workload, inventory.host_fingerprint)
        return {name: await _check(checker, one, claims[name]) for name, one in programs.items()}

    async def _checker(self, workload: StoredWorkload, fingerprint: str) -> Checker:
        whole = await run_within(self.pool, _TIMEOUT_SEC, describe, workload)
        conditions = Conditions(
            job_name="",
            scope=self.scope,
            device_fingerprint=fingerprint,
            seed=0,
            batch_size=1,
            search_threads=1,
            enough=0,
            evaluator=BLOCK,
            trial_timeout_sec=_TIMEOUT_SEC,
            artifact_dir=self.folder,
            started_at=0.0,
        )
        return Checker(
            conditions=conditions,
            device=self.device,
            searcher=Searcher(self.pool, conditions, lambda _: whole),
            workload_of=lambda _: whole,
            baselines={},
        )


def describe(workload: StoredWorkload) -> Workload:
    """Return a stored workload with the facts that its inputs need: a task for a worker of the pool."""
    return workload_of(module_of(workload.mod_json), name=workload.name)


async def _check(checker: Checker | None, program: Program, claimed_sec: float) -> Checked:
    """Check a program; without a checker, or a reference that builds, nothing is compared."""
    trace = program.record.trace_json
    shash, digest = program.record.workload, trace_digest(trace)
    if checker is None:
        return Checked(shash, digest, Verdict.NOT_CHECKED)
    candidate = Candidate(trace_json=trace, digest=digest, workload=shash, build=program.build)
    found = Checked(shash, digest, Verdict.NOT_CHECKED)
    try:
        async for event in checker.check(CheckOutputs(candidate, claimed_sec)):
            found = event if isinstance(event, Checked) else found
    except BuildError:  # of the reference
        return found
    return found
