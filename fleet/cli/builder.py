"""`fleet builder certs|scheduler|serve|list`: remote machines that search and build for optimizers."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from fleet.base import logs
from fleet.base.config import at_home
from fleet.cli import options
from fleet.cli.options import BuildCacheGbOption, BuildCacheOption, DaskCertsOption
from fleet.cli.tables import make_console, make_table

app = typer.Typer(no_args_is_help=True, add_completion=False)

_PORT = 8786


@app.callback()
def builder() -> None:
    """Search and build on more machines than one: a Dask scheduler, and a builder on each."""


@app.command()
def certs(
    folder: Annotated[
        Path | None,
        typer.Argument(help="Folder for ca.pem, cert.pem and key.pem. Default: this account's own, see below."),
    ] = None,
) -> None:
    """Make the certificates of a cluster. Copy the folder to each of its machines, and to nobody else.

    Anyone with the key can run any code on all of them. 'fleet builder scheduler' makes certificates by itself, in
    ~/.local/state/tvm-fleet/credentials/builders. Every command uses these unless --dask-certs names others.

    Example: fleet builder certs ~/.config/fleet/builders
    """
    from fleet.building.cluster.address import own_certs
    from fleet.building.cluster.certs import make_certs

    folder = own_certs() if folder is None else at_home(folder)
    make_certs(folder)
    options.stderr().print(f"{folder} holds the cluster's key; copy it to the scheduler, the builders and optimizers")


@app.command()
def scheduler(
    ctx: typer.Context,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any.")] = _PORT,
    dask_certs: DaskCertsOption = None,
) -> None:
    """Run the Dask scheduler of optimizers and builders until Ctrl-C. The first start makes the certificates.

    Example: fleet builder scheduler --host 10.0.0.5
    """
    from fleet.building.cluster.serving import serve_scheduler

    def on_ready(address: str) -> None:
        print(f"scheduler listening on {address}", flush=True)

    _serve(ctx, serve_scheduler(host, port, dask_certs, on_ready))


@app.command()
def serve(
    ctx: typer.Context,
    dask: Annotated[str, typer.Option(envvar="FLEET_DASK", metavar="URL", help="The scheduler: tls://HOST:PORT.")],
    dask_certs: DaskCertsOption = None,
    workers: options.WorkersOption = None,
    build_cache: BuildCacheOption = None,
    build_cache_gb: BuildCacheGbOption = options.DEFAULT_CACHE_GB,
    host: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Address to listen on. Default: the local address of the route to the scheduler.",
        ),
    ] = None,
) -> None:
    """Search and build on this machine for a Dask cluster, until Ctrl-C. One per machine.

    Stopped or killed at any moment, it costs time: its tasks begin anew on another builder.

    Example: fleet builder serve --dask tls://10.0.0.5:8786
    """
    from fleet.building.cluster.address import ClusterAddress
    from fleet.building.cluster.serving import BuilderOptions, serve_builder

    wanted = BuilderOptions(
        cluster=ClusterAddress(address=dask, certs=dask_certs),
        workers=workers,
        host=host,
        cache=options.build_cache(build_cache, build_cache_gb),
    )

    def on_ready(address: str) -> None:
        print(f"builder joined as {address}", flush=True)

    _serve(ctx, serve_builder(wanted, on_ready))


@app.command("list")
def list_(
    dask: Annotated[str, typer.Option(envvar="FLEET_DASK", metavar="URL", help="The scheduler: tls://HOST:PORT.")],
    dask_certs: DaskCertsOption = None,
    json_output: options.JsonOption = False,
    connect_timeout: Annotated[
        float,
        typer.Option(parser=options.seconds, metavar="SEC", help="Give up when no scheduler answers for this long."),
    ] = 10.0,
) -> None:
    """List the builders of a cluster. Only builders with the versions installed here get work.

    Example: fleet builder list --dask tls://10.0.0.5:8786
    """
    from fleet.building.cluster.address import ClusterAddress
    from fleet.building.cluster.members import members

    found = options.run(members(ClusterAddress(address=dask, certs=dask_certs), connect_timeout))
    if json_output:
        options.print_json({"builders": [asdict(each) for each in found]})
        return
    if not found:
        options.stderr().print(f"No builder has joined {dask}; start one: fleet builder serve")
        return
    table = make_table("builder", "address", "processes", "has", left=frozenset({"builder", "address", "has"}))
    for each in found:
        note = "" if each.is_usable else " (not the version installed here)"
        table.add_row(f"{each.host}:{each.pid}", each.address, str(each.slots), each.versions + note)
    make_console(is_wide=False).print(table)


def _serve(ctx: typer.Context, work: Coroutine[Any, Any, None]) -> None:
    logs.setup(options.settings(ctx).log_level or "info")
    options.run_service(work)
