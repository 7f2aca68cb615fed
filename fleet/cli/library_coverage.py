"""`fleet library coverage`: the operators of a model that a library has schedules for."""

from __future__ import annotations

from typing import Annotated

import typer

from cross.targets.target import Target, parse_target
from fleet.cli import completion_values, options
from fleet.cli.activity import working
from fleet.cli.device_words import one_kind
from fleet.cli.record_filters import MaxAgeOption, WhereOption, older_line, record_filter
from fleet.cli.shapes import parse_shapes
from fleet.cli.stored import existing_library
from fleet.domain.scope import RecordScope
from fleet.domain.tvm_versions import tvm_version
from fleet.errors import InvalidRequest, NotFound
from fleet.export.targets import target_of
from fleet.library import Library


def coverage(
    model: options.ModelArgument,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="SELECTOR",
            autocompletion=completion_values.selectors,
            help="Take target and device model from this device of the fleet: 'model=pi4', 'name=pi4-03'.",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="TARGET",
            autocompletion=completion_values.boards,
            help="A board ('fleet targets') or TVM target as JSON. Default: this machine.",
        ),
    ] = None,
    device_model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Only records of this device model, whatever its exact target.")
    ] = None,
    max_age: MaxAgeOption = None,
    where: WhereOption = None,
    shape: options.ShapeOption = None,
    batch_size: options.BatchSizeOption = None,
    tracker: options.TrackerOption = None,
    connect_timeout: options.ConnectTimeoutOption = 10.0,
    library: options.LibraryOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Show for each operator of a model what the library knows about it.

    A checked record of the very program is the best case. Without one, the static schedule is enough if trials hardly
    improved on those of its kind. A neighbour is a record of the same operators with other shapes: a search tries it
    first. Nothing is measured.

    Example: fleet library coverage model.onnx --on model=pi4
    """
    from fleet.cli.coverage_view import coverage_data, print_coverage
    from fleet.cli.model_workloads import workloads_of_model
    from fleet.optimizer.library_coverage import cover

    if on is not None and (target or device_model):
        raise InvalidRequest("--on takes target and device model from a device; leave --target and --device-model out")
    if on is None:
        parsed = target_of(target or "host")
        within = record_filter(device_model=device_model, max_age=max_age, where=where).for_build(
            parsed.json, tvm_version()
        )
    else:
        parsed, scope = _of_device(on, tracker, connect_timeout)
        within = record_filter(max_age=max_age, where=where).of(scope)
    with existing_library(library) as opened, working(f"lowering {model.name}"):
        if device_model is not None:
            _check_known(opened, device_model)
        workloads = workloads_of_model(model, parsed, shapes=parse_shapes(shape or ()), batch_size=batch_size)
        found = cover(opened, workloads, parsed, within)
        older = older_line(opened.count_older([one.shash for one in workloads], within))
    if older:
        options.stderr().print(older)
    if json_output:
        options.print_json(coverage_data(found, parsed, within))
    else:
        print_coverage(found)


def _check_known(library: Library, device_model: str) -> None:
    """Raise NotFound if the library has no record of a device model, which is probably misspelt."""
    known = sorted({scope.device_model for scope in library.scopes() if scope.device_model})
    if device_model not in known:
        instead = f"; there are some of {', '.join(known)}" if known else ""
        raise NotFound(f"there are no records of the device model {device_model!r}{instead}")


def _of_device(on: str, tracker: str | None, connect_timeout_sec: float) -> tuple[Target, RecordScope]:
    devices = options.query_tracker(tracker, connect_timeout_sec, lambda client: client.snapshot()).devices
    inventory = one_kind(on, devices)
    return parse_target(inventory.target_json), RecordScope(
        target_json=inventory.target_json, device_model=inventory.device_model, tvm_version=inventory.tvm_version
    )
