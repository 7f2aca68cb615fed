"""Submitted jobs: immediate refusals, storage, and reading by an optimizer."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import onnx
import pytest

from fleet.base.plain import from_plain, to_plain
from fleet.checking.weakness import Weakness
from fleet.domain.jobs import parse_priority
from fleet.domain.measuring import ErrorKind
from fleet.errors import ImportFailed, InvalidRequest
from fleet.jobs.fleets import Destination
from fleet.jobs.options import TuneOptions, trial_evaluator
from fleet.jobs.report import ModelReport, ProgressReport, TuneReport, WorkloadReport
from fleet.jobs.spec import JobOrder, order_of
from fleet.library import Job, Library
from fleet.optimizer.serving.daemon import for_each_kind
from fleet.optimizer.strategies import BUILT_IN, strategy_of
from fleet.optimizer.submit import check_options, submit

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
OPTIONS = TuneOptions(
    model=Path("m.onnx"),
    selector="kind=cpu",
    also_on=("model=pi4",),
    trials=9,
    tasks=("conv2d*",),
    shapes=({"data": (1, 3, 8, 8)},),
    deadline=NOW,
    minutes=3.0,
    evaluator=trial_evaluator(cool_below_c=50.0),
)


def through_json(value: object) -> object:
    return json.loads(json.dumps(to_plain(value)))


def job(spec: object) -> Job:
    return Job(name="jobs/1", title="m", started_at=NOW, touched_at=NOW, spec=spec)  # type: ignore[arg-type]


def test_an_order_is_read_as_it_was_written() -> None:
    """An order survives JSON with all of its options."""
    order = JobOrder(options=OPTIONS, files={"m.onnx": "sha256:1"}, tracker="here:1")

    assert order_of(job(through_json(order))) == order


@pytest.mark.parametrize(
    ("model", "title"),
    [
        ("models/m.onnx", "m.onnx"),
        ("hf:./models/my-bert", "hf:my-bert"),
        ("hf:my-bert", "hf:my-bert"),
        ("hf:BertConfig:hidden_size=64", "hf:BertConfig:hidden_size=64"),
    ],
)
def test_a_job_is_called_as_its_model_is_named(model: str, title: str) -> None:
    """A job's title is the model's argument of `fleet tune` without its folder."""
    assert TuneOptions(model=Path(model)).title == title


@pytest.mark.parametrize("program", ["matmul-256", "programs.of_mine:product", "programs.py:product"])
def test_a_job_of_a_program_is_called_as_its_user_calls_that(program: str) -> None:
    """The title is the user's name for the program, not the path of the cached file."""
    assert TuneOptions(model=Path("cache/1234/product.json"), program=program).title == program


@pytest.mark.parametrize("spec", [None, {}, {"format": 99}])
def test_an_unsupported_job_is_refused(spec: object) -> None:
    """A job of `fleet tune`, or one from a version that writes otherwise."""
    with pytest.raises(InvalidRequest, match="jobs/1 was"):
        order_of(job(spec))


def test_a_report_is_read_as_it_was_written() -> None:
    """Infinite and missing values and enums survive, too."""
    workload = WorkloadReport(
        name="w", operator="matmul", weight=2, trials=3, trials_before=0, untuned_us=1.5, static_us=None, best_us=1.0,
        gflops=None, speedup=1.5, uses_schedule=True, weakness=next(iter(Weakness)), errors={"TIMEOUT": 1}, note="",
    )  # fmt: skip
    report = TuneReport(
        job="jobs/1", title="m", device="devices/a", device_model="a", library="l", trials=3, wall_sec=math.inf,
        first_trial_sec=None, last_record_sec=2.0, workloads=(workload,), model=ModelReport(tuned_ms=1.0),
    )  # fmt: skip
    progress = ProgressReport(selector="cpu", trials_done=1, workloads=(workload,), notices=("hot",))

    assert from_plain(TuneReport, through_json(report)) == report
    assert from_plain(ProgressReport, through_json(progress)) == progress


@dataclass(frozen=True, kw_only=True)
class Sample:
    number: int = 1
    kinds: tuple[ErrorKind, ...] = ()


def test_a_value_of_a_newer_or_older_version_is_read() -> None:
    """Unknown keys are left out, and missing fields have their defaults."""
    assert from_plain(Sample, {"kinds": ["TIMEOUT"], "new": 1}) == Sample(kinds=(ErrorKind.TIMEOUT,))


@pytest.mark.parametrize("plain", [{"number": "1"}, {"number": True}, {"kinds": ["NONE"]}, {"kinds": 1}, [], None])
def test_an_invalid_value_is_refused_with_its_path(plain: object) -> None:
    """The error has the path to the wrong value."""
    with pytest.raises(InvalidRequest, match="Sample"):
        from_plain(Sample, plain)


@pytest.mark.parametrize(
    "bad",
    [
        {"selector": "kind=="},
        {"also_on": ("=",)},
        {"strategy": "simulated-annealing"},
        {"deadline": NOW - timedelta(seconds=1)},
        {"minutes": 0.0},
        {"minutes": float("nan")},
        {"minutes": 1e9},
        {"target_ms": 0.0},
        {"until_gain": 1.0},
        {"until_gain": float("nan")},
        {"trials": -1},
    ],
)
def test_a_job_that_could_never_run_is_refused_at_once(bad: dict[str, object]) -> None:
    """The refusal comes before anything is stored or started."""
    options = replace(OPTIONS, deadline=NOW + timedelta(hours=1))
    check_options(options, NOW)

    with pytest.raises(InvalidRequest):
        check_options(replace(options, **bad), NOW)  # type: ignore[arg-type]


