"""Backfills features of old records in the background, in small steps whose progress is saved."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from cross.targets.target import parse_target
from fleet.building.pool import Pool, run_within
from fleet.building.turns import Turns
from fleet.cost_model.feature_codec import FEATURE_VERSION, NO_PROGRAM
from fleet.errors import BuildError, ConfigError, FleetError
from fleet.library import Library, Record, RecordProgram
from fleet.optimizer.tasks.recall import recall_programs

logger = logging.getLogger(__name__)

_STEP = 16
"""Records at a time: 0.3 s of one worker, for which nothing else waits longer."""

_STEP_TIMEOUT_SEC = 60.0
_FIRST_SEC = 10.0
"""The first seconds of a process are its job's."""

_LOOK_SEC = 60.0
"""Interval of checks for records without features, which come from imports or older programs."""

_REST_SEC = 3.0
"""Pause between two steps: uses a tenth of one worker, while a job uses all of them."""


async def fill_features(library: Library, pool: Pool, turns: Turns, *, rest_sec: float = _REST_SEC) -> int:
    """Compute features until every usable record has them; return the number of records that lacked them.

    Finished features stay if this ends halfway; the next process continues there.
    """
    count = 0
    while missing := await asyncio.to_thread(library.memory.without_features, FEATURE_VERSION, limit=_STEP):
        async with turns.building():
            by_record = await _recall(library, pool, missing)
        await asyncio.to_thread(library.memory.add_programs, by_record)
        count += len(missing)
        await asyncio.sleep(rest_sec)
    return count


async def fill_in_background(library: Library, pool: Pool, turns: Turns) -> None:
    """Backfill features until cancelled; a failure only logs a warning."""
    await asyncio.sleep(_FIRST_SEC)
    while True:
        try:
            await fill_features(library, pool, turns)
        except FleetError as error:
            logger.warning("features not computed", extra={"error": str(error)})
        await asyncio.sleep(_LOOK_SEC)


async def recalled(pool: Pool, mod_json: str, target_json: str, records: Sequence[Record]) -> dict[int, RecordProgram]:
    """Compute the features of one workload's records, by record id; records that kill the worker get none."""
    steps = [records[first : first + _STEP] for first in range(0, len(records), _STEP)]
    found: dict[int, RecordProgram] = {}
    for step in steps:
        found |= await _recall_step(pool, mod_json, target_json, step)
    return found


async def _recall(library: Library, pool: Pool, missing: list[Record]) -> dict[int, RecordProgram]:
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in missing:
        groups.setdefault((record.workload, record.scope.target_json), []).append(record)
    found: dict[int, RecordProgram] = {}
    for (shash, target_json), group in groups.items():
        workload = await asyncio.to_thread(library.workload, shash)
        found |= await recalled(pool, workload.mod_json, target_json, group)
    return found


async def _recall_step(
    pool: Pool, mod_json: str, target_json: str, records: Sequence[Record]
) -> dict[int, RecordProgram]:
    """Compute the features of a few records; records that kill the worker are found by halving."""
    traces = [record.trace_json for record in records]
    try:
        programs = await run_within(
            pool, _STEP_TIMEOUT_SEC, recall_programs, mod_json, parse_target(target_json), traces
        )
    except ConfigError:  # an imported target that is refused, or none at all
        return {record.id: NO_PROGRAM for record in records}
    except BuildError:
        if len(records) == 1:
            return {records[0].id: NO_PROGRAM}
        middle = len(records) // 2
        first = await _recall_step(pool, mod_json, target_json, records[:middle])
        return first | await _recall_step(pool, mod_json, target_json, records[middle:])
    return {record.id: program for record, program in zip(records, programs, strict=True)}
