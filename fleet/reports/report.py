"""The report of a tuning run, as a page, as Markdown, or in a notebook.

fleet.report()              # in a notebook: the newest run
fleet.report("20261122-153000-ab12cd").plot()
"""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fleet.base.quantities import elapsed_text, time_text
from fleet.base.text import sanitize
from fleet.errors import NotFound
from fleet.library import Library, RecordKind
from fleet.reports.document import Block, Code, Heading, Paragraph, Picture, Table, to_fragment, to_html, to_markdown
from fleet.reports.figures import Curve, DeviceFigures, JobFigures, figures_of
from fleet.reports.plot import Panel, Svg, stacked, svg_plots, text_plot
from fleet.reports.run_summary import Ending
from fleet.reports.whole_model import intervals_of, times_line, times_of, times_table, verdict_on

_HOW_COUNTED = (
    "Curves show the least time that was measured so far; the table shows the times that count: the newest undisturbed "
    "one of the best candidate that was checked."
)
_MOST_NAMED = 3
"""Maximum number of listed operators without a time."""

_MOST_PANELS = 12
"""Maximum plots of single workloads: those in which the model spends most time."""

_OPTIONS = (
    ("--trials", "trials", None),
    ("--top", "top", None),
    ("--seed", "seed", 0),
    ("--strategy", "strategy", None),
    ("--batch-size", "input_batch_size", None),
    ("--batch", "batch_size", 8),
)
"""Options of `fleet tune`, each with its key in a job's conditions, and its default."""


@dataclass(frozen=True, slots=True)
class Report:
    """Report of one run. In a notebook it shows itself."""

    figures: JobFigures

    @classmethod
    def of(cls, library: Library, job: str | None = None) -> Report:
        """Read a run: by its name, with or without "jobs/", or the newest.

        Raises:
            NotFound: the library has no such job.
        """
        job_name = _newest(library) if job is None else f"jobs/{job.removeprefix('jobs/')}"
        summary = library.job(job_name)
        records = library.records(job_name=job_name, kinds=tuple(RecordKind), with_reverted=True)
        return cls(figures_of(summary, records))

    def html(self) -> str:
        """Return a self-contained HTML file."""
        return to_html(self._blocks(), title=self._title)

    def markdown(self) -> str:
        """Return the same as Markdown."""
        return to_markdown(self._blocks())

    def text(self) -> str:
        """Return the model's curve for a terminal, a plot for each device model, and the whole model's times."""
        parts = [
            f"{one.device_model}: the model's operators together, {_unit(one.model_curve.by_trial)[1]}\n"
            + text_plot({"best so far": _scaled(one.model_curve.by_trial)}, {}, first=0)
            for one in self.figures.by_device
            if _finite(one.model_curve.by_trial)
        ] or [f"{self.figures.job.name} has no curve: {_why_no_curve(self.figures)}"]
        return "\n\n".join([*parts, *map(times_line, times_of(self.figures))])

    def plot(self) -> Svg:
        """Return the curves as one picture: best over trials and over time, of the model and of its workloads.

        It is SVG text: a notebook shows it, and a file that it is written to is a picture.
        """
        return stacked([picture.svg for one in self.figures.by_device for picture in _pictures(one, self.figures)])

    def __repr__(self) -> str:
        job = self.figures.job
        return f"<Report of {job.name} {job.state}: {sanitize(job.title)}, {job.trials_done} trials>"

    def _repr_html_(self) -> str:
        return to_fragment(self._blocks())

    @property
    def _title(self) -> str:
        return f"Tuning {self.figures.job.title}"

    def _blocks(self) -> list[Block]:
        figures = self.figures
        blocks: list[Block] = [Heading(self._title, 1), Paragraph(summary_of(figures))]
        if times := times_of(figures):
            models = [one.model for one in figures.endings if one.model is not None]
            sentences = [text for model in models for text in (intervals_of(model), verdict_on(model))]
            blocks += [Heading("The whole model"), *map(times_table, times)]
            blocks += [Paragraph(text) for text in sentences if text]
        for one in figures.by_device:
            ending = next((each for each in figures.endings if each.device_model == one.device_model), Ending())
            blocks += [Heading(f"{one.device_model} ({', '.join(one.devices) or 'no device'})")]
            blocks += [*_pictures(one, figures), Paragraph(_HOW_COUNTED), workload_table(one)]
            blocks += map(Paragraph, ending.notes)
            blocks += [Heading("Where the time went", 3), _time_table(one, figures), Paragraph(_disturbed(one))]
        return [*blocks, Heading("Conditions"), _condition_table(figures), Heading("Again"), Code(_command(figures))]


