"""Drives the optimizer's core without any edge: effects are performed at once, by a script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from fleet.artifacts.artifact import Artifact
from fleet.building.built_candidate import BuiltCandidate
from fleet.domain.measuring import ErrorKind, Evaluator, Measurement, Trial
from fleet.domain.observation import Features
from fleet.domain.proving import Proof, ProofVerdict
from fleet.domain.scope import RecordScope
from fleet.domain.workload import Workload
from fleet.optimizer.conditions import Conditions
from fleet.optimizer.core import events as ev
from fleet.optimizer.core.candidates import Candidate
from fleet.optimizer.core.invariants import validate
from fleet.optimizer.core.progress import JobProgress, WorkloadProgress
from fleet.optimizer.core.state import JobCore
from fleet.optimizer.narrator import narrate

T = TypeVar("T")

Answer = Callable[[int, Trial], Measurement]
"""A device's answer to a trial; the number counts the rounds from 1."""


def workload(name: str = "w", *, weight: int = 1) -> Workload:
    return Workload(name=name, weight=weight, mod_json="{}", shash=name, flop=4.0, args=())


def known(name: str = "w", **facts: object) -> WorkloadProgress:
    return WorkloadProgress(workload=workload(name), **facts)  # type: ignore[arg-type]


def why_closed(item: WorkloadProgress) -> str:
    return narrate(item.closing)


def proposals(*digests: str, trace: str | None = None) -> tuple[Candidate, ...]:
    """Return proposals; the trace of each is its digest unless one is given."""
    return tuple(Candidate(digest=digest, trace_json=trace or digest) for digest in digests)


def find(effects: Sequence[object], kind: type[T]) -> list[T]:
    return [effect for effect in effects if isinstance(effect, kind)]


def conditions(evaluator: Evaluator | None = None, **changes: object) -> Conditions:
    facts: dict[str, object] = {
        "job_name": "jobs/1",
        "scope": RecordScope(target_json="{}", device_model="board", tvm_version=""),
        "device_fingerprint": "",
        "seed": 0,
        "batch_size": 4,
        "search_threads": 1,
        "enough": 100,
        "evaluator": evaluator or Evaluator(),
        "trial_timeout_sec": 1.0,
        "artifact_dir": Path(),
        "started_at": 0.0,
    }
    return Conditions(**(facts | changes))  # type: ignore[arg-type]


def artifact(name: str) -> Artifact:
    return Artifact(path=Path(name), digest=f"sha256:{name}")


def build(name: str, features: Features | None = None) -> BuiltCandidate:
    return BuiltCandidate(artifact=artifact(name), features=features)


def timed(_: int, trial: Trial) -> Measurement:
    return Measurement(candidate_id=trial.candidate_id, run_secs=(1.0,))


class Script:
    """A job with a pool, a device and a library that answer at once; `log` has all events and effects."""

    def __init__(
        self, *items: WorkloadProgress, total: int = 100, progress: JobProgress | None = None, **changes: object
    ) -> None:
        self.core = JobCore(progress)
        self.answer: Answer = timed
        self.verdicts: dict[str, ev.Verdict] = {}
        """By digest; RIGHT if missing."""

        self.proofs: dict[str, Proof] = {}
        """Proofs by digest of a candidate, or by trace of a known schedule."""

        self.unbuildable: set[str] = set()
        self.log: list[ev.Event | ev.Effect] = []
        self.taken: set[str] = set()
        """Candidates that another job measures."""

        self.rounds: list[list[str]] = []
        """Candidates of each Measure."""

        self.notices: list[str] = []
        self._records = 0
        self.core.start(conditions(**changes), total, items or [WorkloadProgress(workload=workload())])

    def feed(self, event: ev.Event) -> list[ev.Effect]:
        """Apply an event, check all invariants, and return its effects."""
        self.log.append(event)
        effects = self.core.apply(event)
        self.log += effects
        validate(self.core)
        return effects

    def run(self, event: ev.Event) -> None:
        """Let something happen and perform all that follows."""
        for effect in self.feed(event):
            self._perform(effect)

    def store(self, stored: ev.Stored) -> None:
        """Let a record be in the library, and check all invariants."""
        self.core.note_stored(stored)
        validate(self.core)

    def propose(self, *digests: str, shash: str = "w") -> None:
        """Make a round of candidates, measure it and check it. The trace of each is its digest."""
        self.run(ev.Proposed(shash, proposals(*digests)))
        self.run(ev.BatchWanted(shash, digests))

    def find(self, *digests: str, shash: str = "w") -> None:
        """Let a search find candidates. The trace of each is its digest."""
        self.run(ev.Found(shash, proposals(*digests)))

    def build_baseline(self, shash: str = "w") -> None:
        self.run(ev.BaselineBuilt(shash, artifact(f"{shash}-baseline")))

    def happened(self, kind: type) -> list[ev.Event | ev.Effect]:
        return [entry for entry in self.log if isinstance(entry, kind)]

    def _perform(self, effect: ev.Effect) -> None:
        match effect:
            case ev.Claim():
                ours = tuple(one for one in effect.proposals if one.digest not in self.taken)
                taken = frozenset(one.digest for one in effect.proposals if one not in ours)
                self.run(ev.Proposed(effect.workload, ours, taken=taken))
            case ev.Build():
                for one in effect.proposals:
                    self.run(self._built(effect.workload, one.digest))
            case ev.Measure():
                self._measure(effect)
            case ev.Store():
                self._records += 1
                self.store(ev.Stored(effect, self._records, float(self._records)))
            case ev.CheckOutputs():
                shash, digest = effect.candidate.workload, effect.candidate.digest
                verdict = self.verdicts.get(digest, ev.Verdict.RIGHT)
                proof = self.proofs.get(digest) if effect.claimed_sec else None
                if proof is not None and proof.verdict is ProofVerdict.REFUTED:
                    verdict = ev.Verdict.NOT_PROVEN
                self.run(ev.Checked(shash, digest, verdict, "off by 3", proof))
            case ev.Prove():
                self.run(ev.Proven(effect, self.proofs[effect.trace_json]))
            case ev.Notice():
                self.notices.append(narrate(effect.news))
            case _:
                pass

    def _built(self, shash: str, digest: str) -> ev.Event:
        if digest in self.unbuildable:
            return ev.BuildFailed(shash, digest, ErrorKind.BUILD_FAILED, "no")
        return ev.Built(shash, digest, build(digest, np.zeros((1, 1), np.float32)))

    def _measure(self, effect: ev.Measure) -> None:
        self.rounds.append([trial.candidate_id for trial in effect.trials])
        device = self.core.progress.device_name
        number = len(self.rounds)
        for trial in effect.trials:
            self.run(ev.Measured(effect.batch, device, self.answer(number, trial)))
        self.run(ev.MeasureEnded(effect.batch, device, 1.0))


def secs(times: dict[str, float | Sequence[float]]) -> Answer:
    """Answer with these times by candidate; a sequence gives one for each round in which the candidate runs."""
    rounds: dict[str, int] = {}

    def answer(_: int, trial: Trial) -> Measurement:
        given = times[trial.candidate_id]
        index = rounds[trial.candidate_id] = rounds.get(trial.candidate_id, -1) + 1
        sec = given if isinstance(given, int | float) else given[min(index, len(given) - 1)]
        return Measurement(candidate_id=trial.candidate_id, run_secs=(sec,))

    return answer
