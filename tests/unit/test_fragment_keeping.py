"""Fragments that a job keeps: faithful ones of its own workloads, each found once."""

from __future__ import annotations

from pathlib import Path

import pytest

from cross.pool.build_pool import BuildPool
from cross.targets.target import parse_target
from fleet.building.turns import Turns
from fleet.fragments.extracted import Extracted, extracted
from fleet.fragments.faithful import program_of
from fleet.fragments.stored import from_stored
from fleet.library import Library
from fleet.models.model import load_model
from fleet.optimizer.fragment_keeping import FragmentKeeper
from fleet.testing.models import write

pytestmark = pytest.mark.slow

_TARGET = parse_target('{"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2}')


async def test_a_job_keeps_faithful_fragments_of_its_workloads(tmp_path: Path) -> None:
    """Lowered again they have the hashes of the workloads, unusable candidates do no harm, and a second job has no more
    to lower."""
    model = load_model(write("keyword_spotting", tmp_path))
    found = extracted(model, _TARGET)
    found = Extracted(workloads=found.workloads, candidates=((b"nonsense",), *found.candidates))
    shashes = [one.shash for one in found.workloads]
    with Library.open(tmp_path / "library.sqlite") as library, BuildPool(1) as pool:
        library.add_workloads(found.workloads)
        keeper = FragmentKeeper(library=library, pool=pool, turns=Turns(shares_cores=True), target=_TARGET)
        await keeper.keep(found, shashes)
        kept = library.fragments(_TARGET.json, shashes)
    with Library.open(tmp_path / "library.sqlite") as library:
        idle = FragmentKeeper(library=library, pool=pool, turns=Turns(shares_cores=True), target=_TARGET)
        await idle.keep(found, list(kept))  # its pool is closed

    programs = {shash: program_of(from_stored(content), _TARGET) for shash, content in kept.items()}
    assert [one.shash for one in programs.values() if one is not None] == list(programs)
    operations = {one.shash: one.flop * one.weight for one in found.workloads}
    assert sum(operations[shash] for shash in kept) > 0.9 * sum(operations.values())


async def test_fragments_of_a_file_need_no_lowering(tmp_path: Path) -> None:
    """Its workloads were made of them."""
    model = load_model(write("tabular", tmp_path))
    workloads = extracted(model, _TARGET).workloads
    given = Extracted(workloads=workloads, faithful={workloads[0].shash: b"content"})
    with Library.open(tmp_path / "library.sqlite") as library, BuildPool(1) as pool:
        library.add_workloads(workloads)
        keeper = FragmentKeeper(library=library, pool=pool, turns=Turns(shares_cores=True), target=_TARGET)
        await keeper.keep(given, [one.shash for one in workloads])
        assert library.fragments(_TARGET.json, [one.shash for one in workloads]) == given.faithful
