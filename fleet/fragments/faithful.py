"""Finds the faithful fragments of a model: lowered alone, their costliest program is one of the model's."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from cross.targets.target import Target
from fleet.domain.workload import Workload
from fleet.errors import FleetError
from fleet.fragments.built import to_relax
from fleet.fragments.captured import CapturedModel
from fleet.fragments.fragment import Fragment
from fleet.fragments.regions import regions

_MOST_TRIES = 24
"""Regions to lower around one anchor. All but a few that succeed are among the first twelve."""

_LIKELY = 12
"""Regions that a job tries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A workload of a model, and the operators that it comes from."""

    workload: Workload
    fragment: Fragment | None
    """None: no faithful one was found."""


def origins_of_file(path: Path, target: Target) -> list[Origin]:
    """Read a model and return its workloads, the costliest first. For a confined worker.

    Raises:
        ImportFailed: TVM cannot import or lower it.
    """
    from fleet.models.model import import_model, load_model
    from fleet.workloads.default_schedule import needs_schedule
    from fleet.workloads.extract import extract

    model = load_model(path)
    workloads = extract(model, target)
    wanted = {workload.shash for workload in workloads}
    mod = import_model(model, unrolls=needs_schedule(target))
    found = faithful(CapturedModel(mod), wanted, target)
    return [Origin(workload=one, fragment=found.get(one.shash)) for one in workloads]


def faithful(model: CapturedModel, wanted: Collection[str], target: Target) -> dict[str, Fragment]:
    """Return a model's faithful fragments by the hash of their program."""
    found: dict[str, Fragment] = {}
    hashes: dict[str, str] = {}
    for anchor in sorted(model.graph.anchors):
        for fragment in islice(_fragments(model, anchor), _MOST_TRIES):
            digest = fragment.digest
            if digest not in hashes:
                hashes[digest] = _hash(fragment, target)
            if hashes[digest] in wanted:
                found.setdefault(hashes[digest], fragment)
                break
    return found


def candidates_of(model: CapturedModel) -> list[tuple[Fragment, ...]]:
    """Return the fragments to try around each anchor, likely ones first."""
    return [tuple(islice(_fragments(model, anchor), _LIKELY)) for anchor in sorted(model.graph.anchors)]


def program_of(fragment: Fragment, target: Target) -> Workload | None:
    """Return the costliest program that a fragment is lowered to; None if it has none of a known size.

    Raises:
        InvalidRequest: TVM refuses it.
        ImportFailed: TVM cannot lower it.
    """
    from fleet.workloads.extract import lowered_workloads

    found = lowered_workloads(to_relax(fragment), target)
    return max(found, key=lambda one: (one.flop, one.name), default=None)


def _fragments(model: CapturedModel, anchor: int) -> Iterator[Fragment]:
    """Yield the fragments around an anchor, without those that have no plain form."""
    for region in regions(model.graph, anchor):
        try:
            yield model.fragment(region)
        except FleetError:
            continue


def _hash(fragment: Fragment, target: Target) -> str:
    """Return the hash of a fragment's program; empty if it cannot be lowered."""
    try:
        program = program_of(fragment, target)
    except FleetError:
        return ""
    return "" if program is None else program.shash
