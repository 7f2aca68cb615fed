"""`fleet book SELECTOR --from TIME --for LENGTH`: keep devices free for a time in the future."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from fleet.base.moments import parse_moment
from fleet.base.quantities import count_text, parse_duration
from fleet.cli import completion_values, options
from fleet.cli.bookings import booking_line
from fleet.domain.bookings import MOST_BOOKED_DEVICES, booking_id, check_count, check_length, checked_start
from fleet.domain.leases import LONGEST_SEC
from fleet.domain.selectors import parse_selector
from fleet.errors import InvalidRequest
from fleet.wire.json_shape import booking_json

app = typer.Typer(add_completion=False)


@app.command()
def book(
    selector: Annotated[
        str,
        typer.Argument(
            help="Which devices will do: 'cpu', 'board=rpi4', 'name=pi4'.",
            autocompletion=completion_values.selectors,
        ),
    ],
    start: Annotated[
        str,
        typer.Option(
            "--from", metavar="TIME", help="The start: 14:00, '2026-11-30 14:00' or 2h from now. At most 30 days ahead."
        ),
    ],
    length: Annotated[str, typer.Option("--for", metavar="LENGTH", help="The length: 90m, 2h.")],
    count: Annotated[int, typer.Option(metavar="N", help=f"Number of devices: 1 to {MOST_BOOKED_DEVICES}.")] = 1,
    json_output: options.JsonOption = False,
    tracker: options.TrackerOption = None,
    connect_timeout: options.ConnectTimeoutOption = 10.0,
) -> None:
    """Book devices: from a moment on they are free for you.

    Until then they serve leases that end in time. Batch leases give way at the start; holders of other leases are told
    ten minutes before. Use a booking with 'fleet acquire --booking ID -- COMMAND', as often as you like until it ends.
    A device that you leave unused for ten minutes is released. List and cancel bookings with 'fleet bookings'.

    Example: fleet book board=rpi4 --from 14:00 --for 2h --count 2
    """
    length_sec = parse_duration(length)
    if length_sec is None:
        raise InvalidRequest(f"{length[:50]!r} is no length of time; write it like 90m or 2h")
    now_sec = time.time()
    starts_at_sec = checked_start(parse_moment(start, now_sec), now_sec)
    check_length(length_sec, LONGEST_SEC)
    check_count(count)
    parse_selector(selector)  # refuses bad values before it connects
    booking = options.query_tracker(
        tracker, connect_timeout, lambda client: client.book(selector, starts_at_sec, length_sec, count=count)
    )
    if json_output:
        options.print_json({"bookings": [booking_json(booking)]})
        return
    console = options.stderr()
    console.print(f"booked {count_text(booking.device_count, 'device')}: {booking_line(booking)}")
    console.print(f"use it: fleet acquire --booking {booking_id(booking.name)} -- COMMAND")