def report(job: str | None = None, *, library: str | os.PathLike[str] | None = None) -> Report:
    """Return the report of a tuning run. In a notebook it shows itself.

    Args:
        job: name of the job, with or without "jobs/"; None: the newest.
        library: file or URL of the library; None: your own.

    Raises:
        NotFound: the library has no such job.
        LibraryError: the library cannot be used.
    """
    with Library.open_to_read(library) as opened:
        return Report.of(opened, job)


def _newest(library: Library) -> str:
    found = library.jobs(limit=1)
    if not found:
        raise NotFound(f"{library.url} has no jobs; `fleet tune` makes one")
    return found[0].name


def summary_of(figures: JobFigures) -> str:
    """Return state, trials, duration and author of a run in one sentence."""
    job = figures.job
    why = f" ({job.message})" if job.message else ""
    failed = f", {job.trials_failed} of them failed" if job.trials_failed else ""
    return (
        f"{job.name}, {job.state.value.lower()}{why}: {job.trials_done} trials{failed} in "
        f"{elapsed_text(figures.lasted_sec)}, begun {job.started_at:%Y-%m-%d %H:%M} UTC by {job.holder}."
    )


def _pictures(one: DeviceFigures, figures: JobFigures) -> list[Picture]:
    together = panels_of("all operators", one.model_curve, figures.lasted_sec)
    costly = sorted(one.curves.items(), key=lambda item: -_first(item[1]))[:_MOST_PANELS]
    each = [panel for name, curve in costly for panel in panels_of(name, curve, figures.lasted_sec)[:1]]
    found = (
        [Picture(svg_plots(together, title="Best time so far of the model's operators"), "the model")]
        if together
        else []
    )
    if each:
        found.append(Picture(svg_plots(each, title="Best time so far of each workload"), "the workloads"))
    return found


def panels_of(name: str, curve: Curve, lasted_sec: float) -> list[Panel]:
    """Return plots of a curve over trials and over time; none without a time."""
    panels = []
    if _finite(curve.by_trial):
        title = f"{name} [{_unit(curve.by_trial)[1]}]"
        values, last = {"best so far": _scaled(curve.by_trial)}, f"{len(curve.by_trial) - 1} trials"
        panels.append(Panel(title=title, curves=values, lines={}, first="0", last=last))
    if _finite(curve.by_time):
        title = f"{name} [{_unit(curve.by_time)[1]}]"
        values = {"best so far": _scaled(curve.by_time)}
        panels.append(Panel(title=title, curves=values, lines={}, first="0", last=elapsed_text(lasted_sec)))
    return panels


def workload_table(one: DeviceFigures) -> Table:
    """Return the workloads of a run on one device model."""
    entries = one.workloads
    columns = {
        "workload": [entry.workload.operator for entry in entries],
        "calls": [f"{entry.weight:g}" for entry in entries],
        "trials": [str(entry.trials) for entry in entries],
        "untuned": [_time(entry.untuned_sec) for entry in entries],
        "static": [_time(one.static_sec.get(entry.workload.shash)) for entry in entries],
        "best": [_time(entry.best_sec) for entry in entries],
        "speed-up": [_ratio(entry.untuned_sec, entry.best_sec) for entry in entries],
        "GFLOP/s": [_gflops(entry.workload.flop, entry.best_sec) for entry in entries],
        "failed": [", ".join(f"{count} {kind.value}" for kind, count in entry.errors.items()) for entry in entries],
    }
    return _filled(columns, words=frozenset({"failed"}))


