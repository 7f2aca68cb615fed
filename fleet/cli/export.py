"""`fleet export`: compiles a whole model into one file that runs without a compiler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fleet.base.quantities import count_text
from fleet.cli import options
from fleet.cli.activity import working
from fleet.cli.answers_view import answers_line
from fleet.cli.explain_view import loop_nests_line
from fleet.cli.record_filters import MaxAgeOption, WhereOption, record_filter
from fleet.cli.shapes import parse_shapes
from fleet.cli.tables import facts_table, make_console
from fleet.dashboard.formatting import engine_name
from fleet.errors import ErrorKind, MeasurementError
from fleet.export.service import Exported, ExportOptions
from fleet.export.service import export as run_export
from fleet.export.targets import target_of
from fleet.models.importers import title_of
from fleet.runtime.manifest import MOST_THREADS, Affinity, Manifest, TensorType


def export(
    model: options.ModelArgument,
    target: options.TargetOption = "host",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE.fleet", help="Default: <model>.fleet here.")
    ] = None,
    library: options.LibraryOption = None,
    device_model: options.DeviceModelOption = None,
    max_age: MaxAgeOption = None,
    where: WhereOption = None,
    untuned: options.UntunedOption = False,
    shape: options.ShapeOption = None,
    batch_size: options.BatchSizeOption = None,
    threads: Annotated[
        int | None, typer.Option(min=1, max=MOST_THREADS, help="Threads that it runs on. Default: the target's cores.")
    ] = None,
    affinity: Annotated[
        Affinity,
        typer.Option(help="cores: where the threads fill the machine, each has a core of its own, as when tuned."),
    ] = Affinity.CORES,
    random_weights: Annotated[
        bool, typer.Option("--random-weights", help="Replace constant weights, so that the stored answers mean more.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of the inputs to check with, and of random weights.")] = 0,
    json_output: options.JsonOption = False,
) -> None:
    """Compile a whole model into one file that runs without a compiler.

    The file holds the library with its weights, what it takes and returns, how many threads it wants, which records of
    the library went into it, and inputs with the right answers. Load it with fleet.runtime.load in Python, or from C;
    check it on a device with fleet serve-check. Records that were not checked are not used.

    Example: fleet export model.onnx --target rpi4-64 -o model.fleet
    """
    wanted = ExportOptions(
        model=model,
        target=target_of(target),
        output=output or Path(f"{title_of(model)}.fleet"),
        library=library,
        within=record_filter(device_model=device_model, max_age=max_age, where=where),
        is_untuned=untuned,
        shapes=parse_shapes(shape or ()),
        input_batch_size=batch_size,
        random_weights=random_weights,
        seed=seed,
        threads=threads,
        affinity=affinity,
        runs_it=True,
    )
    with working(f"exporting {model.name}") as narrate:
        exported = options.run(run_export(wanted, narrate))
    if json_output:
        options.print_json(result(exported))
    else:
        make_console(is_wide=False).print(table(exported))
        if exported.loop_nests:
            options.stderr().print(loop_nests_line(exported.loop_nests), style="yellow")
    if exported.agreement is not None and not exported.agreement.is_right:
        raise MeasurementError(f"{exported.path} answers wrongly: {exported.agreement.problem}", ErrorKind.WRONG_OUTPUT)


def result(exported: Exported) -> dict[str, object]:
    """Return the result of an export, JSON-ready."""
    return {
        "file": str(exported.path),
        "digest": exported.digest,
        "size_bytes": exported.size_bytes,
        "workloads": exported.workloads,
        "trials": exported.trials,
        "tuned": exported.tuned,
        "static": exported.static,
        "from_packs": exported.of_packs,
        "unmeasured": exported.unmeasured,
        "is_right": exported.agreement.is_right if exported.agreement else None,
        "problem": exported.agreement.problem if exported.agreement else "",
        "loop_nests": list(exported.loop_nests),
        "manifest": asdict(exported.manifest),
    }


def table(exported: Exported) -> Table:
    """Return the result of an export as a table for people."""
    manifest = exported.manifest
    rows = [
        ("size", f"{exported.size_bytes / 1e6:.1f} MB"),
        ("device", _gpu(manifest)),
        ("runs on", " ".join([manifest.machine, *manifest.cpu_features])),
        ("with", f"TVM {manifest.tvm_version}, {manifest.threads} threads"),
        *(
            row
            for variant in manifest.variants
            for row in (("inputs", _listed(variant.inputs)), ("outputs", _listed(variant.outputs)))
        ),
        ("schedules", schedules_line(exported)),
        ("answers", _answers(exported)),
        ("not checked", manifest.check.weakness),
    ]
    return facts_table(rows, title=str(exported.path))


def schedules_line(exported: Exported) -> str:
    """Return the number of operators by schedule source: "16 trials: 5 operators tuned, 67 static"."""
    if not exported.manifest.records:
        return f"no records for {count_text(exported.workloads, 'operator')}: fleet tune finds some"
    counts = {"static": exported.static, "from packs": exported.of_packs, "not measured": exported.unmeasured}
    parts = [f"{count_text(exported.tuned, 'operator')} tuned", *(f"{n} {name}" for name, n in counts.items() if n)]
    where = exported.manifest.device_model
    return f"{count_text(exported.trials, 'trial')}: {', '.join(parts)}; on {where}"


def _answers(exported: Exported) -> str:
    reference = engine_name(exported.manifest.check.reference)
    if exported.agreement is None:
        return f"by {reference}; not run here: fleet serve-check runs it on a device"
    return answers_line(reference, exported.agreement)


def _listed(specs: Sequence[TensorType]) -> str:
    return ", ".join(f"{spec.name}: {spec}" for spec in specs)


def _gpu(manifest: Manifest) -> str:
    if manifest.device_type == "cpu":
        return ""
    return f"{manifest.device_type} {manifest.target.get('arch') or manifest.target.get('mcpu') or ''}".strip()
