"""Output of `fleet library stale`: a table for people, data for scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from fleet.base.quantities import count_text, elapsed_text
from fleet.base.text import sanitize
from fleet.cli.tables import line, make_table
from fleet.domain.freshness import Freshness, Part

if TYPE_CHECKING:
    from fleet.optimizer.refreshing.changed_code import JudgedCode


def freshness_data(found: Freshness, max_age_sec: float, judged: JudgedCode | None) -> dict[str, object]:
    """Return the freshness of a library.

    Args:
        judged: code and programs of its records; None: they are not judged.
    """
    return {
        "max_age_sec": max_age_sec,
        "all": _part_data(found.all, found),
        "stale": _part_data(found.stale, found),
        "reasons": {reason.value: _part_data(part, found) for reason, part in found.by_reason.items()},
        "unknown_environments": found.unknown_environments,
        "unknown_code": None if judged is None else len(judged.unknown),
        "unknown_programs": None if judged is None else len(judged.unknown_programs),
        "refused_fragments": None if judged is None else judged.refused,
    }


def print_freshness(found: Freshness, console: Console, judged: JudgedCode | None) -> None:
    """Print a row for each reason, one for the stale records and one for all."""
    table = make_table("reason", "records", "models' time", "refresh", left=frozenset({"reason"}))
    rows = [(reason.value, part) for reason, part in found.by_reason.items()]
    for name, part in (*rows, ("any of them", found.stale), ("all records", found.all)):
        share = _share(part, found)
        table.add_row(
            line(name), str(part.records), "-" if share is None else f"{share:.1%}", elapsed_text(part.device_sec)
        )
    console.print(table)
    for note in _notes(found, judged):
        console.print(note, style="dim")


def _notes(found: Freshness, judged: JudgedCode | None) -> list[str]:
    notes = ["refresh: device time to measure them again"]
    if judged is None:
        notes[0] += "; changed code and programs are not judged"
    else:
        notes += _notes_on_code(judged)
    if found.unknown_environments:
        notes.append(f"environment not known: {count_text(found.unknown_environments, 'record')}")
    if found.stale.without_device_sec:
        notes.append(f"device time not known: {count_text(found.stale.without_device_sec, 'stale record')}")
    return notes


def _notes_on_code(judged: JudgedCode) -> list[str]:
    notes = []
    if judged.unknown:
        notes.append(f"code not known: {count_text(len(judged.unknown), 'record')}")
    if judged.unknown_programs:
        notes.append(f"operators not known: {count_text(len(judged.unknown_programs), 'record')}")
    if judged.refused:
        notes.append(f"{count_text(judged.refused, 'fragment')} refused; the first: {sanitize(judged.refusal)}")
    return notes


def _part_data(part: Part, found: Freshness) -> dict[str, object]:
    return {
        "records": part.records,
        "models_time_share": _share(part, found),
        "device_sec": round(part.device_sec, 6),
        "without_device_sec": part.without_device_sec,
    }


def _share(part: Part, found: Freshness) -> float | None:
    """Return the share of all models' time; None if no model is known."""
    return part.models_sec / found.all.models_sec if found.all.models_sec else None
