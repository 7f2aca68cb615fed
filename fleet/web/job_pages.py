"""Jobs of a library as values for their pages. Calls block: pages run them in a thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fleet.dashboard.columns import JOB_STATES
from fleet.dashboard.formatting import short_name
from fleet.domain.jobs import JobState, trials_text
from fleet.library import Job, Library
from fleet.reports.plot import Svg, svg_plot
from fleet.reports.report import Report, panels_of, summary_of, workload_table
from fleet.web.tables import Datum, Grid, Heading, datum, grid_of_table
from fleet.web.views import job_href

_MOST_JOBS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPage:
    """A tuning run."""

    title: str
    summary: str
    curves: Sequence[tuple[str, Svg]]
    """Best time so far over trials and over time, for each device model."""
    workloads: Sequence[Grid]


class JobPages:
    """Jobs of one library. Opens it anew for each call, so that any thread may call."""

    def __init__(self, library: str | None) -> None:
        self._library = library

    def newest(self) -> Grid:
        """Return the newest jobs.

        Raises:
            LibraryError: the library cannot be used.
        """
        with Library.open_to_read(self._library) as library:
            jobs = library.jobs(limit=_MOST_JOBS)
        headings = [Heading("job"), Heading("model"), Heading("state"), Heading("trials", True), Heading("started")]
        rows = list(map(_job_row, jobs))
        return Grid(title="in the library", headings=headings, rows=rows, empty="this library has no jobs")

    def job(self, name: str) -> JobPage:
        """Return a job by its short name.

        Raises:
            NotFound: the library does not have it.
            LibraryError: the library cannot be used.
        """
        with Library.open_to_read(self._library) as library:
            figures = Report.of(library, name).figures
        panels = [
            (one.device_model, panel)
            for one in figures.by_device
            for panel in panels_of("all operators", one.model_curve, figures.lasted_sec)
        ]
        return JobPage(
            title=figures.job.title,
            summary=summary_of(figures),
            curves=[(f"{model}, {panel.title}", svg_plot(panel)) for model, panel in panels],
            workloads=[grid_of_table(workload_table(one), one.device_model) for one in figures.by_device],
        )


def _job_row(job: Job) -> Sequence[Datum]:
    return [
        Datum(short_name(job.name), "", job_href(job.name)),
        Datum(job.title),
        datum(JOB_STATES[JobState(job.state)]),
        Datum(trials_text(job.trials_done, 0)),
        Datum(f"{job.started_at.astimezone():%Y-%m-%d %H:%M}"),
    ]
