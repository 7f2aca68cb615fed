"""The roofline of a job's device: measured once per device model, and stored in the library.

With it the prioritizer expects no gain that no program can reach, and says of a workload that is there that it is done.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from cross.targets.target import Target
from fleet.base.plain import from_plain, to_plain
from fleet.building.pool import Pool
from fleet.building.turns import Turns
from fleet.client.steady import SteadyDevice
from fleet.domain.devices import Inventory, RuntimeKind
from fleet.domain.roofline import Roofline
from fleet.errors import FleetError
from fleet.library import Library
from fleet.optimizer.loop import TuningLoop
from fleet.optimizer.profiling.peaks import build_peaks, peak_trials, roofline_of

logger = logging.getLogger(__name__)

_FACT = "roofline"

_ENOUGH_TRIALS = 128
"""Fewest trials of a job that measures the roofline, which takes two seconds of the device and of builders."""


def known_roofline(library: Library, device_model: str) -> Roofline | None:
    """Return the earlier measurement, or None if there is none that this version can read."""
    found = library.memory.device_facts().get(device_model, {}).get(_FACT)
    try:
        return None if found is None else from_plain(Roofline, found)
    except FleetError:
        return None


async def measured_roofline(
    loop: TuningLoop, *, device: SteadyDevice, pool: Pool, turns: Turns, target: Target, folder: Path
) -> Roofline | None:
    """Measure the roofline; None if that fails or was disturbed: a limit that is too low would end searches early."""
    try:
        async with turns.building():
            built = await build_peaks(pool, target, folder)
        trials = peak_trials(built)
        async with loop.measuring():
            measured = [found async for found in device.measure([item.artifact for item in built], trials)]
    except FleetError as error:
        logger.warning("roofline not measured", extra={"error": str(error)})
        return None
    disturbed = next((found.text for measurement in measured for found in measurement.disturbances), "")
    if disturbed:
        logger.info("roofline not kept", extra={"reason": disturbed})
        return None
    by_id = {measurement.candidate_id: measurement for measurement in measured}
    return roofline_of(built, [by_id[trial.candidate_id] for trial in trials])


def is_worth_measuring(inventory: Inventory, trials: int) -> bool:
    """Tell whether a job is long enough to measure the roofline."""
    return trials >= _ENOUGH_TRIALS and not inventory.is_pretended and inventory.runtime is not RuntimeKind.PLAIN


def keep_roofline(library: Library, device_model: str, roofline: Roofline) -> None:
    """Store the roofline among the facts about the device model."""
    note_facts(library, device_model, {_FACT: to_plain(roofline)})


def note_facts(library: Library, device_model: str, facts: Mapping[str, object]) -> None:
    """Store some facts about a device model; the others stay."""
    known = library.memory.device_facts().get(device_model, {})
    library.memory.note_device(device_model, {**known, **facts})
