"""Whole models take turns on a device with their engine: blocks never overlap, and the untuned model is bounded."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from fleet.artifacts.artifact import Artifact
from fleet.base.digests import digest_of
from fleet.client.steady import SteadyDevice
from fleet.optimizer.comparing.intervals import LOOKS
from fleet.optimizer.comparing.rounds import Rounds
from fleet.optimizer.comparing.turns import ENGINE, ModelTurns, Untuned
from fleet.v1 import measurement_pb2
from tests.service.odd_agent import OddAgent, bad, good, seated

pytestmark = pytest.mark.slow


class Timeline:
    """Records the order of blocks on the device and in the engine."""

    def __init__(self) -> None:
        self.blocks: list[str] = []
        self.is_engine_running = False
        self.overlaps = 0

    async def time(self, repeat: int, min_repeat_sec: float, cpus: Sequence[int]) -> float:
        """Take a turn of the engine, as `Engine.time` does."""
        self.is_engine_running = True
        self.blocks.append(ENGINE)
        await asyncio.sleep(0.002)
        self.is_engine_running = False
        return 2e-6


def built(folder: Path, name: str) -> Artifact:
    path = folder / f"{name}.so"
    path.write_bytes(name.encode())
    return Artifact(path=path, digest=digest_of(name.encode()))


def turns_of(device: SteadyDevice, builds: dict[str, Artifact], engine: object = None) -> ModelTurns:
    return ModelTurns(device=device, builds=builds, engine=engine, inputs=[()])  # type: ignore[arg-type]


async def test_each_round_has_one_block_of_each_program(tmp_path: Path) -> None:
    """The order is random, engine and device never run together, and a failing program takes no part."""
    timeline = Timeline()
    builds = {name: built(tmp_path, name) for name in ("static", "tuned", "broken")}
    names = {artifact.digest: name for name, artifact in builds.items()}

    def answer(_: int, asked: measurement_pb2.MeasureRequest) -> measurement_pb2.Measurement:
        name = names[asked.artifact_digest]
        timeline.blocks.append(name)
        timeline.overlaps += timeline.is_engine_running
        if name == "broken":
            return bad(asked, measurement_pb2.ERROR_KIND_RUN_FAILED)
        return good(asked, 1e-6 if name == "tuned" else 1.25e-6)

    agent = OddAgent()
    agent.answer = answer
    pairs = (("tuned", "static"), ("tuned", ENGINE), ("broken", "static"))
    rounds = Rounds(names=(*builds, ENGINE), pairs=pairs, budget_sec=math.inf, rng=random.Random(1))
    async with seated(agent=agent) as (_, device, _):
        await turns_of(device, builds, timeline).run(rounds)

    blocks = timeline.blocks[len(builds) :]  # each was loaded before
    taken = [tuple(blocks[start : start + 3]) for start in range(0, len(blocks), 3)]
    assert rounds.count == len(taken) == LOOKS[0]
    assert {tuple(sorted(one)) for one in taken} == {(ENGINE, "static", "tuned")}
    assert len(set(taken)) > 2
    assert timeline.overlaps == 0
    found = rounds.interval("tuned", "static")
    assert found is not None
    assert (found.low, found.high) == (pytest.approx(0.8), pytest.approx(0.8))


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (measurement_pb2.ERROR_KIND_UNSPECIFIED, Untuned(sec=3.0)),
        (measurement_pb2.ERROR_KIND_TIMEOUT, Untuned(above_sec=20.0)),
        (measurement_pb2.ERROR_KIND_OUT_OF_MEMORY, Untuned(problem="OUT_OF_MEMORY")),
    ],
)
async def test_an_untuned_model_runs_once_and_not_for_long(tmp_path: Path, error: int, found: Untuned) -> None:
    """It has time for two runs at ten times the static model's time each, and may run out of memory."""
    asked: list[measurement_pb2.MeasureRequest] = []

    def answer(_: int, request: measurement_pb2.MeasureRequest) -> measurement_pb2.Measurement:
        asked.append(request)
        return bad(request, error) if error else good(request, 3.0)

    agent = OddAgent()
    agent.answer = answer
    async with seated(agent=agent) as (_, device, _):
        untuned = await turns_of(device, {}).time_untuned(built(tmp_path, "untuned"), 2.0)

    assert dataclasses.astuple(untuned) == dataclasses.astuple(found)
    [request] = asked
    assert (request.evaluator.number, request.evaluator.repeat, request.evaluator.min_repeat_ms) == (1, 1, 0)
    assert 40 <= request.timeout.ToSeconds() <= 50
