"""Runs programs of one workload in turns, each round under one lease."""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field

from fleet.artifacts.artifact import Artifact
from fleet.client.steady import SteadyDevice
from fleet.domain.devices import Inventory
from fleet.domain.measuring import Evaluator, Measurement, Trial
from fleet.errors import DeviceUnreachable
from fleet.optimizer.comparing.rounds import Rounds

logger = logging.getLogger(__name__)

FORMER, OLD, STATIC = "former", "old", "static"
"""Names of programs: the former best as built today, its old code, and the static schedule."""

BLOCK = Evaluator(number=1, repeat=1, min_repeat_ms=5)
"""Evaluator of one block of a round."""

_TIMEOUT_SEC = 30.0
_TRIES = 3
_MOST_SPLIT = 20
"""Rounds of a workload that ended under another lease, and are not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBySide:
    """Block times of a workload's programs."""

    rounds: Rounds
    last: Mapping[str, Measurement]
    """The last block of each program; of failed ones the error."""

    device_name: str
    inventory: Inventory
    device_sec: Mapping[str, float]
    """Device time of all blocks by program [s]."""

    @property
    def problem(self) -> str:
        """Message of the first error, or empty."""
        return next((found.error_message or str(found.error) for found in self.last.values() if found.error), "")


@dataclass(slots=True, kw_only=True)
class Rounder:
    """Rounds of blocks on a device."""

    device: SteadyDevice
    rng: random.Random
    budget_sec: float
    """See `Rounds.budget_sec`."""

    _started: float = field(default=0.0, init=False)

    async def run(self, programs: Mapping[str, Artifact]) -> SideBySide:
        """Run the programs in rounds; again from the beginning on another device.

        Raises:
            FleetError: the device is lost, or no lease lasts for a round.
        """
        found, is_whole = await self._run_once(programs)
        for _ in range(_TRIES - 1):
            if is_whole:
                break
            logger.warning("another device was granted, measuring again", extra={"device": self.device.last_name})
            found, is_whole = await self._run_once(programs)
        return found

    async def _run_once(self, programs: Mapping[str, Artifact]) -> tuple[SideBySide, bool]:
        device_name = (await self.device.device()).name
        rounds = Rounds(
            names=tuple(programs),
            pairs=tuple((FORMER, other) for other in programs if other != FORMER),
            budget_sec=self.budget_sec,
            rng=self.rng,
        )
        last: dict[str, Measurement] = {}
        device_sec = dict.fromkeys(programs, 0.0)
        started, split = time.monotonic() - self.device.waited_sec, 0
        while not rounds.is_over(time.monotonic() - self.device.waited_sec - started):
            order = list(rounds.order())
            trials = [_trial(f"{name}-{rounds.count}", programs[name]) for name in order]
            artifacts = [programs[name] for name in order]
            lease_name = (await self.device.device()).lease.name
            async with aclosing(self.device.measure(artifacts, trials)) as measurements:
                blocks = [each async for each in measurements]
            found = dict(zip(order, blocks, strict=True))
            last |= found
            for name, each in found.items():
                device_sec[name] += each.clocks.load_sec + each.clocks.run_sec
            if self.device.last_name != device_name:
                break
            if self.device.last_lease_name != lease_name:
                split += 1
                if split > _MOST_SPLIT:
                    raise DeviceUnreachable(f"{device_name} is given back before each round ends")
                continue
            rounds.add({name: each.run_secs[0] if each.run_secs else math.inf for name, each in found.items()})
        done = SideBySide(
            rounds=rounds,
            last=last,
            device_name=self.device.last_name,
            inventory=self.device.last_inventory,
            device_sec=device_sec,
        )
        return done, self.device.last_name == device_name


def _trial(name: str, artifact: Artifact) -> Trial:
    return Trial(
        candidate_id=name,
        artifact_digest=artifact.digest,
        function=artifact.function,
        args=artifact.args,
        evaluator=BLOCK,
        timeout_sec=_TIMEOUT_SEC,
    )
