"""The summary that a run stores in the library at its end: the whole model, in addition to its records.

The fields are those of `fleet.jobs.report.TuneReport`, as far as a page shows them. A field that a run of another
version did not write has its default.
"""

from __future__ import annotations

from dataclasses import dataclass

from fleet.base.plain import from_plain
from fleet.library import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """99 % confidence interval of a ratio of times."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EndOfModel:
    """The whole model's times [ms], and whether its answers are right; None: not measured."""

    untuned_ms: float | None = None
    static_ms: float | None = None
    """Time with static schedules."""

    tuned_ms: float | None = None
    onnxruntime_ms: float | None = None
    reference_ms: float | None = None
    """Time of the engine in `reference`."""

    reference: str = ""
    """Reference of the answers:  "onnxruntime", "torch", "ai_edge_litert", "untuned"; empty: nothing."""

    against_static: Interval | None = None
    """Tuned time over that with static schedules; None: the same program, or too few rounds in turns."""

    against_engine: Interval | None = None
    """Tuned time over the engine's."""

    max_abs_error: float | None = None
    tolerance: float | None = None
    weakness: str | None = None
    """Kind of an output with little information in agreement:  "constant", "vanishing", "not finite", "unchanged"."""

    is_right: bool = True
    message: str = ""
    """Difference of its answers, and the reason; empty: they agree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndOfWorkload:
    """One workload."""

    operator: str = ""
    note: str = ""
    """Why it got no more trials, or empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Summary of one device model."""

    device_model: str = ""
    workloads: tuple[EndOfWorkload, ...] = ()
    model: EndOfModel | None = None

    @property
    def notes(self) -> list[str]:
        """Why workloads got no more trials, each with its name for people."""
        return [f"{item.operator}: {item.note}" for item in self.workloads if item.note]


def endings_of(job: Job) -> tuple[Ending, ...]:
    """Return a job's summary for each device model; empty for one that has not ended.

    Raises:
        InvalidRequest: a program of another version wrote something else there.
    """
    found = (job.report or {}).get("reports")
    return tuple(from_plain(Ending, one) for one in found) if isinstance(found, list) else ()
