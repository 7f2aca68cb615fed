"""Share of the best schedules that stay in use after a change of our lowering, and the device time of the refresh.

A library is filled with programs that were lowered without one of our passes, with three schedules each, measured on
this machine: that is the peer, which measures all again. Then the library is refreshed with the pass. Each pass is a
switch of its own; "every tenth" are the programs of which only one in ten was lowered without it.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

if not __package__:  # run as a file: python benchmarks/library_refresh.py
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common
from cross.targets.target import Target, parse_target
from fleet import aio
from fleet.client.aio import Fleet
from fleet.domain.devices import Inventory
from fleet.domain.freshness import BEST
from fleet.domain.scope import RecordScope
from fleet.domain.workload import Workload
from fleet.fragments.fragment import Attribute, Call, Fragment, Tensor
from fleet.fragments.lowering import lowered_today
from fleet.fragments.stored import to_stored
from fleet.graph import pipeline
from fleet.library import Library, Record
from fleet.local.fleet import LocalFleet
from fleet.optimizer.refreshing.open import RefreshOptions, refresh
from fleet.optimizer.refreshing.report import RefreshReport
from fleet.optimizer.tasks.search_state import SearchState

PASSES = ("mark constants", "channels last", "filter")
"""Steps of the pipeline, by name, without which programs are lowered."""

_EVERY = 10
_COUNT, _QUICK_COUNT = 24, 4
_TENTH_COUNT, _QUICK_TENTH_COUNT = 120, 20
_NOMINAL_SEC = 1e-4
"""Time of records before they are measured."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    options = common.make_parser("library_refresh", __doc__ or "", rounds=1).parse_args(argv)
    machine = common.machine()
    found = asyncio.run(_measure(quick=options.quick))
    rows = [
        (one.name, str(one.programs), f"{one.in_use:.0%}", f"{one.all_sec:,.1f}", f"{one.refresh_sec:,.1f}")
        for one in found
    ]
    columns = ("changed pass", "programs", "schedules in use", "all again [s]", "refresh [s]")
    common.print_table(
        "refreshes after a change of lowering", columns, rows, common.doubts(machine, quick=options.quick)
    )
    shown = {one.name: {"in_use": one.in_use, "device_share": one.refresh_sec / one.all_sec} for one in found}
    figures = {"name": "library_refresh", "unit": "device seconds", "switches": shown}
    common.print_json({**figures, "quick": options.quick, "machine": machine}, wanted=options.json)
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Refreshed:
    """Result of one switch."""

    name: str
    programs: int
    in_use: float
    """Share of the best three schedules of changed programs that have a right record for the new program."""

    all_sec: float
    """Device time of measuring all programs."""

    refresh_sec: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OldProgram:
    """A program in the library."""

    workload: Workload
    traces: tuple[str, ...]
    content: bytes
    """Its fragment in stored form."""


