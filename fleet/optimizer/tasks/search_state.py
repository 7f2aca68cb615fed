"""Per-process state of one workload's search: the part of its own space made so far, programs, features.

All of it follows from the workload and the target alone, and is kept for the next round because it is costly: applying
a schedule takes 10 ms, its features 7 ms (a 3x3 convolution). A process that has kept nothing makes it anew, and
proposes the same.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from cross.targets.target import Target
from fleet.building.build_candidate import program_hash
from fleet.cost_model.features import extract_features
from fleet.domain.keys import trace_digest
from fleet.domain.observation import Features
from fleet.domain.origin import Origin, Source
from fleet.domain.trace_check import check_trace
from fleet.errors import InvalidRequest
from fleet.optimizer.core.candidates import Candidate
from fleet.spaces.design_space import Space, choice_text
from fleet.spaces.space import space_of
from fleet.workloads.traces import replay, trace_json
from fleet.workloads.workload import module_of

if TYPE_CHECKING:
    from tvm.s_tir import Schedule

_MOST_STATES = 64
"""Workloads that a process keeps; the state of one with a hundred candidates takes 1 MB."""


class SearchState:
    """One workload on one target."""

    def __init__(self, mod_json: str, target: Target) -> None:
        self.mod_json = mod_json
        self.target = target
        self._own: list[Candidate] = []
        self._programs: dict[bytes, int | None] = {}
        self._rest = self._applied(space_of(module_of(mod_json), target))

    def own_space(self) -> Iterator[Candidate]:
        """Yield the workload's own space in order, lazily.

        Raises:
            InvalidRequest: a schedule has a step that is not on the allowlist, or an installed rule fails.
        """
        for place in itertools.count():
            if place == len(self._own):
                with _unchecked_arguments():
                    made = next(self._rest, None)
                if made is None:
                    return
                check_trace(made.trace_json)  # rules of other packages may use steps that are forbidden in records
                self._own.append(made)
            yield self._own[place]

    def make_by_rules(self, schedule: Schedule, features: Features | None = None) -> Candidate:
        """Describe a schedule made by MetaSchedule's rules."""
        source = Source.RULES if schedule.trace.decisions else Source.STEPS
        return self.make(schedule, Origin(source=source), features)

    def make(self, schedule: Schedule, origin: Origin, features: Features | None = None) -> Candidate:
        """Describe an applied schedule."""
        trace, program = trace_json(schedule), program_hash(schedule)
        self._programs[_key(trace)] = program
        kept = schedule if features is None else None
        return Candidate(
            trace_json=trace,
            digest=trace_digest(trace),
            program=program,
            schedule=kept,
            origin=origin,
            features=features,
        )

    def program_of(self, trace: str) -> int | None:
        """Return the hash of a record's program; None if the trace does not fit the workload."""
        key = _key(trace)
        if key not in self._programs:
            with contextlib.suppress(InvalidRequest):
                self._programs[key] = program_hash(replay(module_of(self.mod_json), trace))
        return self._programs.setdefault(key, None)

    def with_features(self, candidates: Sequence[Candidate], *, threads: int) -> list[Candidate]:
        """Return candidates with their features. Those of the own space are computed once."""
        applied = {one.digest: one.schedule for one in candidates if one.schedule is not None}
        if not applied:
            return list(candidates)
        found = extract_features(self.mod_json, self.target, list(applied.values()), threads=threads)
        features = dict(zip(applied, found, strict=True))

        def with_its_own(one: Candidate) -> Candidate:
            return replace(one, features=features[one.digest], schedule=None) if one.digest in features else one

        self._own = list(map(with_its_own, self._own))
        return list(map(with_its_own, candidates))

    def _applied(self, space: Space | None) -> Iterator[Candidate]:
        """Yield the schedules of a space in its order."""
        if space is None or space.is_baseline:
            return
        made = space.schedules_at(range(len(space.choices)))
        for schedule, choice in zip(made, space.choices or (None,), strict=False):
            knobs = choice_text(choice) if choice is not None else ""
            yield self.make(schedule, Origin(source=Source.SPACE, knobs=knobs))


@contextlib.contextmanager
def _unchecked_arguments() -> Iterator[None]:
    """Disable TVM's run-time checks of schedules' arguments in this process, until the end of the block.

    Each step of a schedule compares its arguments with its annotations, in Python: a third of the time to apply one (6
    of 19 ms for a 3x3 convolution). Our code is type-checked. The steps' effects and errors stay the same.
    """
    from tvm.s_tir import Schedule

    checked = {name: method for name, method in vars(Schedule).items() if hasattr(method, "__wrapped__")}
    for name, method in checked.items():
        setattr(Schedule, name, method.__wrapped__)
    try:
        yield
    finally:
        for name, method in checked.items():
            setattr(Schedule, name, method)


@functools.lru_cache(maxsize=_MOST_STATES)
def state_of(mod_json: str, target: Target) -> SearchState:
    """Return this process's state of a workload."""
    return SearchState(mod_json, target)


def _key(trace: str) -> bytes:
    return hashlib.sha256(trace.encode()).digest()
