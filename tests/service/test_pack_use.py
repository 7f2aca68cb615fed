"""Records of packs in builds, exports and tuning: after the user's own, and never ranked among these."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cross.pool.build_pool import BuildPool
from cross.targets.target import parse_target
from fleet.building.turns import Cores
from fleet.domain.devices import Inventory
from fleet.domain.keys import NO_TRACE
from fleet.domain.making import Making, evaluator_facts
from fleet.domain.measuring import Evaluator
from fleet.domain.scope import ScopeFilter, measured_model
from fleet.domain.workload import Workload
from fleet.errors import InvalidRequest
from fleet.export.choice import choose
from fleet.fragments.extracted import Extracted
from fleet.jobs.options import TuneOptions
from fleet.library import Library, Record, RecordKind
from fleet.optimizer.core.progress import JobProgress
from fleet.optimizer.core.state import JobCore
from fleet.optimizer.job_run import JobRun
from fleet.optimizer.recall import recall
from fleet.optimizer.workshop import Workshop
from fleet.packs.contents import facts_digest
from fleet.packs.lookup import Packs, open_packs, sources_line
from fleet.packs.making import PackOrder, make_pack
from fleet.packs.shelf import Shelf
from tests.packs import ANYONE, ARGS, PROGRAM, SCOPE, Draft, add_records, trace

NOBODY: Any = None
OTHER = replace(SCOPE, device_model="pi4 overclocked")


def workload(shash: str) -> Workload:
    return Workload(shash=shash, name=f"fused_conv2d_{shash}", mod_json=PROGRAM, args=ARGS, weight=1)


@pytest.fixture
def packs(tmp_path: Path) -> Iterator[Packs]:
    """An open pack with three records each of the workloads 7 and 8, and one of 9 on another device model."""
    with Library.open(tmp_path / "theirs.sqlite") as theirs:
        add_records(theirs, "7", "8")
        add_records(theirs, "9", scope=OTHER)
        order = PackOrder(scopes=[SCOPE, OTHER], title="theirs")
        make_pack(theirs, order, tmp_path / "theirs.pack")
    shelf = Shelf(tmp_path / "packs")
    shelf.add(tmp_path / "theirs.pack", ANYONE)
    with open_packs(shelf) as opened:
        yield opened


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Library]:
    with Library.open(tmp_path / "ours.sqlite") as opened:
        yield opened


def add(library: Library, sec: float, kind: RecordKind = RecordKind.CANDIDATE, *, decision: int = 50) -> None:
    """Add an own record of the workload 7."""
    library.add_workload(workload("7"))
    text = "" if kind is RecordKind.BASELINE else trace(decision)
    library.add_record(Record(workload="7", scope=SCOPE, trace_json=text, run_secs=(sec,), checked=True, kind=kind))


def job_of(library: Library, workloads: list[Workload], notices: list[str]) -> JobRun:
    """Return a job on a device of the packs' scope that has not begun."""
    pool = BuildPool(1)
    return JobRun(
        options=TuneOptions(model=Path("m.onnx"), selector="cpu"),
        core=JobCore(JobProgress(notice=notices.append)),
        shop=Workshop(library=library, pool=pool, builders=pool, artifact_dir=Path(), cores=Cores()),
        client=NOBODY,
        device=NOBODY,
        others=(),
        inventory=Inventory(device_model=SCOPE.device_model, tvm_version=SCOPE.tvm_version),
        model=NOBODY,
        extracted=Extracted(workloads=tuple(workloads)),
        target=parse_target(SCOPE.target_json),
        started_at=0.0,
        entry=NOBODY,
    )


def test_a_pack_serves_a_user_without_records(library: Library, packs: Packs) -> None:
    """The schedules, their source and the hardware come from the pack; nothing of it counts as a trial."""
    found = choose(library, [workload("7"), workload("8"), workload("x")], SCOPE, packs)

    assert {"7": trace(1), "8": trace(1)} == {shash: json.dumps(json.loads(one)) for shash, one in found.traces.items()}
    assert (found.device_model, found.trials, found.unproven) == ("pi4", 0, "")
    assert {True} == {bool(record.pack) for record in found.records}
    assert found.packs == "2 schedules from the pack theirs, UNSIGNED: measured and checked by their word alone"


@pytest.mark.parametrize("kind", [RecordKind.CANDIDATE, RecordKind.STATIC])
def test_own_records_come_first_however_slow(library: Library, packs: Packs, kind: RecordKind) -> None:
    """A second of one's own is more than a millisecond of others."""
    add(library, 1.0, kind)
    found = choose(library, [workload("7"), workload("8")], SCOPE, packs)
    assert {"7": trace(50), "8": trace(1)} == {
        shash: json.dumps(json.loads(one)) for shash, one in found.traces.items()
    }
    assert {"7": "", "8": "theirs"} == {one.shash: "theirs" if one.pack else "" for one in found.records}