def _filled(columns: Mapping[str, Sequence[str]], *, words: frozenset[str] = frozenset()) -> Table:
    """Return a table without empty columns."""
    known = {name: cells for name, cells in columns.items() if any(cells)}
    return Table(list(known), [list(cells) for cells in zip(*known.values(), strict=True)], words=words)


def _time_table(one: DeviceFigures, figures: JobFigures) -> Table:
    device_sec = sum(one.device_sec.values())
    rest_sec = max(0.0, figures.lasted_sec - device_sec)
    spent = [
        *((f"device: {what}", sec) for what, sec in one.device_sec.items()),
        ("search, builds and waiting", rest_sec),
    ]
    whole = max(figures.lasted_sec, device_sec) or 1.0
    return Table(["what", "seconds", "share"], [[what, f"{sec:.1f}", f"{sec / whole:.0%}"] for what, sec in spent])


def _disturbed(one: DeviceFigures) -> str:
    if not one.disturbances:
        return "Nothing disturbed the measurements."
    kinds = ", ".join(f"{count} by {kind.lower().replace('_', ' ')}" for kind, count in one.disturbances.items())
    return f"Disturbed measurements, used only where there is no undisturbed one: {kinds}."


def _condition_table(figures: JobFigures) -> Table:
    job = figures.job
    rows = [[key, str(value)] for key, value in job.conditions.items() if value not in (None, [], [{}], False)]
    rows.append(["tuner", job.tuner])
    if "tvm_version" not in job.conditions:
        rows.append(["tvm_version", ", ".join(figures.tvm_versions)])
    if "target_json" not in job.conditions:
        rows.append(["target_json", "; ".join(figures.targets)])
    return Table(["condition", "value"], [row for row in rows if row[1]], words=frozenset({"value"}))


def _command(figures: JobFigures) -> str:
    job, conditions = figures.job, figures.job.conditions
    parts = ["fleet", "tune", job.title, "--on", str(conditions.get("selector", "cpu"))]
    for option, key, usual in _OPTIONS:
        if conditions.get(key) not in (None, usual):
            parts += [option, str(conditions[key])]
    parts += _repeated("--tasks", conditions.get("tasks"))
    sets = conditions.get("shapes")
    for shapes in sets if isinstance(sets, list) else ():
        parts += _repeated("--shape", [f"{name}={','.join(map(str, shape))}" for name, shape in dict(shapes).items()])
    return shlex.join([*parts, *(["--random-weights"] if conditions.get("random_weights") else [])])


def _repeated(option: str, values: object) -> list[str]:
    return [word for value in values for word in (option, str(value))] if isinstance(values, list) else []


def _why_no_curve(figures: JobFigures) -> str:
    unknown = [name for one in figures.by_device for name, curve in one.curves.items() if not _finite(curve.by_trial)]
    if not unknown:
        return "it measured nothing"
    rest = f" and {len(unknown) - _MOST_NAMED} more" if len(unknown) > _MOST_NAMED else ""
    return f"no time is known of {', '.join(map(sanitize, unknown[:_MOST_NAMED]))}{rest}"


def _finite(values: Sequence[float]) -> bool:
    return any(map(math.isfinite, values))


def _first(curve: Curve) -> float:
    return next((value for value in curve.by_time if math.isfinite(value)), 0.0)


def _unit(values: Sequence[float]) -> tuple[float, str]:
    top = max((value for value in values if math.isfinite(value)), default=1.0)
    return (1e6, "us") if top < 1e-3 else (1e3, "ms")


def _scaled(values: Sequence[float]) -> list[float]:
    scale, _ = _unit(values)
    return [value * scale for value in values]


def _time(sec: float | None) -> str:
    return "" if sec is None else time_text(sec)


def _gflops(flop: float, sec: float | None) -> str:
    return f"{flop / sec / 1e9:.1f}" if flop and sec else ""


def _ratio(before: float | None, after: float | None) -> str:
    return f"{before / after:.2f}" if before and after else ""
