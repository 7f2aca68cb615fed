"""`fleet workloads extract`: the programs of models, with the operators that they come from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from cross.targets.target import Target
from fleet.base.outputs import check_output
from fleet.cli import options
from fleet.cli.activity import working
from fleet.cli.one_worker import one_worker
from fleet.cli.tables import make_console, make_table
from fleet.export.targets import target_of
from fleet.fragments.faithful import Origin, origins_of_file
from fleet.fragments.workload_file import Coverage, workload_file
from fleet.models.confined import reading
from fleet.models.importers import title_of
from fleet.models.model import check_exists

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def workloads() -> None:
    """Keep programs of models with the operators that they come from."""


@app.command()
def extract(
    models: Annotated[
        list[Path], typer.Argument(metavar="MODEL...", help="Models: *.onnx, *.pt2, *.keras, *.tflite or hf:FOLDER.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write, as YAML.")],
    target: options.TargetOption = "host",
    json_output: options.JsonOption = False,
) -> None:
    """Write the programs of models to a file, each with the operators that it comes from.

    A program is kept if the operators around its costly one, lowered alone, give the same program. No device is needed.
    Prints how much of each model's operations these programs make up.

    Example: fleet workloads extract resnet50.onnx bert.onnx -o workloads.yaml
    """
    parsed = target_of(target)
    check_output(output)
    for model in models:
        check_exists(model)
    titles = Counter(map(title_of, models))
    found = {
        str(model) if titles[title_of(model)] > 1 else title_of(model): _origins(model, parsed)
        for model in dict.fromkeys(models)
    }
    output.write_text(workload_file(found, parsed))
    coverages = [Coverage.of(model, origins) for model, origins in found.items()]
    if json_output:
        options.print_json({"file": str(output), "models": [asdict(one) for one in coverages]})
    else:
        _print(coverages)


def _origins(model: Path, target: Target) -> list[Origin]:
    with working(f"lowering {model.name} and its parts"), one_worker(target) as worker:
        return worker.run(reading(origins_of_file, model), model, target)


def _print(coverages: Sequence[Coverage]) -> None:
    table = make_table("model", "programs", "kept", "operations", left=frozenset({"model"}))
    for one in coverages:
        table.add_row(one.model, str(one.programs), str(one.faithful), f"{one.operations:.1%}")
    make_console(is_wide=False).print(table)
