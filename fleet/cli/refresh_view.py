"""Output of `fleet library refresh`: a table for people, data for scripts."""

from __future__ import annotations

from fleet.base.quantities import count_text, elapsed_text
from fleet.base.text import sanitize
from fleet.cli.tables import line, make_console, make_table
from fleet.optimizer.comparing.intervals import RatioInterval
from fleet.optimizer.refreshing.report import Outcome, RefreshReport
from fleet.optimizer.refreshing.verdicts import Verdict

_QUIET = (Verdict.KEPT, Verdict.CARRIED)
"""Verdicts without a row of their own in the table."""


def refresh_data(found: RefreshReport) -> dict[str, object]:
    """Return the result of a refresh."""
    return {
        "device_model": found.scope.device_model,
        "target": found.scope.target_json,
        "tvm_version": found.scope.tvm_version,
        "is_dry_run": found.is_dry_run,
        "records_carried": found.carried,
        "refused_fragments": found.refused_fragments,
        "workloads_to_measure": found.to_measure,
        "expected_device_sec": round(found.expected_sec, 6),
        "device_sec": round(found.device_sec, 6),
        "environment": _interval_data(found.environment),
        "verdicts": {verdict.value: count for verdict, count in found.counts.items()},
        "workloads": [_outcome_data(one) for one in found.outcomes],
        "problem": str(found.problem) if found.problem is not None else "",
    }


def print_refresh(found: RefreshReport) -> None:
    """Print a row for each workload with news, and the counts."""
    console = make_console(is_wide=False)
    table = make_table("workload", "verdict", "ratio", "interval", left=frozenset({"workload", "verdict"}))
    news = [one for one in found.outcomes if one.verdict not in _QUIET or one.new_shash]
    for one in news:
        ratio = "" if one.ratio is None else f"{one.ratio:.3f}"
        verdict = f"{one.verdict.value}, new program" if one.new_shash else one.verdict.value
        table.add_row(line(one.operator), line(verdict), ratio, _interval_text(one.code))
    if news and not found.is_dry_run:
        console.print(table)
    for note in _notes(found):
        console.print(note)


def _notes(found: RefreshReport) -> list[str]:
    cost = f"{elapsed_text(found.expected_sec)} of device time"
    if found.is_dry_run:
        measured = f"{count_text(found.to_measure, 'workload')} would be measured; with the sentinels about {cost}"
        return [f"{count_text(found.carried, 'record')} would be carried; {measured}", *_notes_on_programs(found)]
    counts = ", ".join(f"{count} {verdict.value}" for verdict, count in found.counts.items() if count)
    notes = [f"{count_text(len(found.outcomes), 'workload')}: {counts}"]
    if found.environment is not None:
        notes.append(f"environment: old code takes {found.environment.ratio:.3f} of its time of then")
    notes += _notes_on_programs(found)
    return [*notes, f"{count_text(found.carried, 'record')} carried, {elapsed_text(found.device_sec)} of device time"]


def _notes_on_programs(found: RefreshReport) -> list[str]:
    notes = []
    if found.new_programs:
        notes.append(f"another program than before: {count_text(found.new_programs, 'workload')}")
    if found.refused_fragments:
        notes.append(f"{count_text(found.refused_fragments, 'fragment')} refused; the first: {sanitize(found.refusal)}")
    return notes


def _outcome_data(one: Outcome) -> dict[str, object]:
    return {
        "shash": one.shash,
        "new_shash": one.new_shash,
        "operator": one.operator,
        "models_sec": one.models_sec,
        "verdict": one.verdict.value,
        "old_digest": one.old_digest,
        "new_digest": one.new_digest,
        "ratio": one.ratio,
        "code": _interval_data(one.code),
        "problem": one.problem,
    }


def _interval_data(found: RatioInterval | None) -> dict[str, float] | None:
    return None if found is None else {"ratio": found.ratio, "low": found.low, "high": found.high}


def _interval_text(found: RatioInterval | None) -> str:
    return "" if found is None else f"{found.low:.3f} to {found.high:.3f}"