def fragments(count: int) -> list[Fragment]:
    """Return products and convolutions, each with a bias and a ReLU."""
    makers = (
        _product,
        lambda n: _convolution(n, 3, 1),
        lambda n: _convolution(n, 3, 2),
        lambda n: _convolution(n, 1, 1),
    )
    return [makers[n % len(makers)](1 + n // len(makers)) for n in range(count)]


@contextmanager
def lowered_without(name: str) -> Iterator[None]:
    """Lower without a step of the pipeline, in this process."""
    steps = pipeline.steps
    pipeline.steps = lambda target: [step for step in steps(target) if step.name != name]
    try:
        yield
    finally:
        pipeline.steps = steps


def old_programs(wanted: Sequence[Fragment], target: Target, *, without: str, every: int = 1) -> list[OldProgram]:
    """Lower fragments, one in `every` of them without a step, and take the first schedules of their spaces."""
    found = []
    for number, fragment in enumerate(wanted):
        content = to_stored(fragment)
        assert content is not None
        with lowered_without(without if number % every == 0 else ""):
            workload = lowered_today(content, target)
        assert isinstance(workload, Workload), workload
        space = SearchState(workload.mod_json, target).own_space()
        traces = tuple(one.trace_json for one in itertools.islice(space, BEST))
        if traces:
            found.append(OldProgram(workload=workload, traces=traces, content=content))
    return found


def fill(library: Library, scope: RecordScope, programs: Sequence[OldProgram]) -> None:
    """Store programs with their schedules, as another TVM would have found them, right and equally fast."""
    scope = replace(scope, tvm_version="0")
    library.add_workloads(one.workload for one in programs)
    library.add_records(
        Record(workload=one.workload.shash, scope=scope, trace_json=trace, run_secs=(_NOMINAL_SEC,), checked=True)
        for one in programs
        for trace in one.traces
    )


def schedules_in_use(library: Library, report: RefreshReport) -> float:
    """Return the share of the best three schedules of changed programs with a right record for the new program."""
    changed = [one for one in report.outcomes if one.new_shash]
    before = sum(len(library.best_schedules(report.scope, [one.shash])) for one in changed)
    new = [record for one in changed for record in library.records(one.new_shash, report.scope, with_errors=False)]
    return sum(bool(record.checked) and _is_adapted(record) for record in new) / before if before else 0.0


def _is_adapted(record: Record) -> bool:
    origin = record.provenance.get("origin")
    return isinstance(origin, dict) and bool(origin.get("is_adapted"))


async def _measure(*, quick: bool) -> list[Refreshed]:
    async with LocalFleet() as local, aio.connect(local.address) as client:
        inventory = (await client.snapshot()).devices[0].inventory
        few = fragments(_QUICK_COUNT if quick else _COUNT)
        found = [await _one(client, inventory, few, name, without=name) for name in PASSES]
        many = fragments(_QUICK_TENTH_COUNT if quick else _TENTH_COUNT)
        return [*found, await _one(client, inventory, many, "every tenth", without=PASSES[0], every=_EVERY)]


async def _one(
    client: Fleet, inventory: Inventory, wanted: Sequence[Fragment], name: str, *, without: str, every: int = 1
) -> Refreshed:
    target = parse_target(inventory.target_json)
    scope = RecordScope(target_json=target.json, device_model=inventory.device_model, tvm_version=inventory.tvm_version)
    programs = await asyncio.to_thread(old_programs, wanted, target, without=without, every=every)
    options = RefreshOptions(selector="cpu")
    with (
        tempfile.TemporaryDirectory(prefix="fleet-refresh-") as folder,
        Library.open(Path(folder) / "l.sqlite") as library,
    ):
        fill(library, scope, programs)
        first = await refresh(library, client, inventory, options, common.say)
        library.add_fragments(target.json, {one.workload.shash: one.content for one in programs})
        second = await refresh(library, client, inventory, options, common.say)
        return Refreshed(
            name=name,
            programs=len(programs),
            in_use=schedules_in_use(library, second),
            all_sec=first.device_sec,
            refresh_sec=second.device_sec,
        )


def _product(size: int) -> Fragment:
    calls = (
        Call(operator="matmul", operands=("i0", "w0"), attributes={"out_dtype": None}),
        Call(operator="add", operands=("c0", "w1")),
        Call(operator="nn.relu", operands=("c1",)),
    )
    return Fragment(
        inputs=(_tensor(64, 96),), weights=(_tensor(96, 32 * (1 + size)), _tensor(32 * (1 + size))), calls=calls
    )


def _convolution(size: int, kernel: int, stride: int) -> Fragment:
    attributes: dict[str, Attribute] = {
        "strides": (stride, stride),
        "padding": (kernel // 2,) * 4,
        "dilation": (1, 1),
        "groups": 1,
        "data_layout": "NCHW",
        "kernel_layout": "OIHW",
        "out_layout": "NCHW",
        "out_dtype": "float32",
    }
    calls = (
        Call(operator="nn.conv2d", operands=("i0", "w0"), attributes=attributes),
        Call(operator="add", operands=("c0", "w1")),
        Call(operator="nn.relu", operands=("c1",)),
    )
    channels = 16 * (1 + size)
    return Fragment(
        inputs=(_tensor(1, 16, 28, 28),),
        weights=(_tensor(channels, 16, kernel, kernel), _tensor(1, channels, 1, 1)),
        calls=calls,
    )


def _tensor(*shape: int) -> Tensor:
    return Tensor(shape=shape, dtype="float32")


if __name__ == "__main__":
    sys.exit(main())
