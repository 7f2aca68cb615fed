"""Finds the faithful fragments of a job's workloads in the background, and stores them in the library."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial

from cross.targets.target import Target
from fleet.building.pool import Pool, run_within
from fleet.building.turns import Turns
from fleet.errors import BuildError, FleetError
from fleet.fragments.extracted import Extracted
from fleet.fragments.lowering import faithful_of
from fleet.jobs.patience import patiently
from fleet.library import Library

_TIMEOUT_SEC = 60.0
_BATCH = 16
"""Fragments of one transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentKeeper:
    """Keeps fragments of a target's workloads."""

    library: Library
    pool: Pool
    turns: Turns
    target: Target

    async def keep(self, found: Extracted, workloads: Collection[str]) -> None:
        """Store the fragments of workloads that the library has none of. Those found before a cancellation are kept.

        Args:
            workloads: hashes; the library knows them.

        Raises:
            LibraryError, DiskFull: they cannot be stored.
        """
        known = await patiently(partial(self.library.fragments, self.target.json, list(workloads)))
        wanted = set(workloads) - known.keys()
        await self._store({shash: found.faithful[shash] for shash in wanted & found.faithful.keys()})
        wanted -= found.faithful.keys()
        batch: dict[str, bytes] = {}
        try:
            for candidates in found.candidates:
                if not wanted:
                    break
                if (one := await self._faithful(candidates, wanted)) is not None:
                    wanted.discard(one[0])
                    batch[one[0]] = one[1]
                if len(batch) >= _BATCH:
                    await self._store(batch)
                    batch = {}
        except asyncio.CancelledError:
            with contextlib.suppress(FleetError):  # the job ends, and must not wait for a library that is away
                await asyncio.to_thread(self.library.add_fragments, self.target.json, batch)
            raise
        await self._store(batch)

    async def _faithful(self, candidates: tuple[bytes, ...], wanted: Collection[str]) -> tuple[str, bytes] | None:
        """Return the hash and content of the first faithful fragment, or None without any, and after a crash of TVM."""
        async with self.turns.building():
            try:
                return await run_within(
                    self.pool, _TIMEOUT_SEC, faithful_of, candidates, frozenset(wanted), self.target
                )
            except BuildError:
                return None

    async def _store(self, by_workload: Mapping[str, bytes]) -> None:
        if by_workload:
            await patiently(partial(self.library.add_fragments, self.target.json, dict(by_workload)))
