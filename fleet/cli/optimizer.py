"""`fleet optimizer serve|list`: optimizers that run submitted jobs."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from fleet.base.config import at_home
from fleet.base.settings import look_up
from fleet.cli import options
from fleet.cli.options import (
    BuildCacheGbOption,
    BuildCacheOption,
    ConnectTimeoutOption,
    DaskCertsOption,
    DaskOption,
    JsonOption,
    LibraryOption,
    TrackerOption,
)
from fleet.cli.shares import day_share
from fleet.cli.stored import existing_library, naming
from fleet.cli.tables import make_console, make_table
from fleet.cli.units import parsed_options, print_unit
from fleet.cli.watching import readable_progress
from fleet.library import JobState

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.callback()
def optimizer() -> None:
    """Run the jobs of a library: any number of optimizers share one library and one fleet."""


@app.command()
def serve(
    ctx: typer.Context,
    tracker: TrackerOption = None,
    library: LibraryOption = None,
    jobs: Annotated[int, typer.Option(min=1, metavar="N", help="Jobs that run at the same time.")] = 2,
    workers: options.WorkersOption = None,
    dask: DaskOption = None,
    dask_certs: DaskCertsOption = None,
    build_cache: BuildCacheOption = None,
    build_cache_gb: BuildCacheGbOption = options.DEFAULT_CACHE_GB,
    snapshots: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Search with the shared cost model of this optimizer (its --port), where its library cannot be "
            "reached. Default: the own library's.",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Serve the shared cost model on this port, to clients without access to the library; 0: a free one.",
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(help="Address to serve it on. Default: 127.0.0.1, with --allow-network all."),
    ] = None,
    allow_network: Annotated[bool, typer.Option("--allow-network", help="Serve it beyond this machine.")] = False,
    refresh: Annotated[
        float | None,
        typer.Option(
            parser=day_share,
            metavar="SHARE",
            help="Refresh the library while no job waits, on devices that nobody has queued for in the last minute: at "
            "most this share of a device's day, 10%. Default: not.",
        ),
    ] = None,
    metrics: options.MetricsOption = None,
    connect_timeout: ConnectTimeoutOption = 10.0,
) -> None:
    """Take jobs from the library and run them until Ctrl-C; what runs then goes back into the queue.

    It leases devices only while it measures. Killed at any moment, its jobs go on from their records, in the next one.

    Example: fleet optimizer serve --tracker 10.0.0.5:9290 --library postgresql://db/fleet
    """
    from fleet.base import logs
    from fleet.base.metrics import check_metrics
    from fleet.base.network import listening_host, refuse_network
    from fleet.building.cluster.address import ClusterAddress
    from fleet.optimizer.refreshing.idle import IdleRules
    from fleet.optimizer.serving.cost_model_service import ServingAddress
    from fleet.optimizer.serving.daemon import OptimizerOptions
    from fleet.optimizer.serving.daemon import serve as run

    logs.setup(options.settings(ctx).log_level or "info")
    serving_host = listening_host(host, is_network_allowed=allow_network)
    if port is not None and not allow_network:
        refuse_network(serving_host)
    check_metrics(metrics, is_network_allowed=allow_network)
    wanted = OptimizerOptions(
        tracker=options.tracker_address(tracker),
        library=library,
        jobs=jobs,
        workers=workers,
        build_cache=options.build_cache(build_cache, build_cache_gb),
        cluster=ClusterAddress(address=dask, certs=dask_certs) if dask else None,
        snapshots=snapshots,
        serves_at=None if port is None else ServingAddress(host=serving_host, port=port),
        connect_timeout_sec=connect_timeout,
        metrics=metrics,
        refresh=None if refresh is None else IdleRules(share=refresh),
    )

    options.run_service(run(wanted))


@app.command(context_settings={"ignore_unknown_options": True})
def unit(
    serve_options: Annotated[
        list[str] | None, typer.Argument(metavar="[-- OPTIONS]", help="Options of 'fleet optimizer serve'.")
    ] = None,
) -> None:
    """Print a systemd unit that keeps an optimizer running for its user, also after a restart of the machine.

    The unit names the tracker and the library that are configured now.

    Example: fleet optimizer unit -- --jobs 4 > ~/.config/systemd/user/fleet-optimizer.service
    """
    # Validate now: the optimizer would only refuse these options when the service starts.
    values = parsed_options(app, "serve", serve_options or [])
    values["--tracker"] = look_up("tracker", values.get("--tracker")).value
    values["--library"] = _located(look_up("library", values.get("--library")).value)
    words = [word for pair in values.items() for word in pair if word]
    print_unit("optimizer", "runs the jobs of a library", [sys.executable, "-m", "fleet", "optimizer", "serve", *words])


def _located(library: str) -> str:
    """Return a library's URL, or its path in any folder."""
    return library if "://" in library else str(at_home(Path(library)).resolve())


@app.command("list")
def list_(library: LibraryOption = None, json_output: JsonOption = False) -> None:
    """List the optimizers of a library that are alive, with their numbers of running jobs and of builders.

    The number of builders is known while a job runs.

    Example: fleet optimizer list
    """
    with existing_library(library) as opened:
        found = opened.queue.optimizers()
        jobs = [job for job in opened.jobs(None) if job.state is JobState.RUNNING]
    running = Counter(job.optimizer for job in jobs)
    builders = {job.optimizer: kind.builder_count for job in jobs for kind in readable_progress(job)}

    def counts(optimizer: str) -> dict[str, int | None]:
        return {"jobs": running[optimizer], "builders": builders.get(optimizer) or None}

    if json_output:
        names = ("name", "tracker", "holder", "host", "pid")
        rows = [{**{name: getattr(item, name) for name in names}, **counts(item.name)} for item in found]
        options.print_json({"optimizers": rows})
        return
    if not found:
        options.stderr().print(
            f"No optimizer runs for {opened.url}; start one: fleet optimizer serve{naming(opened.url)}"
        )
        return
    table = make_table(
        "optimizer", "jobs", "builders", "tracker", "holder", "process", left=frozenset({"tracker", "holder"})
    )
    for item in found:
        numbers = ["-" if count is None else str(count) for count in counts(item.name).values()]
        table.add_row(item.name, *numbers, item.tracker, item.holder, f"{item.host}:{item.pid}")
    make_console(is_wide=False).print(table)
