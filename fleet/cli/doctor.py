"""`fleet doctor`: checks of this machine, with remedies for failed ones."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from fleet.base.findings import Finding, State
from fleet.cli import options
from fleet.cli.activity import working
from fleet.cli.checks import run_checks
from fleet.cli.tables import make_console, text_table

_STYLES = {State.OK: "green", State.WARNING: "yellow", State.PROBLEM: "bold red"}


def doctor(
    json_output: options.JsonOption = False,
    tracker: options.TrackerOption = None,
    quick: Annotated[bool, typer.Option("--quick", help="Skip the slow checks.")] = False,
) -> None:
    """Check this machine: versions, libraries, linkers, devices, ports, disk. Exit code 1 when there is a problem.

    Part of the fleet works in spite of a warning; a problem stops tuning on this machine.

    Example: fleet doctor --json | jq '.findings[] | select(.state != "ok")'
    """
    with working("checking this machine") as narrate:
        findings = run_checks(tracker, narrate, is_quick=quick)
    if json_output:
        options.print_json({"findings": [asdict(finding) for finding in findings]})
    else:
        make_console(is_wide=False).print(_table(findings))
    if any(finding.state is State.PROBLEM for finding in findings):
        raise typer.Exit(1)


def _table(findings: list[Finding]) -> Table:
    table = text_table("check", "state", "seen")
    for finding in findings:
        seen = Text(finding.seen)
        if finding.advice:
            seen.append(f"\n-> {finding.advice}", style="bold")
        table.add_row(finding.name, Text(finding.state.value, style=_STYLES[finding.state]), seen)
    return table
