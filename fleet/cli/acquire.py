"""`fleet acquire SELECTOR -- COMMAND`: run a command while holding a device."""

from __future__ import annotations

import asyncio
import shlex
import sys
import time
from datetime import datetime
from typing import Annotated

import typer

from fleet.cli import completion_values, options
from fleet.cli.groups import UsageError
from fleet.cli.holding import check_command, run_holding
from fleet.client.device import Device
from fleet.domain.health import HealthState
from fleet.domain.leases import LeaseClass, LeaseKeywords, PendingRequest, set_terms

app = typer.Typer(add_completion=False)


@app.command()
def acquire(
    selector: Annotated[
        str,
        typer.Argument(
            help="Which devices will do: 'cpu', 'arch=aarch64|armv7l,mem>=2GiB', 'name=pi4'. Not with --booking.",
            autocompletion=completion_values.selectors,
        ),
    ],
    command: Annotated[
        list[str] | None, typer.Argument(help="The command and its arguments, after --.", show_default=False)
    ] = None,
    also: Annotated[
        list[str] | None,
        typer.Option(
            "--and",
            metavar="SELECTOR",
            help="One more device, granted together with the others or not at all. Repeatable: at most 16 devices.",
            autocompletion=completion_values.selectors,
        ),
    ] = None,
    prefer: options.PreferOption = "",
    lease_class: Annotated[
        LeaseClass | None,
        typer.Option(
            "--class",
            metavar="CLASS",
            help="Higher classes are served first: interactive (2 h at most, two at once), normal, "
            "batch (ends when others need the device). "
            "Default: interactive on a terminal, normal in a script.",
            show_default=False,
        ),
    ] = None,
    priority: Annotated[
        int, typer.Option(help="Among the requests of your account, larger values are served first: -100 to 100.")
    ] = 0,
    ttl: Annotated[
        float,
        typer.Option(
            parser=options.seconds_above_zero,
            metavar="SEC",
            help="The device is free again this long after we vanish.",
        ),
    ] = 30.0,
    max_sec: Annotated[
        float | None,
        typer.Option(
            "--max",
            parser=options.seconds_above_zero,
            metavar="SEC",
            help="Hold it no longer than this, then end the command.",
        ),
    ] = None,
    wait_timeout: Annotated[
        float | None,
        typer.Option(
            parser=options.seconds,
            metavar="SEC",
            help="Give up when no device comes free. Default: wait for ever.",
        ),
    ] = None,
    booking: Annotated[
        str,
        typer.Option(
            metavar="ID",
            help="Take a device of your booking, see 'fleet book'. It has the selector, and the lease ends with it.",
            autocompletion=completion_values.bookings,
        ),
    ] = "",
    even_if: Annotated[
        HealthState | None,
        typer.Option(
            metavar="STATE",
            help="Take the device that the selector names although it is draining, quarantined, in maintenance or "
            "retired. For admins.",
            show_default=False,
        ),
    ] = None,
    tracker: options.TrackerOption = None,
    connect_timeout: options.ConnectTimeoutOption = 10.0,
    json_output: Annotated[
        bool,
        typer.Option(
            "--json", help="Print the lease and the command's exit code as JSON; the command's output goes to stderr."
        ),
    ] = False,
) -> None:
    """Wait for a device, or a set of devices, run a command while holding it, and give it back when the command ends.

    The command finds FLEET_LEASE, FLEET_DEVICE, FLEET_DEVICE_ADDRESS, FLEET_TRACKER and FLEET_TOKEN_FILE in its
    environment; Python code in it gets the device with `fleet.held_device()`. Further devices of a set have _2, _3 and
    so on after these names, and `fleet.held_device(2)`. Our exit code is the command's. When the
    lease is lost the command is ended and the exit code is 1. FLEET_FORMAT and --format json only affect the command
    that runs.

    Selectors compare labels by = and != (a*, a|b, none for no label), and numbers, sizes and versions by < <= > >=:
    cores>4, mem>=2GiB, tvm>=0.27, sm>=80. Quote them: the shell reads < > | and * itself.

    Example: fleet acquire cpu --wait-timeout 60 -- python measure.py

    Example: fleet acquire board=rpi4 --and gpu=mali -- python exchange.py

    Example: fleet acquire --booking t3wtc0 -- python demo.py
    """
    if booking:  # it has the selector, so all words are the command's
        selector, command = "*", [selector, *(command or ())]
    if not command:
        raise UsageError("Missing argument 'COMMAND...'.")
    check_command(command)
    console = options.stderr()
    selectors = (selector, *(also or ()))
    tell = options.waiting_printer(f"the booking {booking}" if booking else " and ".join(selectors))
    has_waited = False
    keywords = LeaseKeywords(
        lease_class=lease_class or (LeaseClass.INTERACTIVE if sys.stdin.isatty() else LeaseClass.NORMAL),
        prefer=prefer,
        priority=priority,
        ttl_sec=ttl,
        max_sec=max_sec,
        wait_timeout_sec=wait_timeout,
        purpose=shlex.join(command)[:200],
        even_if=even_if,
        booking=booking,
    )
    set_terms(selectors, **keywords)  # refuses bad values before it connects

    def on_queued(request: PendingRequest) -> None:
        nonlocal has_waited
        has_waited = True
        tell(request)

    async def work() -> int:
        began_sec = time.monotonic()
        address = options.tracker_address(tracker)
        async with (
            options.connected(
                address, connect_timeout_sec=connect_timeout, on_booking=options.booking_printer()
            ) as client,
            client.acquire_all(selectors, on_queued=on_queued, **keywords) as devices,
        ):
            if has_waited:
                console.print(f"got {', '.join(device.name for device in devices)}")
            granted_sec = time.monotonic()
            await asyncio.gather(*(device.open() for device in devices if device.inventory.has_before_lease))
            for device in devices:
                device.watch_yield(lambda device=device: console.print(_end_text(device)))  # type: ignore[misc]
            code = await run_holding(devices, client.address, command, has_stdout=not json_output)
        if json_output:
            options.print_json(
                {
                    "lease": devices[0].lease.name,
                    "device": devices[0].name,
                    "set": [{"lease": device.lease.name, "device": device.name} for device in devices],
                    "command": command,
                    "exit_code": code,
                    "wait_sec": granted_sec - began_sec,
                    "held_sec": time.monotonic() - granted_sec,
                }
            )
        return code

    raise typer.Exit(options.run_until_signal(work()))


def _end_text(device: Device) -> str:
    wanted = device.yield_wanted
    if wanted is None:
        return ""
    until = datetime.fromtimestamp(wanted.until_sec).strftime("%H:%M:%S")
    return f"{device.name} is taken back at {until}: {wanted.reason or 'a request of a higher class waits'}"
