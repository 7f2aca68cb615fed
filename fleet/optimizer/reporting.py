"""Summarises a tuning run as the values of `fleet.jobs.report`."""

from __future__ import annotations

import math
from collections.abc import Iterable

from fleet.domain.jobs import Remaining
from fleet.jobs.remaining import remaining
from fleet.jobs.report import DecisionReport, EndReport, OptionReport, PlacedReport, ProgressReport, WorkloadReport
from fleet.optimizer.core.progress import JobProgress, Phase, WorkloadProgress
from fleet.optimizer.narrator import narrate, reason_text, rest_text
from fleet.optimizer.prioritizer.values import Done, ProposedBatch
from fleet.optimizer.whole_model_tuning.selection import Placed


def report_progress(progress: JobProgress, *, elapsed_sec: float, done_before: int = 0) -> ProgressReport:
    """Summarise a running job."""
    return ProgressReport(
        activity=narrate(progress.activity),
        device=progress.device_name,
        snapshot=progress.snapshot,
        trials_done=done_before + progress.trials_done,
        trials_total=0 if progress.is_bound_by_time else done_before + progress.trials_total,
        trials_failed=progress.trials_failed,
        repeats=progress.repeats,
        charged_sec=progress.charged_sec,
        elapsed_sec=elapsed_sec,
        search_sec=progress.search_sec if math.isfinite(progress.search_sec) else None,
        left=time_left(progress, elapsed_sec),
        rest_share=rest_share(progress),
        workloads=report_workloads(progress),
        decisions=report_batches(progress, progress.decisions),
        plan=report_batches(progress, progress.planned),
    )


def time_left(progress: JobProgress, elapsed_sec: float) -> Remaining | None:
    """Return the expected time until the search ends; None if it is not known, or before and after the search."""
    if progress.phase is not Phase.SEARCH:
        return None
    trials_left = progress.trials_total - progress.trials_done
    return remaining(progress.results_at_sec, trials_left, limit_sec=max(0.0, progress.search_sec - elapsed_sec))


def rest_share(progress: JobProgress) -> float | None:
    """Return the share of the latency that the next tenth of the budget should gain; None as for `time_left`."""
    return progress.rest.share if progress.phase is Phase.SEARCH and progress.rest is not None else None


def report_end(progress: JobProgress) -> EndReport | None:
    """Return the reason for an early end of the search; None if there was none."""
    if not progress.is_ended_early or progress.rest is None:
        return None
    return EndReport(
        trials_asked=progress.trials_asked,
        gain_us=progress.rest.gain_sec * 1e6,
        latency_us=progress.rest.latency_sec * 1e6,
        sentence=rest_text(progress.rest),
    )


def report_batches(progress: JobProgress, batches: Iterable[ProposedBatch]) -> tuple[DecisionReport, ...]:
    """Return batches with their reasons in words, in the same order."""
    operators = {item.workload.shash: item.workload.operator for item in progress.workloads}
    return tuple(
        DecisionReport(
            operator=operators[batch.workload],
            count=batch.count,
            reason=batch.reason,
            sentence=reason_text(batch.reason),
        )
        for batch in batches
        if batch.workload in operators
    )


def report_workload(item: WorkloadProgress) -> WorkloadReport:
    """Summarise one workload."""
    found = item.best_sec if math.isfinite(item.best_sec) else None
    return WorkloadReport(
        name=item.workload.name,
        operator=item.workload.operator,
        weight=item.workload.weight,
        trials=item.trials,
        trials_before=item.trials_before,
        untuned_us=item.untuned_sec * 1e6 if math.isfinite(item.untuned_sec) else None,
        static_us=item.static_sec * 1e6 if math.isfinite(item.static_sec) else None,
        best_us=found * 1e6 if found else None,
        gflops=item.workload.flop / found / 1e9 if found and item.workload.flop else None,
        speedup=item.speedup if found and math.isfinite(item.untuned_sec) else None,
        uses_schedule=item.uses_schedule,
        weakness=item.weakness,
        errors={kind.value: count for kind, count in sorted(item.errors.items())},
        note="" if _ended_with_its_job(item) else narrate(item.closing),
        is_untuned_above=item.is_untuned_above,
    )


def _ended_with_its_job(item: WorkloadProgress) -> bool:
    """Return True if a workload was closed because its job ended early, which the job reports once."""
    finish = item.closing.finish if item.closing is not None else None
    return finish is not None and finish.done is Done.LITTLE_LEFT


def report_placed(item: Placed, *, is_confirmed: bool) -> PlacedReport:
    """Summarise one comparison in the model. Unless it was confirmed, the model has the schedule that is fastest
    alone.
    """
    chosen = item.chosen if is_confirmed else item.selection.options[0]
    secs = [(option, item.median_sec(option)) for option in item.selection.options]
    return PlacedReport(
        name=item.selection.workload.name,
        operator=item.selection.workload.operator,
        is_slower_in_place=item.is_slower_in_place,
        options=tuple(
            OptionReport(
                alone_us=option.median_sec * 1e6,
                in_place_us=sec * 1e6 if math.isfinite(sec) else None,
                is_static=option.is_static,
                is_chosen=option is chosen,
            )
            for option, sec in secs
        ),
    )


def report_workloads(progress: JobProgress) -> tuple[WorkloadReport, ...]:
    """Summarise all workloads, costliest first."""
    return tuple(map(report_workload, progress.workloads))