def test_trials_are_shared_among_the_kinds_of_boards() -> None:
    """All trials are shared as evenly as possible; without a number, each kind has the default."""
    shared = for_each_kind(OPTIONS)
    usual = for_each_kind(replace(OPTIONS, trials=None))

    assert [(item.selector, item.trials, item.also_on) for item in shared] == [
        ("kind=cpu", 5, ()),
        ("model=pi4", 4, ()),
    ]
    assert [item.trials for item in usual] == [None, None]


@pytest.mark.parametrize(("text", "priority"), [("urgent", 10), ("Normal", 0), ("background", -10), ("7", 7)])
def test_a_priority_is_a_class_or_a_number(text: str, priority: int) -> None:
    """Larger goes first."""
    assert parse_priority(text) == priority


def test_a_priority_that_is_neither_is_refused() -> None:
    """The classes are named."""
    with pytest.raises(InvalidRequest, match="urgent, normal, background"):
        parse_priority("high")


@pytest.mark.parametrize("name", ["xgb", "ga", "random", "gridsearch", "evolutionary", "replay"])
def test_the_names_of_autotvms_tuners_are_known(name: str) -> None:
    """AutoTVM's names work besides our own."""
    assert strategy_of(name) is BUILT_IN[name]


@pytest.mark.parametrize(
    ("name", "instead"), [("xgb_rank", "use 'xgb'"), ("droplet", "use 'evolutionary'"), ("gridserch", "'gridsearch'")]
)
def test_an_unknown_strategy_is_refused_with_the_alternative(name: str, instead: str) -> None:
    """A name from AutoTVM, or one with a typo."""
    with pytest.raises(InvalidRequest, match=instead):
        strategy_of(name)


SECRET = b"the submitter's private key"


def external(location: str) -> onnx.TensorProto:
    tensor = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[1], data_location=1)
    tensor.external_data.add(key="location", value=location)
    return tensor


def model_with(place: str, location: str) -> onnx.ModelProto:
    """Return a model with external data at one of the places that the format allows."""
    tensor, out = external(location), onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    constant = onnx.helper.make_node("Constant", [], ["y"], value=tensor)
    node, weights = constant, []
    if place == "weight":
        node, weights = onnx.helper.make_node("Identity", ["w"], ["y"]), [tensor]
    if place == "branch":
        branch = onnx.helper.make_graph([constant], "branch", [], [out])
        node = onnx.helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    return onnx.helper.make_model(onnx.helper.make_graph([node], "g", [], [out], weights))


@pytest.mark.parametrize("place", ["weight", "constant", "branch"])
@pytest.mark.parametrize("way", ["absolute", "parent", "link", "linked folder"])
def test_a_strangers_model_takes_no_file_along(place: str, way: str, tmp_path: Path) -> None:
    """Weights outside of the model's folder are refused unread: the library would show them to all users."""
    (tmp_path / "home").mkdir()
    (tmp_path / "models").mkdir()
    (tmp_path / "home/id_ed25519").write_bytes(SECRET)
    (tmp_path / "models/link").symlink_to(tmp_path / "home/id_ed25519")
    (tmp_path / "models/linked folder").symlink_to(tmp_path / "home")
    locations = {
        "absolute": str(tmp_path / "home/id_ed25519"),
        "parent": "../home/id_ed25519",
        "link": "link",
        "linked folder": "linked folder/id_ed25519",
    }
    model = tmp_path / "models/stranger.onnx"
    model.write_bytes(model_with(place, locations[way]).SerializeToString())

    with Library.open(tmp_path / "library.sqlite") as library, pytest.raises(ImportFailed, match="for its weights"):
        submit(library, TuneOptions(model=model), holder="me")

    assert SECRET not in (tmp_path / "library.sqlite").read_bytes()
    assert (
        not (tmp_path / "library.sqlite-wal").exists() or SECRET not in (tmp_path / "library.sqlite-wal").read_bytes()
    )


def test_a_submitted_job_names_its_fleet_and_its_submitters_account(tmp_path: Path) -> None:
    """Orders from versions without accounts have none."""
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights/w.bin").write_bytes(bytes(4))
    (tmp_path / "m.onnx").write_bytes(model_with("branch", "weights/w.bin").SerializeToString())
    destination = Destination(fleet_id="f", account="team-a")

    with Library.open(tmp_path / "library.sqlite") as library:
        job = submit(library, TuneOptions(model=tmp_path / "m.onnx"), holder="me", destination=destination)

    assert ("f", "team-a") == (order_of(job).fleet_id, order_of(job).account)
    older = {name: value for name, value in (job.spec or {}).items() if name != "account"}
    assert "" == order_of(replace(job, spec=older)).account


def test_weights_beside_a_model_come_along(tmp_path: Path) -> None:
    """Weights in its folder or below are included, for every place in the graph."""
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights/w.bin").write_bytes(bytes(4))
    (tmp_path / "m.onnx").write_bytes(model_with("branch", "weights/w.bin").SerializeToString())

    with Library.open(tmp_path / "library.sqlite") as library:
        job = submit(library, TuneOptions(model=tmp_path / "m.onnx"), holder="me")

    assert set(order_of(job).files) == {"m.onnx", "weights/w.bin"}


@pytest.mark.parametrize("name", ["m.pt2", "m.keras", "hf:BertConfig"])
def test_a_format_that_is_code_is_refused_from_the_queue(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An optimizer would run such code under its own account."""
    monkeypatch.chdir(tmp_path)
    Path("m.pt2").touch()
    Path("m.keras").touch()

    with Library.open("library.sqlite") as library:
        with pytest.raises(InvalidRequest, match=r"a format that is code.*fleet tune"):
            submit(library, TuneOptions(model=Path(name)), holder="me")
        assert library.jobs() == []
