"""`fleet workloads`: the programs of models with the operators that they come from, and mutations of these."""

from __future__ import annotations

import textwrap
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from cross.targets.target import Target
from fleet.base.outputs import check_output
from fleet.base.text import sanitize
from fleet.base.yaml_text import read_text
from fleet.cli import options
from fleet.cli.activity import working
from fleet.cli.one_worker import one_worker
from fleet.cli.tables import make_console, make_table
from fleet.errors import InvalidRequest
from fleet.export.targets import target_of
from fleet.fragments.faithful import Origin, origins_of_file
from fleet.fragments.mutations import mutations
from fleet.fragments.planning import Refusals
from fleet.fragments.rules import parse_rules
from fleet.fragments.workload_file import Coverage, to_text, workload_file
from fleet.fragments.workload_reading import read_workloads
from fleet.models.confined import reading
from fleet.models.importers import title_of
from fleet.models.model import check_exists

_BETWEEN_SEC = 5.0
_EXAMPLE_WIDTH = 120
_LARGEST_LIMIT = 100_000

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


@app.command()
def mutate(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Workloads of `fleet workloads extract`.")],
    rules: Annotated[Path, typer.Argument(metavar="RULES", help="Rules with match, set and where, as YAML.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write, as YAML.")],
    limit: Annotated[
        int, typer.Option(min=1, max=_LARGEST_LIMIT, help="Refuse rules that give more workloads.")
    ] = 2000,
    json_output: options.JsonOption = False,
) -> None:
    """Write workloads of other sizes and types, made by rules from those of a file.

    A new size reaches weights, biases and residuals, and TVM's inference checks the result. Prints how many were
    refused, by reason. No device is needed.

    Example: fleet workloads mutate workloads.yaml rules.yaml -o more.yaml --limit 500
    """
    check_output(output)
    parsed = parse_rules(read_text(rules), where=str(rules))
    source = read_workloads(file)
    refusals = Refusals()
    with working(f"lowering mutations of {file.name}") as say:
        found = mutations(source, parsed, limit=limit, refusals=refusals, report=_rarely(say))
    if found:
        output.write_text(to_text(found, source.target))
    shown = [
        {"reason": reason.value, "count": n, "example": refusals.examples[reason]}
        for reason, n in refusals.counts.items()
    ]
    if json_output:
        options.print_json({"file": str(output), "workloads": len(found), "refused": shown})
    else:
        _print_mutations(len(found), refusals)
    if not found:
        raise InvalidRequest(
            f"the rules give no workload, so {output} is not written; change them by the reasons above"
        )


def _rarely(say: Callable[[str], None]) -> Callable[[int, int], None]:
    """Return a function that reports numbers of finished and all mutations every five seconds."""
    told_at = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal told_at
        if time.monotonic() - told_at >= _BETWEEN_SEC:
            told_at = time.monotonic()
            say(f"lowered {done} of {total} mutations")

    return report


def _print_mutations(count: int, refusals: Refusals) -> None:
    table = make_table("mutations", "count", "example", left=frozenset({"mutations", "example"}))
    table.add_row("written", str(count), "")
    for reason, number in refusals.counts.items():
        table.add_row(reason.value, str(number), textwrap.shorten(sanitize(refusals.examples[reason]), _EXAMPLE_WIDTH))
    make_console(is_wide=False).print(table)


def _origins(model: Path, target: Target) -> list[Origin]:
    with working(f"lowering {model.name} and its parts"), one_worker(target) as worker:
        return worker.run(reading(origins_of_file, model), model, target)


def _print(coverages: Sequence[Coverage]) -> None:
    table = make_table("model", "programs", "kept", "operations", left=frozenset({"model"}))
    for one in coverages:
        table.add_row(one.model, str(one.programs), str(one.faithful), f"{one.operations:.1%}")
    make_console(is_wide=False).print(table)
