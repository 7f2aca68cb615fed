"""Programs that the kept fragments have today. Lowered in confined workers: anybody may have stored a fragment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cross.pool.confined import Confined
from cross.targets.target import Target
from fleet.base.batches import batched
from fleet.building.pool import Pool, run_within
from fleet.confinement.process import AllowedFiles
from fleet.domain.workload import Workload
from fleet.errors import BuildError
from fleet.fragments.lowering import Reason, Refusal, all_lowered_today

_TIMEOUT_SEC = 60.0
"""Time limit of a worker. A fragment takes 20 to 80 ms."""

_BATCH = 16
"""Fragments of one worker, which ends after them."""

_BETWEEN_SEC = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    """Programs of fragments today, by the hash of the workload that each was kept for."""

    programs: Mapping[str, Workload] = field(default_factory=dict)
    refusals: Mapping[str, Refusal] = field(default_factory=dict)

    @property
    def changed(self) -> dict[str, Workload]:
        """Programs with another hash than their workload."""
        return {shash: one for shash, one in self.programs.items() if one.shash != shash}

    @property
    def refusal(self) -> str:
        """Sentence of the first refusal, or empty."""
        return next((f"{one.reason}: {one.message}".rstrip(": ") for one in self.refusals.values()), "")

    def joined(self, other: Lowered) -> Lowered:
        """Return these and others together."""
        return Lowered(programs={**self.programs, **other.programs}, refusals={**self.refusals, **other.refusals})


async def lower_again(
    pool: Pool, contents: Mapping[str, bytes], target: Target, *, narrate: Callable[[str], object]
) -> Lowered:
    """Lower fragments in their stored form, by workload hash."""
    progress = _Progress(total=len(contents), narrate=narrate)
    parts = [dict(part) for part in batched(contents.items(), _BATCH)]
    found = await asyncio.gather(*(_lowered(pool, part, target, progress) for part in parts))
    made = {shash: one for part in found for shash, one in part.items()}
    return Lowered(
        programs={shash: one for shash, one in made.items() if isinstance(one, Workload)},
        refusals={shash: one for shash, one in made.items() if isinstance(one, Refusal)},
    )


@dataclass(slots=True, kw_only=True)
class _Progress:
    """Reports finished fragments every two seconds."""

    total: int
    narrate: Callable[[str], object]
    done: int = 0
    _told_at: float = field(default_factory=time.monotonic)

    def add(self, count: int) -> None:
        self.done += count
        if time.monotonic() - self._told_at >= _BETWEEN_SEC:
            self._told_at = time.monotonic()
            self.narrate(f"lowered the operators of {self.done} of {self.total} workloads")


async def _lowered(
    pool: Pool, contents: Mapping[str, bytes], target: Target, progress: _Progress
) -> dict[str, Workload | Refusal]:
    """Lower some fragments in one worker. If that fails they are halved, so that one bad fragment costs itself only."""
    task = Confined(all_lowered_today, AllowedFiles())
    try:
        made = await run_within(pool, _TIMEOUT_SEC, task, list(contents.values()), target)
    except BuildError as error:
        if len(contents) == 1:
            progress.add(1)
            return dict.fromkeys(contents, Refusal(reason=Reason.CRASH, message=str(error)))
        halves = [dict(part) for part in batched(contents.items(), (len(contents) + 1) // 2)]
        found = [await _lowered(pool, half, target, progress) for half in halves]
        return {shash: one for half in found for shash, one in half.items()}
    progress.add(len(contents))
    return dict(zip(contents, made, strict=True))
