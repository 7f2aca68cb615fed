"""`FleetCostModel` with real candidates of a small matrix product, and the files it shares with XGBModel."""

from __future__ import annotations

import io
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cross.targets.intrinsics import load_intrinsics
from cross.targets.target import host_target_json, make_target
from fleet.cost_model.feature_codec import FEATURE_VERSION, TARGET_KINDS
from fleet.cost_model.ranking import ranked_right
from fleet.cost_model.samples import Sample
from fleet.cost_model.training import train_snapshot
from fleet.errors import InvalidRequest
from fleet.library import Library, NewSnapshot
from fleet.metaschedule.xgb_file import read_groups
from fleet.optimizer.tasks.search_state import SearchState
from fleet.workloads.programs import matmul
from fleet.workloads.traces import replay
from fleet.workloads.workload import module_of

TARGET = host_target_json()
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
def test_what_a_library_has_learnt_is_shared_by_one_argument(
    measured: tuple[Any, list[Any], list[Any]], tmp_path: Path, kinds: list[str], is_used: bool
) -> None:
    """Its snapshot in use scores, where it is for the target; what was learnt of GPUs says nothing of a processor."""
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


def made_up(workload: int) -> list[Sample]:
    """Return candidates with features as TVM's: more of the first column is slower."""
    random = np.random.default_rng(workload)
    rows = np.abs(random.normal(5, 2, (16, 2, 164))).astype(np.float32)
    return [Sample(workload=f"w{workload}", run_sec=float(stores[0, 0]) * 1e-3, features=stores) for stores in rows]


@pytest.mark.slow
def test_files_go_both_ways_between_it_and_xgb_model(
    measured: tuple[Any, list[Any], list[Any]], tmp_path: Path
) -> None:
    """Records that one has saved, the other one learns from."""
    from tvm.s_tir.meta_schedule.cost_model.xgb_model import XGBModel

    from fleet.metaschedule import FleetCostModel

    context, candidates, results = measured
    ours, again, stock = FleetCostModel(), FleetCostModel(), XGBModel(num_warmup_samples=0, num_tuning_cores=1)
    ours.update(context, candidates, results)

    ours.save(str(tmp_path / "ours.tar"))
    stock.load(str(tmp_path / "ours.tar"))
    stock.save(str(tmp_path / "stock.tar"))
    again.load(str(tmp_path / "stock.tar"))

    assert stock.data_size == COUNT
    np.testing.assert_allclose(ours.predict(context, candidates), again.predict(context, candidates), rtol=1e-4)


class Malicious:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self._mark),)


def archive(path: Path, content: bytes) -> Path:
    with tarfile.open(path, "w:gz") as file:
        member = tarfile.TarInfo("data.npy")
        member.size = len(content)
        file.addfile(member, io.BytesIO(content))
    return path


def test_a_file_that_would_run_code_is_refused(tmp_path: Path) -> None:
    """A pickle may call anything; none of it happens."""
    from fleet.metaschedule import FleetCostModel

    content = io.BytesIO()
    np.save(content, np.array([Malicious(tmp_path / "mark"), None], dtype=object), allow_pickle=True)

    path = archive(tmp_path / "bad.tar", content.getvalue())

    with pytest.raises(InvalidRequest, match="mkdir"):
        read_groups(path)
    with pytest.raises(RuntimeError, match="mkdir"):  # what becomes of any error that crosses TVM
        FleetCostModel().load(str(path))

    assert not (tmp_path / "mark").exists()


GOOD = np.ones((2, 164), np.float32)


def records_file(path: Path, features: list[NDArray[np.float32]], secs: list[float]) -> Path:
    """Write candidates of one workload as XGBModel does."""
    found = np.empty((1, 3), object)
    found[0] = "1", features, np.array(secs)
    content = io.BytesIO()
    np.save(content, found, allow_pickle=True)
    return archive(path, content.getvalue())


@pytest.mark.parametrize(
    ("features", "sec"),
    [
        (GOOD * np.nan, 1.0),
        (GOOD * np.inf, 1.0),
        (GOOD, np.nan),
        (GOOD, -1.0),
        (GOOD, 0.0),
        (GOOD, 1e9),
        (GOOD[0], 1.0),
        (GOOD[:, 1:], 1.0),
    ],
)
def test_what_no_measurement_can_have_given_is_refused(
    tmp_path: Path, features: NDArray[np.float32], sec: float
) -> None:
    """One time below zero, and trees would take its candidate for the best and all others for worse than failures."""
    with pytest.raises(InvalidRequest):
        read_groups(records_file(tmp_path / "bad.tar", [GOOD, features], [1e-3, sec]))


def test_features_of_another_kind_are_refused(tmp_path: Path) -> None:
    """Those of another extractor, or of another version of TVM; trees on them would end the search later."""
    from fleet.metaschedule import FleetCostModel

    path = records_file(tmp_path / "other.tar", [GOOD[:, 1:]] * COUNT, [1e-3] * COUNT)

    with pytest.raises(RuntimeError, match="164 columns"):
        FleetCostModel().load(str(path))


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", pickle.dumps([1, 2, 3])])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes) -> None:
    """Whatever is in it, the answer is an error of the one who gave it."""
    no_archive = tmp_path / "no.tar"
    no_archive.write_bytes(content)

    with pytest.raises(InvalidRequest):
        read_groups(archive(tmp_path / "bad.tar", content))
    with pytest.raises(InvalidRequest):
        read_groups(no_archive)
