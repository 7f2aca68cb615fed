"""`fleet time ARTIFACT --on SELECTOR`: times a function of an artifact on a device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer
from rich.table import Table

from fleet.artifacts.artifact import Artifact
from fleet.base.quantities import time_text
from fleet.cli import options, stepping
from fleet.cli.activity import working
from fleet.cli.tables import facts_table, make_console
from fleet.client.device import Device
from fleet.domain.measuring import MOST_RUNS, TIMING, Measurement, disturbances_in, spread

_MOST_NUMBER = 10**9
_MOST_MS = 24 * 3600 * 1000

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def time(
    ctx: typer.Context,
    artifact: stepping.ArtifactArgument,
    on: stepping.OnOption = None,
    prefer: options.PreferOption = "",
    function: stepping.FunctionOption = None,
    args: stepping.ArgsOption = None,
    number: Annotated[
        int, typer.Option(min=1, max=_MOST_NUMBER, help="Minimum number of runs averaged into one repeat.")
    ] = TIMING.number,
    repeat: Annotated[int, typer.Option(min=1, max=MOST_RUNS, help="Repeats.")] = TIMING.repeat,
    min_repeat_ms: Annotated[
        int, typer.Option(min=0, max=_MOST_MS, help="Let each repeat last this many milliseconds.")
    ] = TIMING.min_repeat_ms,
    max_repeat: Annotated[
        int,
        typer.Option(min=0, max=MOST_RUNS, help="Repeat up to this many times until the spread is small; 0: off."),
    ] = 0,
    spread_target: Annotated[
        float, typer.Option(min=0.0, callback=options.finite, help="The spread that is small enough for --max-repeat.")
    ] = TIMING.spread_target,
    cooldown_ms: Annotated[int, typer.Option(min=0, max=_MOST_MS, help="Rest between repeats, in milliseconds.")] = 0,
    cool_below_c: Annotated[
        float,
        typer.Option(
            min=0.0,
            callback=options.finite,
            help="Before the first run, wait until the device is this cool, in degrees Celsius; 0: do not.",
        ),
    ] = 0.0,
    flush_bytes: Annotated[
        int, typer.Option(min=0, help="Write through this many bytes between runs, so that caches are cold; 0: do not.")
    ] = 0,
    flush_cache: Annotated[
        bool,
        typer.Option("--flush-cache", help="Flush all arguments but the first from the CPU's cache."),
    ] = False,
    timeout: stepping.TimeoutOption = 60.0,
    wait_timeout: stepping.WaitOption = None,
    tracker: stepping.FleetOption = None,
    private: options.PrivateOption = False,
    connect_timeout: options.ConnectTimeoutOption = 10.0,
    json_output: options.JsonOption = False,
) -> None:
    """Time a function of an artifact on a device.

    The arguments are filled with random numbers on the device. Without a running tracker, it starts a tracker and an
    agent for this machine and stops them at the end.

    Example: fleet time matmul.so --on kind=cuda --min-repeat-ms 100
    """
    loaded = stepping.read_artifact(artifact, function)
    given = stepping.parse_arguments(args) if args else None
    if given is None:
        stepping.check_known(loaded)
    evaluator = {
        "number": number,
        "repeat": repeat,
        "min_repeat_ms": min_repeat_ms,
        "max_repeat": max_repeat,
        "spread_target": spread_target,
        "cooldown_interval_ms": cooldown_ms,
        "cool_below_c": cool_below_c,
        "flush_bytes": flush_bytes,
        "flush_cache": flush_cache,
    }
    holding = stepping.leased_device(
        on,
        tracker=options.running_fleet(ctx, tracker, private),
        connect_timeout_sec=connect_timeout,
        wait_timeout_sec=wait_timeout,
        purpose=f"time {artifact.name}",
        prefer=prefer,
    )

    async def work() -> tuple[Device, Measurement]:
        async with holding as device:
            return device, await device.load(loaded).time(None, given, timeout_sec=timeout, **evaluator)

    with working(f"timing {artifact.name}"):
        device, measurement = options.run(work())
    arguments = [str(arg) for arg in given or loaded.args]
    if json_output:
        options.print_json(result(loaded, arguments, device, measurement))
    else:
        make_console(is_wide=False).print(table(loaded, arguments, device, measurement))


def result(artifact: Artifact, arguments: list[str], device: Device, measurement: Measurement) -> dict[str, object]:
    """Return the timing, JSON-ready."""
    clocks = measurement.clocks
    return {
        "artifact": artifact.digest,
        "function": artifact.function,
        "args": arguments,
        "device": device.name,
        "device_model": device.inventory.device_model,
        "is_simulated": device.inventory.is_simulated,
        "median_sec": measurement.median_sec,
        "min_sec": min(measurement.run_secs),
        "max_sec": max(measurement.run_secs),
        "spread": spread(measurement.run_secs),
        "run_secs": list(measurement.run_secs),
        "time_source": measurement.time_source,
        "run_cycles": list(measurement.run_cycles),
        "clocks": {"wait_sec": clocks.wait_sec, "load_sec": clocks.load_sec, "run_sec": clocks.run_sec},
        "provenance": measurement.provenance,
    }


def table(artifact: Artifact, arguments: list[str], device: Device, measurement: Measurement) -> Table:
    """Return the timing as a table for people."""
    return facts_table(_rows(device, measurement), title=f"{artifact.function}({', '.join(arguments)})")


def _rows(device: Device, measurement: Measurement) -> list[tuple[str, str]]:
    run_secs, clocks, provenance = measurement.run_secs, measurement.clocks, measurement.provenance
    simulated = ", simulated" if device.inventory.is_simulated else ""
    return [
        ("device", f"{device.name} ({device.inventory.device_model}{simulated})"),
        ("median", f"{time_text(measurement.median_sec)} of {len(run_secs)} repeats"),
        ("cycles", ", ".join(map(str, measurement.run_cycles))),
        ("min, max", f"{time_text(min(run_secs))}, {time_text(max(run_secs))}"),
        ("spread", f"{spread(run_secs):.1%}"),
        ("timed by", measurement.time_source),
        ("waited for cores", time_text(clocks.wait_sec)),
        ("loading took", time_text(clocks.load_sec)),
        ("running took", time_text(clocks.run_sec)),
        ("temperature", _change(provenance, "temp_c", 1.0, "degC")),
        ("clock", _change(provenance, "freq_hz", 1e-9, "GHz")),
        ("power", _change(provenance, "power_w", 1.0, "W")),
        ("caches flushed", str(provenance.get("flushed", ""))),
        ("disturbed by", "; ".join(found.text for found in disturbances_in(provenance))),
    ]


def _change(provenance: Mapping[str, object], key: str, scale: float, unit: str) -> str:
    readings = [found for when in ("before", "after") if isinstance(found := provenance.get(when), Mapping)]
    values = [f"{found[key] * scale:.3g}" for found in readings if key in found]
    return f"{' -> '.join(values)} {unit}" if values else ""
