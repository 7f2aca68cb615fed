"""`fleet library refresh`: rebuilds the best schedules, and measures those with changed code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fleet.cli import completion_values, options, stepping
from fleet.cli.activity import working
from fleet.cli.device_words import named_selector, one_kind
from fleet.cli.shares import share
from fleet.library import Library

if TYPE_CHECKING:
    from fleet.optimizer.refreshing.report import RefreshReport


def refresh(
    on: Annotated[
        str,
        typer.Option(
            metavar="SELECTOR",
            autocompletion=completion_values.selectors,
            help="Devices of one model, of which the records are refreshed: 'model=pi4', 'name=pi4-03'.",
        ),
    ],
    minutes: Annotated[
        float | None,
        typer.Option(min=0.0, callback=options.finite, metavar="M", help="Begin no measurement after M minutes."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only build, and tell what would be carried and measured.")
    ] = False,
    fail_above: Annotated[
        float | None,
        typer.Option(
            parser=share, metavar="SHARE", help="End with exit code 1 if a slowdown above this is proven: 3%."
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Processes that build. Default: one per core.")
    ] = None,
    wait_timeout: stepping.WaitOption = None,
    tracker: options.TrackerOption = None,
    connect_timeout: options.ConnectTimeoutOption = 10.0,
    library: options.LibraryOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Let the best three schedules of each workload count for today's TVM and this version.

    All are built again. Those with the code of their record are carried: they keep time and date, and need no device.
    The others run beside the static schedule and, where it is kept, their old code, so that a slower time is blamed on
    the code or the device. If the operators behind a workload are lowered to another program by now, the schedules are
    adapted to it. Results are stored at once: a run that was stopped goes on.

    Example: fleet library refresh --on model=pi4 --minutes 20 --fail-above 3%
    """
    from fleet.cli.refresh_view import print_refresh, refresh_data
    from fleet.optimizer.refreshing.open import RefreshOptions, refresh

    async def work() -> RefreshReport:
        address = options.tracker_address(tracker)
        with working("refreshing the library") as narrate:
            async with options.connected(address, connect_timeout_sec=connect_timeout) as client:
                devices = (await client.snapshot()).devices
                wanted = RefreshOptions(
                    selector=named_selector(on, devices),
                    minutes=minutes,
                    is_dry_run=dry_run,
                    workers=workers,
                    wait_timeout_sec=wait_timeout,
                )
                return await refresh(opened, client, one_kind(on, devices), wanted, narrate)

    with Library.open(library) as opened:
        if not dry_run:
            opened.check_writable()
        found = options.run(work())
    if json_output:
        options.print_json(refresh_data(found))
    else:
        print_refresh(found)
    end(found, fail_above)


def end(found: RefreshReport, fail_above: float | None) -> None:
    """Raise the error that ended the measurements, or exit code 1 for a proven slowdown above the limit."""
    if found.problem is not None:
        raise found.problem
    if fail_above is not None and found.slower(fail_above):
        raise typer.Exit(1)
