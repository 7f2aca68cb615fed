"""`fleet time ARTIFACT --on SELECTOR`: how long a function of an artifact takes on a device."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fleet.artifacts import Artifact
from fleet.cli import options, stepping
from fleet.client.device import Device
from fleet.measuring import Measurement, spread

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def time(
    ctx: typer.Context,
    artifact: stepping.ArtifactArgument,
    on: stepping.OnOption = None,
    prefer: options.PreferOption = "",
    function: stepping.FunctionOption = None,
    args: stepping.ArgsOption = None,
    number: Annotated[int, typer.Option(min=1, help="Runs averaged into one repeat, at least.")] = 1,
    repeat: Annotated[int, typer.Option(min=1, help="Repeats.")] = 5,
    min_repeat_ms: Annotated[int, typer.Option(min=0, help="Let each repeat last this many milliseconds.")] = 50,
    max_repeat: Annotated[
        int, typer.Option(min=0, help="Go on repeating up to this often until the spread is small; 0: do not.")
    ] = 0,
    spread_target: Annotated[float, typer.Option(min=0.0, help="A spread small enough for --max-repeat.")] = 0.03,
    cooldown_ms: Annotated[int, typer.Option(min=0, help="Rest between repeats, in milliseconds.")] = 0,
    cool_below_c: Annotated[
        float,
        typer.Option(
            min=0.0, help="Before the first run, wait until the device is this cool, in degrees Celsius; 0: do not."
        ),
    ] = 0.0,
    flush_l2_bytes: Annotated[
        int, typer.Option(min=0, help="Write through this many bytes between runs, so that caches are cold; 0: do not.")
    ] = 0,
    flush_cpu_cache: Annotated[
        bool, typer.Option("--flush-cpu-cache", help="Flush the arguments but the first from the CPU's cache.")
    ] = False,
    timeout: stepping.TimeoutOption = 60.0,
    wait_timeout: stepping.WaitOption = None,
    tracker: stepping.FleetOption = None,
    connect_timeout: options.ConnectTimeoutOption = 10.0,
    json_output: options.JsonOption = False,
) -> None:
    """Time a function of an artifact on a device.

    The arguments are filled with random numbers on the device. Without --tracker, a tracker and an agent are started
    for this machine and stopped at the end.

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
        "cache_flush_bytes": flush_l2_bytes,
        "flush_cpu_cache": flush_cpu_cache,
    }
    wish = stepping.Wish(
        selector=on,
        tracker=options.tracker_address(ctx, tracker),
        connect_timeout_sec=connect_timeout,
        wait_timeout_sec=wait_timeout,
        purpose=f"time {artifact.name}",
        prefer=prefer,
    )

    async def work() -> dict[str, Any]:
        async with stepping.leased_device(wish) as device:
            measurement = await device.load(loaded).time(None, given, timeout_sec=timeout, **evaluator)
            return result(loaded, given, device, measurement)

    found = options.run(work())
    if options.wants_json(ctx, json_output):
        options.print_json(found)
    else:
        Console().print(table(found))


def result(
    artifact: Artifact, given: list[stepping.ArgumentValue] | None, device: Device, measurement: Measurement
) -> dict[str, Any]:
    """Return what was found, JSON-ready."""
    clocks = measurement.clocks
    return {
        "artifact": artifact.digest,
        "function": artifact.function,
        "args": [str(arg) for arg in given or artifact.args],
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


def table(found: dict[str, Any]) -> Table:
    """Return what was found, for people."""
    shown = Table(title=f"{found['function']}({', '.join(found['args'])})", title_justify="left", show_header=False)
    shown.add_column(style="bold")
    shown.add_column(overflow="fold")
    for name, text in _rows(found):
        shown.add_row(name, text)
    return shown


def duration_text(sec: float) -> str:
    """Return a time with the unit that suits it: "161 us"."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if sec * scale >= 1:
            return f"{sec * scale:.4g} {unit}"
    return f"{sec * 1e9:.4g} ns"


def _rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    provenance, clocks = found["provenance"], found["clocks"]
    before, after = provenance.get("before", {}), provenance.get("after", {})
    simulated = ", simulated" if found["is_simulated"] else ""
    rows = [
        ("device", f"{found['device']} ({found['device_model']}{simulated})"),
        ("median", f"{duration_text(found['median_sec'])} of {len(found['run_secs'])} repeats"),
        ("min, max", f"{duration_text(found['min_sec'])}, {duration_text(found['max_sec'])}"),
        ("spread", f"{found['spread']:.1%}"),
        ("timed by", found["time_source"]),
        ("waited", duration_text(clocks["wait_sec"])),
        ("loaded in", duration_text(clocks["load_sec"])),
        ("ran for", duration_text(clocks["run_sec"])),
        ("temperature", _change(before, after, "temp_c", 1.0, "degC")),
        ("clock", _change(before, after, "freq_hz", 1e-9, "GHz")),
        ("power", _change(before, after, "power_w", 1.0, "W")),
        ("caches flushed", str(provenance.get("flushed", ""))),
        ("disturbed by", "; ".join(provenance.get("disturbances", ()))),
    ]
    if found["run_cycles"]:
        rows.insert(2, ("cycles", ", ".join(map(str, found["run_cycles"]))))
    return [(name, text) for name, text in rows if text]


def _change(before: dict[str, Any], after: dict[str, Any], key: str, scale: float, unit: str) -> str:
    values = [f"{readings[key] * scale:.3g}" for readings in (before, after) if key in readings]
    return f"{' -> '.join(values)} {unit}" if values else ""
