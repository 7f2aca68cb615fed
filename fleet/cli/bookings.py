"""`fleet bookings`: bookings of devices, and their end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from fleet.base.local_time import span_text
from fleet.cli import completion_values, options
from fleet.cli.tables import make_console, text_table
from fleet.dashboard import formatting
from fleet.dashboard.columns import booked_devices, booking_state
from fleet.domain.bookings import Booking, booking_id
from fleet.errors import InvalidRequest
from fleet.wire.json_shape import booking_json

app = typer.Typer(invoke_without_command=True, add_completion=False)


@app.callback()
def bookings(
    ctx: typer.Context,
    json_output: options.JsonOption = False,
    tracker: options.TrackerOption = None,
    connect_timeout: options.ConnectTimeoutOption = 10.0,
) -> None:
    """List the bookings that have not ended, earliest start first. 'fleet book' makes one.

    Example: fleet bookings
    """
    if ctx.invoked_subcommand is not None:
        return
    found = options.query_tracker(tracker, connect_timeout, lambda client: client.bookings())
    if json_output:
        options.print_json({"bookings": list(map(booking_json, found))})
        return
    make_console(is_wide=False).print(_table(found) if found else "no bookings")


@app.command()
def cancel(
    booking: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="The booking, with or without 'bookings/'.",
            autocompletion=completion_values.bookings,
        ),
    ],
    json_output: options.JsonOption = False,
    tracker: options.TrackerOption = None,
    connect_timeout: options.ConnectTimeoutOption = 10.0,
) -> None:
    """Cancel a booking: one of your account, or any as an admin. Leases on its devices go on.

    Example: fleet bookings cancel t3wtc0
    """
    if not booking.strip():  # as from an unset variable
        raise InvalidRequest("name a booking by its id; 'fleet bookings' shows them")
    done = options.query_tracker(tracker, connect_timeout, lambda client: client.cancel_booking(booking))
    if json_output:
        options.print_json({"bookings": [booking_json(done)]})
        return
    options.stderr().print(f"cancelled {booking_line(done)}")


def booking_line(booking: Booking) -> str:
    """Return a booking in one line: "t3wtc0, board=rpi4, 14:00 to 16:00, planned on pi4-01"."""
    planned = ", ".join(map(formatting.short_name, booking.device_names)) or "no device"
    return f"{booking_id(booking.name)}, {booking.wanted}, {_time_text(booking)}, planned on {planned}"


def _table(found: Sequence[Booking]) -> Table:
    table, now_sec = text_table("booking", "wants", "time", "by", "devices", "state", whole=["booking"]), time.time()
    for booking in found:
        table.add_row(
            Text(booking_id(booking.name)),
            Text(booking.wanted),
            _time_text(booking),
            Text(booking.booked_by),
            Text(booked_devices(booking)),
            booking_state(booking, now_sec),
        )
    return table


def _time_text(booking: Booking) -> str:
    """Return start and end in local time."""
    return span_text(booking.starts_at_sec, booking.ends_at_sec, time.time())