def test_an_own_decision_against_a_schedule_stands(library: Library, packs: Packs) -> None:
    """A workload that is faster without a schedule here keeps none."""
    add(library, 1.0)
    add(library, 0.5, RecordKind.BASELINE)
    assert choose(library, [workload("7")], SCOPE, packs).traces == {"7": NO_TRACE}


@pytest.mark.parametrize(
    "within",
    [
        replace(SCOPE, device_model="pi5"),
        replace(SCOPE, tvm_version="0.28"),
        replace(SCOPE, target_json='{"kind":"llvm","num-cores":2}'),
    ],
)
def test_records_of_other_scopes_are_not_used(library: Library, packs: Packs, within: ScopeFilter) -> None:
    """Device model, TVM and target have to be the same."""
    assert choose(library, [workload("7")], within, packs).traces == {}


def test_records_are_chosen_by_the_facts_of_their_environments(tmp_path: Path, library: Library) -> None:
    """--where reaches packs: their makers' kernels, firmware, and the owner's facts."""
    cooled, bare = ({"kernel": "6.1", "owner": {"cooling": cooling}} for cooling in ("fan", "none"))
    with Library.open(tmp_path / "theirs.sqlite") as theirs:
        theirs.add_workload(workload("7"))
        known = Record(workload="7", scope=SCOPE, checked=True)
        theirs.add_records(
            [
                replace(known, trace_json=trace(1), run_secs=(1e-3,), environment=bare),
                replace(known, trace_json=trace(2), run_secs=(2e-3,), environment=cooled),
                replace(known, trace_json=trace(3), run_secs=(3e-3,)),
            ]
        )
        make_pack(theirs, PackOrder(scopes=[SCOPE], title="theirs"), tmp_path / "theirs.pack")
    shelf = Shelf(tmp_path / "packs")
    shelf.add(tmp_path / "theirs.pack", ANYONE)
    with open_packs(shelf) as packs:
        chosen = {
            facts: choose(library, [workload("7")], replace(SCOPE.of(SCOPE), facts=facts), packs).traces.get("7")
            for facts in ((), (("cooling", "fan"),), (("kernel", "6.*"), ("cooling", "n*")), (("cooling", "water"),))
        }
        [pack] = packs.libraries
        found = [one for _, one in sorted(pack.environments_of(one.id for one in pack.records()).items())]
    assert [trace(1), trace(2), trace(1), None] == [one and json.dumps(json.loads(one)) for one in chosen.values()]
    assert [bare, cooled] == [facts for _, facts in found]


def test_a_pack_has_the_evaluators_of_its_records(tmp_path: Path) -> None:
    """Parameters that change times are part of the device model; others are in the configuration."""
    evaluator = Evaluator(repeat=7, flush_cache=True)
    flushed = replace(SCOPE, device_model=measured_model("pi4", evaluator))
    with Library.open(tmp_path / "theirs.sqlite") as theirs:
        theirs.add_workload(workload("7"))
        known = Record(workload="7", scope=flushed, trace_json=trace(1), run_secs=(1e-3,), checked=True)
        theirs.add_record(replace(known, making=Making(evaluator=evaluator_facts(evaluator))))
        theirs.add_record(replace(known, trace_json=trace(2), run_secs=(2e-3,), making=Making()))
        theirs.add_record(replace(known, trace_json=trace(3), run_secs=(3e-3,)))
        made = make_pack(theirs, PackOrder(scopes=[flushed], title="theirs"), tmp_path / "theirs.pack")
    shelf = Shelf(tmp_path / "packs")
    shelf.add(tmp_path / "theirs.pack", ANYONE)
    with open_packs(shelf) as packs:
        [pack] = packs.libraries
        makings = pack.makings(one.id for one in pack.records())
        found = packs.best(["7"], flushed), packs.best(["7"], SCOPE)
    assert [{"flush_cache": True, "repeat": 7}, {}] == [dict(one.evaluator) for _, one in sorted(makings.items())]
    assert {facts_digest(one.evaluator) for one in makings.values()} == made.config.evaluators.keys()
    assert [["7"], []] == [list(one) for one in found]


def test_a_pack_without_environments_is_read(tmp_path: Path) -> None:
    """Packs of the first programs name digests that their configuration may lack."""
    draft = Draft()
    draft.facts[0]["environment"] = f"sha256:{'a' * 64}"
    shelf = Shelf(tmp_path / "packs")
    shelf.add(draft.write(tmp_path / "first"), ANYONE)
    with open_packs(shelf) as packs:
        [pack] = packs.libraries
        assert (pack.environments_of([1, 2]), pack.makings([1, 2])) == ({}, {})


