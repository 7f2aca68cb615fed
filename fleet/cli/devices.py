"""`fleet devices`: hardware of the fleet."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from fleet.base.quantities import size_text
from fleet.cli import completion_values, health, options
from fleet.cli.device_words import matching, own_labels
from fleet.cli.groups import ListingGroup
from fleet.cli.tables import make_console
from fleet.dashboard import formatting
from fleet.dashboard.chart import render_history
from fleet.dashboard.columns import state_text
from fleet.dashboard.details import device_details
from fleet.domain.devices import DeviceStatus, Telemetry
from fleet.domain.selectors import parse_selector
from fleet.domain.snapshot import Snapshot
from fleet.errors import NotFound
from fleet.wire.json_shape import device_json, telemetry_json

if TYPE_CHECKING:
    from fleet.client.aio import Fleet

_WIDE = 100
"""Width [columns] below which less important columns are left out."""

_WIDEST_CHART = 120
"""An hour in more columns than that shows no more [columns]."""

app = typer.Typer(
    cls=ListingGroup,
    invoke_without_command=True,
    add_completion=False,
    subcommand_metavar="[SELECTOR] | COMMAND [ARGS]...",
)


@app.callback()
def devices(
    ctx: typer.Context,
    json_output: options.JsonOption = False,
    tracker: options.TrackerOption = None,
    connect_timeout: options.ConnectTimeoutOption = 10.0,
) -> None:
    """List the fleet's devices with what selectors can ask for, all or those that a selector matches.

    Example: fleet devices 'kind=cpu,rack=3' --json | jq -r '.devices[].name'
    """
    if ctx.invoked_subcommand is None:
        _list(ctx, None, json_output, tracker, connect_timeout)


@app.command("list", hidden=True)
def list_matching(
    ctx: typer.Context,
    selector: Annotated[
        str, typer.Argument(help="Which devices: 'cpu', 'kind=cpu,rack=3'.", autocompletion=completion_values.selectors)
    ],
    json_output: options.JsonOption = False,
    tracker: options.TrackerOption = None,
    connect_timeout: options.ConnectTimeoutOption = 10.0,
) -> None:
    """List the devices that a selector matches.

    Example: fleet devices 'kind=cpu,rack=3'
    """
    parse_selector(selector)  # reject a malformed selector before connecting
    _list(ctx, selector, json_output, tracker, connect_timeout)


def _list(
    ctx: typer.Context, selector: str | None, as_json: bool, tracker: str | None, connect_timeout_sec: float
) -> None:
    known = options.query_tracker(tracker, connect_timeout_sec, lambda client: client.snapshot()).devices
    found = known if selector is None else _matching(ctx, selector, known)
    shown = sorted(found, key=_by_name)
    if as_json:
        options.print_json({"devices": list(map(device_json, shown))})
        return
    console = make_console(is_wide=False)
    if not known:
        console.print("no devices; attach one with: fleet agent serve --tracker HOST:PORT")
    elif not shown:
        hint = "fleet devices show NAME shows one by its name, fleet devices all of them"
        console.print(f"none of {len(known)} devices matches {selector!r}; {hint}")
    else:
        console.print(_table(shown, is_wide=console.width >= _WIDE))


def _matching(ctx: typer.Context, selector: str, known: Sequence[DeviceStatus]) -> list[DeviceStatus]:
    group: Any = ctx.parent.command if ctx.parent is not None else None
    commands = [name for name, command in group.commands.items() if not command.hidden]
    kinds = {driver.name for driver in entry_points(group="fleet.drivers")}
    return matching(selector, known, commands=commands, kinds=kinds)


def _by_name(device: DeviceStatus) -> tuple[tuple[str, int], ...]:
    return formatting.natural_key(device.name)


@app.command()
def show(
    name: options.DeviceArgument,
    json_output: options.JsonOption = False,
    tracker: options.TrackerOption = None,
    connect_timeout: options.ConnectTimeoutOption = 10.0,
) -> None:
    """Show all that is known about one device, with its last hour: temperature, clock, and the reference kernel.

    Example: fleet devices show pi4-03
    """
    snapshot, history = options.query_tracker(tracker, connect_timeout, lambda client: _with_history(client, name))
    device = next((device for device in snapshot.devices if device.name == name), None)
    if device is None:
        known = ", ".join(formatting.short_name(device.name) for device in snapshot.devices) or "none"
        raise NotFound(f"there is no {name}; known are: {known}")
    if json_output:
        options.print_json({**device_json(device), "history": list(map(telemetry_json, history))})
        return
    console, now_sec = make_console(is_wide=False), snapshot.taken_at_sec
    console.print(device_details(device, now_sec, bookings=snapshot.bookings))
    console.print()
    console.print(render_history(history, now_sec, width=min(console.width, _WIDEST_CHART)))


@app.command()
def reset_epochs(
    name: options.DeviceArgument,
    json_output: options.JsonOption = False,
    tracker: options.TrackerOption = None,
    connect_timeout: options.ConnectTimeoutOption = 10.0,
) -> None:
    """Count a device's fencing numbers anew, after a forged one that none can follow.

    The device's lease ends; no earlier token becomes good again. A tracker whose key was stolen also needs a new one:
    stop it, move tracker.key out of its state directory, and start it again.

    Example: fleet devices reset-epochs pi4-03
    """

    epoch = options.query_tracker(tracker, connect_timeout, lambda client: client.reset_epochs(name))
    if json_output:
        options.print_json({"device": name, "epoch": epoch})
        return
    options.stderr().print(f"the epochs of {name} count from {epoch}")


for _command in health.COMMANDS:
    app.command()(_command)


async def _with_history(client: Fleet, device_name: str) -> tuple[Snapshot, list[Telemetry]]:
    snapshot = await client.snapshot()
    is_known = any(device.name == device_name for device in snapshot.devices)
    return snapshot, await client.history(device_name) if is_known else []


def _table(devices: Sequence[DeviceStatus], *, is_wide: bool) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("device", "kind", "state", "arch", "model", "cores", "memory"):
        table.add_column(column, overflow="fold", no_wrap=column in ("device", "state"))
    for column in ("tvm", "address") if is_wide else ():
        table.add_column(column)
    has_labels = any(map(own_labels, devices))
    if has_labels:
        table.add_column("labels", overflow="fold")
    for device in devices:
        inventory = device.inventory
        table.add_row(
            Text(formatting.short_name(device.name)),
            Text(inventory.kind),
            state_text(device),
            Text(inventory.labels.get("arch", "-")),
            Text(inventory.device_model or "-"),
            str(inventory.core_count or "-"),
            size_text(inventory.memory_bytes),
            *([Text(inventory.tvm_version or "-"), Text(device.address)] if is_wide else []),
            *([Text(own_labels(device) or "-")] if has_labels else []),
        )
    return table
