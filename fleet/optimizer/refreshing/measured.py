"""Workloads with programs that ran side by side, and the outcome of each workload. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fleet.optimizer.comparing.intervals import RatioInterval
from fleet.optimizer.refreshing.plan import Group, Program
from fleet.optimizer.refreshing.report import Outcome
from fleet.optimizer.refreshing.side_by_side import FORMER, SideBySide
from fleet.optimizer.refreshing.verdicts import Comparison, Verdict, proven_rival, unmeasured, verdict_on


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A workload's programs side by side."""

    group: Group
    turns: SideBySide
    programs: Mapping[str, Program]
    """Today's programs by name."""

    old_name: str
    """Name of the program that has the old code; empty: there is none."""

    wrong: Mapping[str, str] = field(default_factory=dict)
    """Programs with wrong numbers or refuted times, and the reasons."""

    @property
    def ratio_to_then(self) -> float | None:
        """Time of the old code, now over then; None if it did not run."""
        secs = self.turns.rounds.secs.get(self.old_name)
        return statistics.median(secs) / self.group.known.former.record.median_sec if secs else None

    @property
    def chosen(self) -> str:
        """Name of today's best program: another than the former best only if it is proven faster."""
        others = [name for name in self.programs if name != FORMER and name not in self.wrong]
        place = proven_rival([self.turns.rounds.interval(FORMER, name) for name in others])
        return FORMER if place is None else others[place]

    @property
    def code(self) -> RatioInterval | None:
        """Time of today's best program over that of the old code; None if it is that code, or that did not run."""
        if not self.old_name or self.chosen == self.old_name:
            return None
        return self.turns.rounds.interval(self.chosen, self.old_name)

    @property
    def ratio(self) -> float | None:
        """Today's time over that of the old code, else over the stored time; None if neither ran."""
        return self.code.ratio if self.code is not None else self.ratio_to_then

    @property
    def problem(self) -> str:
        """Message of the first error or wrong result, or empty."""
        return next(iter(self.wrong.values()), self.turns.problem)

    def verdict(self, environment: RatioInterval | None) -> Verdict:
        """Return the verdict; see `verdict_on`."""
        chosen = self.chosen
        if chosen in self.wrong:
            return Verdict.NO_VERDICT
        has_run = bool(self.turns.rounds.secs.get(FORMER))
        found = Comparison(
            is_same=has_run and self.old_name == FORMER,
            is_carried=self.group.is_carried,
            rival=None if chosen == FORMER else self.turns.rounds.interval(FORMER, chosen),
            code=self.code,
        )
        return verdict_on(found, environment)


def outcome(group: Group, measured: Measured | None, environment: RatioInterval | None) -> Outcome:
    """Return the outcome of a workload.

    Args:
        measured: its programs; None: they were not measured.
        environment: see `verdict_on`.
    """
    former = group.former
    found = Outcome(
        shash=group.known.workload.shash,
        new_shash="" if group.before is None else group.workload.shash,
        operator=group.workload.operator,
        models_sec=group.item.models_sec,
        verdict=Verdict.NO_VERDICT if _is_open(group) else unmeasured(is_carried=group.is_carried),
        old_digest=group.known.former.making.object_digest,
        new_digest=former.build.artifact.object_digest if former.build is not None else "",
        problem=_why_open(group),
    )
    if measured is None:
        return found
    verdict = measured.verdict(environment)
    is_judged = verdict is not Verdict.NO_VERDICT
    return replace(
        found,
        verdict=verdict,
        new_digest=measured.programs[measured.chosen].build.artifact.object_digest,
        ratio=measured.ratio,
        code=measured.code,
        problem=measured.problem or ("" if is_judged else _why_unjudged(measured)),
    )


def _why_unjudged(measured: Measured) -> str:
    return "its old code is not kept" if measured.code is None else "its times vary too much"


def _is_open(group: Group) -> bool:
    return not group.programs or group.needs_measuring


def _why_open(group: Group) -> str:
    if not group.programs:
        return f"it does not build: {group.former.problem}"
    if group.before is not None:
        return "its program is new, and was not measured"
    return "its code changed, and was not measured" if group.needs_measuring else ""