def test_an_environment_that_readers_refuse_is_refused_when_packed(tmp_path: Path) -> None:
    """The owner of a board learns it, and not the users of the pack."""
    with Library.open(tmp_path / "theirs.sqlite") as theirs:
        theirs.add_workload(workload("7"))
        known = Record(workload="7", scope=SCOPE, trace_json=trace(1), run_secs=(1e-3,), checked=True)
        theirs.add_record(replace(known, environment={"firmware": "1\x1b[2J"}))
        with pytest.raises(InvalidRequest, match="control characters"):
            make_pack(theirs, PackOrder(scopes=[SCOPE], title="theirs"), tmp_path / "theirs.pack")
    assert not (tmp_path / "theirs.pack").exists()


def test_schedules_of_a_pack_are_tried_first_and_count_for_nothing(library: Library, packs: Packs) -> None:
    """A search begins with those for this very scope, then those for other device models; they are no trials."""
    known, other = recall(library, [workload("7"), workload("9")], SCOPE, packs)

    assert [trace(1), trace(2), trace(3)] == [json.dumps(json.loads(one.trace_json)) for one in known.seeds[:3]]
    assert [trace(1), trace(2)] == [json.dumps(json.loads(one.trace_json)) for one in other.seeds[:2]]
    assert {PROGRAM} == {one.mod_json for one in known.seeds}
    assert [(0, [], {})] * 2 == [(one.trials_before, one.records, one.right) for one in (known, other)]
    assert library.trial_counts(["7"]) == {"7": 0}


def test_a_workload_with_own_trials_gets_no_seeds_of_packs(library: Library, packs: Packs) -> None:
    """The first batch has passed; a static record alone is no trial."""
    add(library, 1.0)
    [tried] = recall(library, [workload("7")], SCOPE, packs)
    assert tried.seeds == ()


def test_a_job_takes_schedules_of_packs_for_the_rest_of_a_model(
    library: Library, packs: Packs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are for workloads that it has no verdict about; the user sees their source, and searches begin with them."""
    monkeypatch.setenv("FLEET_DATA_DIR", str(tmp_path))
    notices: list[str] = []
    job = job_of(library, [workload("7"), workload("8"), workload("x")], notices)

    found = job.schedules_of_packs(["8"])
    untried = job.recalled([workload("7")])

    assert {"7": trace(1)} == {shash: json.dumps(json.loads(one)) for shash, one in found.items()}
    assert "in the model: 1 schedule from the pack theirs, UNSIGNED" in notices[0]
    assert trace(1) == json.dumps(json.loads(untried[0].seeds[0].trace_json))


def test_a_line_names_each_pack(packs: Packs) -> None:
    """It is empty without any schedule."""
    assert sources_line({}) == ""
    assert sources_line(packs.best(["7"], SCOPE)).startswith("1 schedule from the pack theirs")


@pytest.mark.slow
def test_stock_metaschedule_reads_the_files_of_a_pack(tmp_path: Path) -> None:
    """A user of stock TVM unzips two files, and opens them as a JSONDatabase."""
    from tvm.s_tir import meta_schedule as ms
    from tvm.target import Target

    from fleet.library.exchange import import_json
    from fleet.packs.sources import open_source
    from fleet.packs.staging import find_pack
    from tests.contract.test_library_exchange import write_stock

    write_stock(ms, tmp_path / "stock")
    target = '{"kind":"llvm"}'
    with Library.open(tmp_path / "library.sqlite") as library:
        import_json(library, tmp_path / "stock", replace(SCOPE, target_json=target))
        make_pack(library, PackOrder(scopes=library.scopes(), title="stock"), tmp_path / "stock.pack")
        expected = [
            record.trace_json for shash in library.find_workloads() for record in library.best(shash.shash, k=9)
        ]
    with open_source(tmp_path / "stock.pack") as source:
        layers = find_pack(source).manifest.layers
        for one in layers:
            with source.open(one.blob_name) as (file, _):
                (tmp_path / one.title.removesuffix(".gz")).write_bytes(gzip.decompress(file.read(one.size_bytes)))
    database = ms.database.JSONDatabase(
        str(tmp_path / "database_workload.json"), str(tmp_path / "database_tuning_record.json"), allow_missing=False
    )
    records = list(database.get_all_tuning_records())
    assert len(expected) == len(records) > 0
    assert {"llvm"} == {Target(record.target).kind.name for record in records}
    shelf = Shelf(tmp_path / "packs")
    assert shelf.add(tmp_path / "stock.pack", ANYONE).records == len(records)
