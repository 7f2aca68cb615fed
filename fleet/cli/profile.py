"""`fleet profile MODEL --on SELECTOR`: profiles a model on a device."""

from __future__ import annotations

from typing import Annotated

import typer

from fleet.cli import options, stepping
from fleet.cli.activity import working
from fleet.cli.profile_view import render_profile
from fleet.cli.shapes import parse_one_shape
from fleet.cli.tables import WideOption, make_console
from fleet.domain.selectors import parse_selector
from fleet.export.targets import target_of
from fleet.models.model import check_exists
from fleet.optimizer.profiling.profile import ModelProfile
from fleet.optimizer.profiling.run import ProfileOptions, profile_model

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def profile(
    ctx: typer.Context,
    model: options.ModelArgument,
    on: stepping.OnOption = None,
    prefer: options.PreferOption = "",
    alone: Annotated[
        bool, typer.Option("--alone/--no-alone", help="Build and time each operator alone, too, to compare with.")
    ] = True,
    untuned: Annotated[
        bool, typer.Option("--untuned", help="Do not look in the library: static schedules only.")
    ] = False,
    runs: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="Runs to time operators in. Default: as many as take about five seconds."),
    ] = None,
    library: options.LibraryOption = None,
    shape: options.ShapeOption = None,
    batch_size: options.BatchSizeOption = None,
    random_weights: Annotated[
        bool, typer.Option("--random-weights", help="Replace the weights by random ones, as fleet tune does.")
    ] = False,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="TARGET", help="A board ('fleet targets') or TVM target as JSON, instead of the device's own."
        ),
    ] = None,
    wait_timeout: stepping.WaitOption = None,
    tracker: stepping.FleetOption = None,
    private: options.PrivateOption = False,
    connect_timeout: options.ConnectTimeoutOption = 10.0,
    wide: WideOption = False,
    json_output: options.JsonOption = False,
) -> None:
    """Show where a model's time goes on a device.

    Builds the model with the best schedules of the library, as fleet tune does, and times every operator in its place
    in the model, and alone. Operators that are slower in the model than alone come first. Beside it: what the device
    can do at best, measured on it, and ONNX Runtime's own profile where the device is this machine.

    Example: fleet profile model.onnx --on name=pi4-03
    """
    check_exists(model)
    wanted = ProfileOptions(
        model=model,
        device_kind=parse_selector(options.selector_or_default(on)).kind,
        library=library,
        target=target_of(target) if target else None,
        shapes=parse_one_shape(shape or ()),
        input_batch_size=batch_size,
        random_weights=random_weights,
        runs=runs,
        measures_alone=alone,
        is_untuned=untuned,
    )
    address = options.running_fleet(ctx, tracker, private)
    holding = stepping.leased_device(
        on,
        tracker=address,
        connect_timeout_sec=connect_timeout,
        wait_timeout_sec=wait_timeout,
        purpose=f"profile {model.name}",
        prefer=prefer,
    )

    async def work() -> ModelProfile:
        with working(f"profiling {model.name}") as narrate:
            await stepping.check_device(on, tracker=address, connect_timeout_sec=connect_timeout)
            return await profile_model(wanted, holding, narrate)

    found = options.run(work())
    if json_output:
        options.print_json(found.to_json())
    else:
        console = make_console(is_wide=wide)
        console.print(render_profile(found, width=console.width))
