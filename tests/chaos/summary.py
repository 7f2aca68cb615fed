"""The results of a run, for people and as JSON. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.chaos.checker import Finding, takeovers
from tests.chaos.history import Event, What


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The figures of one run."""

    seed: int
    took_sec: float
    faults: dict[str, int]
    """By kind."""
    grants: int
    sets: int
    """Sets that the tracker granted."""
    demands: int
    """Leases that the tracker asked to give way."""
    runs: int
    cut_off: int
    """Runs that ended with their worker."""
    lost: int
    """Leases and measurements that clients lost."""
    records: int
    """Acknowledged by the library."""
    takeovers: int
    calms: int
    slowest_service_sec: float
    """The longest time from the last fault of a storm until every client was served."""
    findings: list[str]


def summarize(seed: int, history: Sequence[Event], findings: Sequence[Finding]) -> Summary:
    """Count events, faults and findings."""
    count = Counter(event.what for event in history)
    times = [event.at_sec for event in history]
    faults = [event for event in history if event.what is What.FAULT and event.text.startswith("#")]
    return Summary(
        seed=seed,
        took_sec=max(times, default=0.0) - min(times, default=0.0),
        faults=dict(sorted(Counter(event.text.split()[1] for event in faults).items())),
        grants=count[What.GRANT],
        sets=len({event.of_set for event in history if event.of_set}),
        demands=count[What.DEMANDED],
        runs=count[What.BEGIN],
        cut_off=count[What.BEGIN] - count[What.END],
        lost=count[What.LOST],
        records=count[What.RECORDED],
        takeovers=len(takeovers(history)),
        calms=count[What.CALM],
        slowest_service_sec=max(map(_service_sec, _calms(history)), default=0.0),
        findings=[f"{finding.wrong}: {finding.text}" for finding in findings],
    )


def shown(summary: Summary) -> str:
    """Return the figures in a few lines."""
    faults = sum(summary.faults.values())
    by_kind = ", ".join(f"{count} {kind}" for kind, count in summary.faults.items())
    return "\n".join(
        [
            f"seed {summary.seed}, {summary.took_sec / 60:.1f} min: {faults} faults ({by_kind})",
            f"{summary.grants} grants, {summary.sets} sets of them, and {summary.demands} demands to give way",
            f"{summary.runs} runs logged by the devices, {summary.cut_off} of them cut off, "
            f"{summary.lost} losses told to clients, {summary.records} records acknowledged",
            *([f"{summary.takeovers} takeovers"] if summary.takeovers else []),
            f"{summary.calms} calms, everybody served within {summary.slowest_service_sec:.1f} s of the last fault",
            f"{len(summary.findings) or 'nothing'} wrong",
        ]
    )


def shown_finding(seed: int, history: Sequence[Event], finding: Finding) -> str:
    """Return a violation, the fault before it, and the log lines that show it."""
    at_sec = max((event.at_sec for event in finding.events), default=0.0)
    before = [event for event in history if event.what is What.FAULT and event.at_sec <= at_sec]
    last = max(before, key=lambda event: event.at_sec, default=None)
    after = f", after fault {last.text}" if last is not None else ""
    return "\n".join([f"{finding.wrong}: {finding.text} (seed {seed}{after})", *(f"  {e}" for e in finding.events)])


def _calms(history: Sequence[Event]) -> list[list[Event]]:
    """Return each calm with the clients served until the next."""
    calms = sorted((event for event in history if event.what is What.CALM), key=lambda event: event.at_sec)
    served = [event for event in history if event.what is What.SERVED]
    ends = [*(later.at_sec for _, later in pairwise(calms)), float("inf")]
    return [
        [calm, *(event for event in served if calm.at_sec <= event.at_sec < end)]
        for calm, end in zip(calms, ends, strict=True)
    ]


def _service_sec(calm: Sequence[Event]) -> float:
    """Return the time until each client had been served once."""
    first: dict[str, float] = {}
    for event in calm[1:]:
        if event.who in calm[0].names:
            first[event.who] = min(event.at_sec, first.get(event.who, event.at_sec))
    return max(first.values(), default=calm[0].at_sec) - calm[0].at_sec
