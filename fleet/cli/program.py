"""`fleet program BITSTREAM --on SELECTOR`: loads a bitstream into a board's fabric."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fleet.base.digests import digest_of
from fleet.cli import completion_values, options, stepping
from fleet.cli.holding import check_command, run_holding
from fleet.client.device import Device
from fleet.errors import ConfigError

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def program(
    bitstream: Annotated[Path, typer.Argument(help="The .bit or .bin file.")],
    command: Annotated[
        list[str] | None, typer.Argument(help="After --: a command to run while the board is still held.")
    ] = None,
    on: Annotated[
        str,
        typer.Option(
            metavar="SELECTOR",
            help="Which board: 'kind=zynq', 'name=pynq-1'.",
            autocompletion=completion_values.selectors,
        ),
    ] = "kind=zynq",
    registers: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="YAML that describes its functions; see docs/how-to/boards/fabric.md."),
    ] = None,
    partial: Annotated[bool, typer.Option("--partial", help="It reconfigures only a part of the fabric.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Load it even when the fabric holds it already.")] = False,
    timeout: Annotated[
        float,
        typer.Option(
            parser=options.seconds_above_zero,
            metavar="SEC",
            help="The fabric has to come up within this time.",
        ),
    ] = 30.0,
    wait_timeout: stepping.WaitOption = None,
    tracker: options.TrackerOption = None,
    connect_timeout: options.ConnectTimeoutOption = 10.0,
    json_output: options.JsonOption = False,
) -> None:
    """Program a board's fabric.

    The bitstream outlives the lease: the board shows it as the label 'bitstream' until another is loaded or the board
    is restarted. Others get that board with --prefer 'bitstream=sha256:...', or hold it only when it is there with
    --on 'kind=zynq,bitstream=sha256:...'. A board that has it already is taken first, and nothing is loaded then.

    When the fabric does not come up, the last good bitstream is loaded again, and the message says so.

    Example: fleet program gemm.bit --on kind=zynq --registers gemm.yaml -- python measure.py
    """
    check_command(command or ())
    try:
        digest = digest_of(bitstream)
    except OSError as error:
        raise ConfigError(f"cannot read the bitstream {bitstream}: {error.strerror}") from error
    is_json = json_output

    async def work() -> int:
        address = options.tracker_address(tracker)
        async with (
            options.connected(
                address, connect_timeout_sec=connect_timeout, on_booking=options.booking_printer()
            ) as client,
            client.acquire(
                on, prefer=f"bitstream={digest}", wait_timeout_sec=wait_timeout, purpose=f"program {bitstream.name}"
            ) as device,
        ):
            was_loaded = await device.program(
                bitstream, registers=registers, partial=partial, force=force, timeout_sec=timeout
            )
            _show(device, digest, was_loaded=was_loaded, is_json=is_json)
            return await run_holding([device], client.address, command) if command else 0

    raise typer.Exit(options.run_until_signal(work()))


def _show(device: Device, digest: str, *, was_loaded: bool, is_json: bool) -> None:
    if is_json:
        options.print_json({"device": device.name, "bitstream": digest, "was_loaded": was_loaded})
        return
    done = "programmed with" if was_loaded else "holds already"
    print(f"{device.name} {done} {digest}", flush=True)
