"""Candidates of matrix products, built without a search, for trying rules of measuring."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.common import say
from cross.pool.build_pool import BuildPool
from cross.targets.target import Target, host_target
from fleet.artifacts.artifact import Artifact
from fleet.building.build_candidate import BuildTask, build_candidate
from fleet.cost_model.scoring import Ranker
from fleet.errors import BuildError
from fleet.optimizer.tasks.evolution import Evolution
from fleet.optimizer.tasks.propose import ProposeTask, propose
from fleet.optimizer.tasks.search_state import SearchState
from fleet.workloads.programs import matmul

_TIMEOUT_SEC = 600.0


def built(sizes: Sequence[int], count: int, scratch: Path, seed: int) -> Iterator[tuple[str, list[Artifact]]]:
    """Yield candidates of matrix products in the order in which a search meets them, built."""
    target = host_target()
    with contextlib.closing(_Builders(target, scratch)) as builders:
        for size in sizes:
            workload = matmul(size)
            artifacts = builders.build(workload.mod_json, count, seed)
            say(f"{workload.name}: {len(artifacts)} candidates built")
            yield workload.name, artifacts


class _Builders:
    """Proposes and builds candidates in a pool."""

    def __init__(self, target: Target, out_dir: Path) -> None:
        self._target = target
        self._out_dir = out_dir
        self._pool = BuildPool(target=target)

    def build(self, mod_json: str, count: int, seed: int) -> list[Artifact]:
        """Return candidates of both spaces, the static schedule first; failed builds are left out."""
        task = ProposeTask(mod_json=mod_json, target=self._target, count=(count + 1) // 2, seed=seed)
        own = [proposal.trace_json for proposal in self._pool.submit_within(_TIMEOUT_SEC, propose, task).result()]
        rest = self._pool.submit_within(_TIMEOUT_SEC, sampled, mod_json, self._target, count - len(own), seed).result()
        mixed = random.Random(seed).sample(own[1:] + rest, len(own) - 1 + len(rest))
        futures = [
            self._pool.submit(
                build_candidate,
                BuildTask(
                    mod_json=mod_json,
                    target=self._target,
                    trace_json=trace,
                    out_dir=str(self._out_dir),
                    wants_features=False,
                ),
            )
            for trace in own[:1] + mixed
        ]
        built = []
        for future in futures:
            with contextlib.suppress(BuildError):
                built.append(future.result().artifact)
        return built

    def close(self) -> None:
        """End the workers."""
        self._pool.shutdown()


def sampled(mod_json: str, target: Target, count: int, seed: int) -> list[str]:
    """Return traces of MetaSchedule's own space, at random."""
    evolution = Evolution(
        state=SearchState(mod_json, target),
        parents=(),
        ranker=Ranker(None, None, records=0),
        population=max(2, count),
        generations=1,
        most=count,
        seed=seed,
    )
    return [found.trace_json for found in evolution.run()]
