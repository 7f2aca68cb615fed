"""`FleetCostModel` with real candidates of a small matrix product, and the files it shares with XGBModel."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cross.targets.intrinsics import load_intrinsics
from cross.targets.target import host_target, make_target
from fleet.cost_model.feature_codec import FEATURE_VERSION, TARGET_KINDS
from fleet.cost_model.ranking import ranked_right
from fleet.cost_model.training import train_snapshot
from fleet.domain.observation import Observation
from fleet.library import Library, NewSnapshot
from fleet.optimizer.tasks.search_state import SearchState
from fleet.workloads.programs import matmul
from fleet.workloads.traces import replay
from fleet.workloads.workload import module_of

TARGET = host_target()
COUNT = 16


@pytest.fixture(scope="module")
def measured() -> tuple[Any, list[Any], list[Any]]:
    """A tuning context, candidates, and results: the more there is in a trace, the slower."""
    load_intrinsics(TARGET)
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.meta_schedule.runner import RunnerResult
    from tvm.s_tir.meta_schedule.search_strategy import MeasureCandidate

    workload = matmul(64)
    mod = module_of(workload.mod_json)
    space = SearchState(workload.mod_json, TARGET).own_space()
    schedules = [replay(mod, next(space).trace_json) for _ in range(COUNT)]
    context = ms.TuneContext(mod, target=make_target(TARGET), num_threads=1)
    return (
        context,
        [MeasureCandidate(schedule, []) for schedule in schedules],
        [RunnerResult([1e-3 * (1 + number)], None) for number in range(COUNT)],
    )


@pytest.mark.slow
def test_it_scores_before_the_first_trial_and_learns_from_each(measured: tuple[Any, list[Any], list[Any]]) -> None:
    """Stock XGBModel scores at random below a hundred records."""
    from fleet.metaschedule import FleetCostModel

    context, candidates, results = measured
    model, twin = FleetCostModel(), FleetCostModel()

    before = model.predict(context, candidates)
    assert (before > 0).all()
    np.testing.assert_array_equal(before, twin.predict(context, candidates))

    model.update(context, candidates, results)
    model.update(context, candidates, results)
    secs = np.arange(1.0, COUNT + 1)
    assert ranked_right(-model.predict(context, candidates), secs) > ranked_right(-before, secs)


@pytest.mark.slow
@pytest.mark.parametrize(("kinds", "is_used"), [(["llvm"], True), (["cuda"], False)])
def test_a_librarys_snapshot_scores_for_its_target_only(
    measured: tuple[Any, list[Any], list[Any]], tmp_path: Path, kinds: list[str], is_used: bool
) -> None:
    """The library's snapshot in use scores if it is for the target; one trained on GPUs does not score for a
    processor.
    """
    from fleet.metaschedule import FleetCostModel

    context, candidates, _ = measured
    learnt = train_snapshot(sample for workload in range(4) for sample in made_up(workload))
    path = tmp_path / "library.sqlite"
    with Library.open(path) as library:
        term = library.memory.stand("test", lease_sec=60)
        assert term is not None
        term.publish(
            NewSnapshot(
                content=learnt.content,
                feature_version=FEATURE_VERSION,
                record_count=64,
                workloads={},
                last_record_id=0,
                metrics={TARGET_KINDS: kinds},
            )
        )
        term.close()
        opened = FleetCostModel(library=library).predict(context, candidates)

    found = FleetCostModel(library=path).predict(context, candidates)

    alone = FleetCostModel().predict(context, candidates)
    expected = FleetCostModel(learnt).predict(context, candidates) if is_used else alone
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(opened, expected)
    assert np.array_equal(found, alone) is not is_used


def made_up(workload: int) -> list[Observation]:
    """Return candidates with features as TVM's: more of the first column is slower."""
    random = np.random.default_rng(workload)
    rows = np.abs(random.normal(5, 2, (16, 2, 164))).astype(np.float32)
    return [
        Observation(workload=f"w{workload}", run_sec=float(stores[0, 0]) * 1e-3, features=stores) for stores in rows
    ]


@pytest.mark.slow
def test_xgb_model_learns_from_its_file(measured: tuple[Any, list[Any], list[Any]], tmp_path: Path) -> None:
    """A search can continue with TVM's own model."""
    from tvm.s_tir.meta_schedule.cost_model.xgb_model import XGBModel

    from fleet.metaschedule import FleetCostModel

    context, candidates, results = measured
    ours, stock = FleetCostModel(), XGBModel(num_warmup_samples=0, num_tuning_cores=1)
    ours.update(context, candidates, results)

    ours.save(str(tmp_path / "ours.tar"))
    stock.load(str(tmp_path / "ours.tar"))

    assert stock.data_size == COUNT


class Malicious:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self._mark),)


def test_a_file_of_pickles_is_refused(tmp_path: Path) -> None:
    """A pickle can call any function. The error names the library as the way to keep records."""
    from fleet.metaschedule import FleetCostModel

    content = io.BytesIO()
    np.save(content, np.array([Malicious(tmp_path / "mark"), None], dtype=object), allow_pickle=True)
    path = tmp_path / "bad.tar"
    with tarfile.open(path, "w:gz") as file:
        member = tarfile.TarInfo("data.npy")
        member.size = len(content.getvalue())
        file.addfile(member, io.BytesIO(content.getvalue()))

    with pytest.raises(RuntimeError, match="fleet library import"):  # TVM turns every error into this one
        FleetCostModel().load(str(path))

    assert not (tmp_path / "mark").exists()
