"""The whole model in a report: its times with each kind of schedules and in other engines, and its correctness."""

from __future__ import annotations

from collections.abc import Mapping

from fleet.base.quantities import time_text
from fleet.dashboard import formatting
from fleet.reports.document import Table
from fleet.reports.figures import JobFigures
from fleet.reports.run_summary import EndOfModel

_OTHER_ENGINE = "ONNX Runtime"


def times_of(figures: JobFigures) -> list[dict[str, float]]:
    """Return the whole model's times [ms] by program: from the run's summary, else as stored by older versions."""
    reported = [one.model for one in figures.endings if one.model is not None]
    times: list[dict[str, float | None]] = [
        {
            "untuned": model.untuned_ms,
            "static": model.static_ms,
            "tuned": model.tuned_ms,
            _engine(model): model.reference_ms or model.onnxruntime_ms,
        }
        for model in reported
    ] or [
        {"untuned": run.untuned_ms, "tuned": run.tuned_ms, _OTHER_ENGINE: run.onnxruntime_ms}
        for run in figures.model_runs
    ]
    return [{name: ms for name, ms in one.items() if ms is not None} for one in times]


def times_table(times: Mapping[str, float]) -> Table:
    """Return these times, and the untuned program's over each."""
    untuned_ms = times.get("untuned")
    rows = [
        [name, time_text(ms / 1e3), f"{untuned_ms / ms:.2f}" if untuned_ms and ms else ""] for name, ms in times.items()
    ]
    return Table(["program", "latency", "against untuned"], rows)


def intervals_of(model: EndOfModel) -> str:
    """Tell what share of the other programs' times the tuned one takes, each with its interval; empty: not known."""
    found = {"the static program's": model.against_static, f"{_engine(model)}'s": model.against_engine}
    shares = [f"{one.low:.2f} to {one.high:.2f} of {name}" for name, one in found.items() if one is not None]
    return f"In turns, the tuned program takes {' and '.join(shares)} time." if shares else ""


def times_line(times: Mapping[str, float]) -> str:
    """Return the whole model's times as one line."""
    return "the whole model: " + ", ".join(f"{name} {time_text(ms / 1e3)}" for name, ms in times.items())


def verdict_on(model: EndOfModel) -> str:
    """Tell whether the tuned model's answers are right; empty: nothing to compare with."""
    if not model.is_right:
        return f"WRONG: {model.message}"
    if model.weakness is not None:
        return f"Its answers were not checked: the output is {model.weakness}."
    if model.message:
        return f"It differs from {formatting.engine_name(model.reference)}: {model.message}"
    if model.max_abs_error is None:
        return ""
    allowed = "" if model.tolerance is None else f", {model.tolerance:.2g} allowed"
    found = f"largest difference {model.max_abs_error:.2g}{allowed}"
    return f"Its output agrees with {formatting.engine_name(model.reference)}: {found}."


def _engine(model: EndOfModel) -> str:
    return formatting.engine_name(model.reference) if model.reference not in ("", "untuned") else _OTHER_ENGINE
