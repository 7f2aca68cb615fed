"""`fleet report`: shareable report of a tuning run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from fleet.base.text import printable
from fleet.cli import completion_values, options
from fleet.cli.activity import working
from fleet.cli.options import LibraryOption
from fleet.cli.stored import existing_library
from fleet.errors import ConfigError

_FORMATS = {".html": "html", ".htm": "html", ".md": "markdown", ".svg": "svg"}


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
    json_output: options.JsonOption = False,
) -> None:
    """Write a page about a tuning run: curves, workloads, time spent on the devices, disturbances.

    The page is one self-contained file: send it, or keep it beside the model. Without a file, the curve is drawn in
    the terminal. --json prints the figures of the page; with --format and no file, the page is printed instead.

    Example: fleet report 20261122-153000-ab12cd -o report.html
    """
    from fleet.reports.data import as_data
    from fleet.reports.report import Report

    has_page = output is not None or format_ is not None
    chosen = format_ or _format_of(output)
    with working("reading the job's records"), existing_library(library) as opened:
        found = Report.of(opened, job)
    if json_output and (output is not None or format_ is None):
        options.print_json(as_data(found.figures))
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
