"""`fleet report`: shareable report of a tuning run, or of the whole library."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from fleet.base.text import printable
from fleet.cli import completion_values, options
from fleet.cli.activity import working
from fleet.cli.options import LibraryOption
from fleet.cli.stored import existing_library
from fleet.errors import ConfigError, InvalidRequest
from fleet.library import Library

if TYPE_CHECKING:
    from fleet.reports.library_report import LibraryReport
    from fleet.reports.report import Report

_FORMATS = {".html": "html", ".htm": "html", ".md": "markdown", ".svg": "svg"}
_LIBRARY, _WHOLE = "--library", "--whole-library"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class _ReportCommand(TyperCommand):
    """Reads `--library` without a value as `--whole-library`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _with_whole_library(args))


@app.command(cls=_ReportCommand)
def report(
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="[JOB]",
            help="Name of the job, with or without 'jobs/'. Default: the newest.",
            autocompletion=completion_values.jobs,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Default: stdout. *.html, *.md and *.svg say the format."),
    ] = None,
    format_: Annotated[
        Literal["html", "markdown", "svg", "text"] | None,
        typer.Option("--format", help="Default: by the file's ending, else text."),
    ] = None,
    library: LibraryOption = None,
    whole_library: Annotated[bool, typer.Option(_WHOLE, hidden=True, help="A report of the whole library.")] = False,
    json_output: options.JsonOption = False,
) -> None:
    """Write a page about a tuning run: curves, workloads, time spent on the devices, disturbances.

    The page is one self-contained file: send it, or keep it beside the model. Without a file, the curve is drawn in
    the terminal. --json prints the figures of the page; with --format and no file, the page is printed instead.

    With --library and no value, the page is of the whole library: freshness, coverage, times by build, regressions.

    Example: fleet report 20261122-153000-ab12cd -o report.html
    """
    if whole_library and job is not None:
        raise InvalidRequest(f"{_LIBRARY} without a value reports all jobs; leave {job!r} out, or name a library")
    has_page = output is not None or format_ is not None
    chosen = format_ or _format_of(output)
    with working("reading the records"), existing_library(library) as opened:
        found, figures = _of_library(opened) if whole_library else _of_job(opened, job)
    if json_output and (output is not None or format_ is None):
        options.print_json(figures)
    if json_output and not has_page:
        return
    content = {"html": found.html, "markdown": found.markdown, "svg": found.plot, "text": found.text}[chosen]()
    if output is None:
        print(printable(content))
        return
    try:
        output.write_text(content, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {output}: {error.strerror}") from error
    options.stderr().print(f"{output}: {len(content.encode()) / 1e3:.0f} kB")


def _format_of(output: Path | None) -> str:
    if output is None:
        return "text"
    if output.suffix.lower() not in _FORMATS:
        known = ", ".join(_FORMATS)
        raise ConfigError(
            f"{output}: no format goes with {output.suffix or 'no ending'}; end it with {known}, or give --format"
        )
    return _FORMATS[output.suffix.lower()]


def _of_job(library: Library, job: str | None) -> tuple[Report, Mapping[str, object]]:
    from fleet.reports.data import as_data
    from fleet.reports.report import Report

    found = Report.of(library, job)
    return found, as_data(found.figures)


def _of_library(library: Library) -> tuple[LibraryReport, Mapping[str, object]]:
    from fleet.cli.freshness_view import freshness_data
    from fleet.optimizer.library_report import MAX_AGE, read_figures
    from fleet.reports.library_data import library_data
    from fleet.reports.library_report import LibraryReport

    figures = read_figures(library)
    freshness = freshness_data(figures.freshness, MAX_AGE.total_seconds(), None)
    return LibraryReport(figures), {"freshness": freshness, **library_data(figures)}


def _with_whole_library(args: Sequence[str]) -> list[str]:
    """Return a command line in which `--library` before another option, or at the end, is `--whole-library`."""
    pairs = itertools.pairwise([*args, "-"])
    return [_WHOLE if word == _LIBRARY and then.startswith("-") else word for word, then in pairs]
