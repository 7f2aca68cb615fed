"""`fleet jobs` and `fleet optimizer list` on a real library, while no optimizer runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fleet.base.plain import to_plain
from fleet.building.cluster.certs import make_certs
from fleet.cli.job_file import argument_file
from fleet.cli.main import app
from fleet.domain.decisions import Motive, Reason
from fleet.jobs.report import DecisionReport, ProgressReport
from fleet.jobs.spec import order_of, restore_model
from fleet.library import JobState, Library


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "library.sqlite")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "tiny.onnx").write_bytes(b"whoever imports it says what is wrong with it")
    return tmp_path / "tiny.onnx"


def fleet(*words: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    result = CliRunner().invoke(app, words, env={"COLUMNS": "200"}, prog_name="fleet")
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.slow
def test_a_submitted_job_waits_with_all_that_it_takes_to_run_it(path: str, model: Path, tmp_path: Path) -> None:
    """A job stores its options and its model's content, so the file may be deleted afterwards."""
    words = ("--on", "model=pi4", "--on", "kind=cuda", "--trials", "64", "--priority", "urgent", "--library", path)
    code, out, err = fleet("jobs", "submit", str(model), *words)
    content = model.read_bytes()
    model.unlink()

    assert code == 0, err
    assert f"fleet optimizer serve --library {path}" in err
    with Library.open(path) as library:
        job = library.queue.get(out.strip())
        order = order_of(job)
        restored = restore_model(library, order, tmp_path / "else")
    assert (job.state, job.priority) == (JobState.QUEUED, 10)
    assert (order.options.selectors, order.options.trials) == (("model=pi4", "kind=cuda"), 64)
    assert restored.read_bytes() == content


@pytest.mark.slow
def test_the_repeat_command_has_the_users_program_name(path: str) -> None:
    """The command has the program's name, not the path of its file in another machine's cache."""
    code, out, err = fleet("jobs", "submit", "matmul-8", "--trials", "2", "--library", path)
    assert code == 0, err

    page = fleet("report", out.strip(), "--library", path, "--format", "markdown")[1]

    assert "\nfleet tune matmul-8 --on cpu" in page


@pytest.mark.slow
def test_options_without_effect_on_an_optimizer_are_refused(
    path: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options that an optimizer would ignore are refused, so that no user relies on them; an environment variable for
    other commands is not.
    """
    for words in (("--workers", "3"), ("--build-cache", "here"), ("--snapshots", "lab:9390")):
        code, _, err = fleet("jobs", "submit", str(model), "--library", path, *words)
        assert (code, f"so {words[0]} would mean nothing" in err) == (2, True), err
    make_certs(tmp_path / "certs")
    cluster = ("--dask", "tls://127.0.0.1:8786", "--dask-certs", str(tmp_path / "certs"))
    dask = fleet("jobs", "submit", str(model), "--library", path, *cluster, "--workers", "2")
    assert (dask[0], "so --workers, --dask would mean nothing" in dask[2]) == (2, True), dask

    monkeypatch.setenv("FLEET_BUILD_CACHE", "here")
    assert fleet("jobs", "submit", str(model), "--library", path)[0] == 0


@pytest.mark.slow
def test_a_job_is_cancelled_resumed_and_reverted_by_name(path: str, model: Path) -> None:
    """Names work with or without "jobs/"; an impossible operation gets an error of one line."""
    name = json.loads(fleet("jobs", "submit", str(model), "--library", path, "--json")[1])["name"]
    short, where = name.removeprefix("jobs/"), ("--library", path)

    states = [
        json.loads(fleet("jobs", verb, word, *where, "--json")[1])["state"]
        for verb, word in (("cancel", short), ("resume", name), ("cancel", name))
    ]
    again = fleet("jobs", "resume", name, *where)
    refused = fleet("jobs", "revert", name, *where)
    fleet("jobs", "cancel", name, *where)
    reverted = json.loads(fleet("jobs", "revert", name, *where, "--json")[1])
    undone = json.loads(fleet("jobs", "revert", name, "--undo", *where, "--json")[1])

    assert states == ["cancelled", "queued", "cancelled"]
    assert again == (0, "", f"{name} is queued\n")
    assert (refused[0], refused[2]) == (2, f"error: {name} is queued; cancel it first\n")
    assert (reverted["reverted_at"] is not None, undone["reverted_at"]) == (True, None)
    assert "CANCELLED" in fleet("jobs", "list", *where)[1]
    assert name in fleet("jobs", "show", short, *where)[1]


def test_notices_of_a_watched_job_are_not_wrapped_in_a_pipe(path: str) -> None:
    """Notices stay on one line, so that logs can be searched."""
    notice = "a word " * 60
    with Library.open(path) as library:
        name = library.queue.submit(title="a", spec={}).name
        library.queue.take("o")
        library.queue.tell(name, "o", {"kinds": [to_plain(ProgressReport(notices=(notice,)))]})
        library.queue.end(name, "o", JobState.FINISHED, report={"reports": []})

    code, _, err = fleet("jobs", "watch", name, "--library", path)

    assert (code, notice.strip() in err) == (0, True)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--strategy", "xgb_rank"), "use 'xgb'"),
        (("--priority", "high"), "urgent, normal, background"),
        (("--deadline", "2001-01-01"), "is past"),
        (("--until-gain", "100"), "less than 100 %"),
        (("--until-gain", "-1"), "ends no search"),
        (("--until-gain", "nan"), "ends no search"),
        (("--on", "=="), "selector"),
    ],
)
def test_a_job_that_could_never_run_is_not_stored(path: str, model: Path, words: tuple[str, ...], says: str) -> None:
    """It is refused at submission, not hours later."""
    code, _, err = fleet("jobs", "submit", str(model), "--library", path, *words)

    assert code == 2
    assert says in err
    assert not Path(path).exists()


def test_the_optimizers_of_a_library_are_listed(path: str) -> None:
    """The list shows the fleet, and the numbers of running jobs and of builders of each; one without jobs has none."""
    with Library.open(path) as library:
        none = fleet("optimizer", "list", "--library", path)[2]
        name = library.queue.register(tracker="boards:9290", holder="me@here")
        library.queue.submit(title="m", spec={})
        job = library.queue.take(name)
        assert job is not None
        library.queue.tell(job.name, name, {"kinds": [to_plain(ProgressReport(builder_count=3))]})
        idle = library.queue.register(tracker="boards:9290", holder="me@here")

    assert f"fleet optimizer serve --library {path}" in none
    found = json.loads(fleet("optimizer", "list", "--library", path, "--json")[1])["optimizers"]

    assert [(item["name"], item["tracker"], item["jobs"], item["builders"]) for item in found] == [
        (name, "boards:9290", 1, 3),
        (idle, "boards:9290", 0, None),
    ]
    listed = fleet("optimizer", "list", "--library", path)[1]
    assert [line.split()[:3] for line in listed.splitlines()[-2:]] == [[name, "1", "3"], [idle, "0", "-"]]


def test_an_optimizer_serves_no_other_machine_unasked(path: str) -> None:
    """Listening for other machines needs an option, as for a tracker and an agent."""
    code, _, err = fleet("optimizer", "serve", "--port", "0", "--host", "0.0.0.0", "--library", path)

    assert code == 2
    assert "--allow-network" in err


def test_a_report_is_not_written_in_a_format_that_its_name_denies(path: str, tmp_path: Path) -> None:
    """Before, `-o page.pdf` wrote HTML into that file."""
    code, _, err = fleet("report", "-o", str(tmp_path / "page.pdf"), "--library", path)
    assert code == 2
    assert "no format goes with .pdf; end it with .html, .htm, .md, .svg, or give --format" in err
    assert not (tmp_path / "page.pdf").exists()


def planned(operator: str, worth: float) -> DecisionReport:
    reason = Reason(
        motive=Motive.GAIN,
        gain_sec=1e-3,
        spread_sec=5e-4,
        horizon=2,
        device_sec=0.5,
        builder_sec=3.0,
        weight=2.0,
        priority=1.0,
        trust=1.0,
        worth=worth,
    )
    return DecisionReport(operator=operator, count=8, reason=reason, sentence=f"{operator} should gain")


@pytest.mark.slow
def test_the_plan_of_a_job_is_ranked_among_those_of_all_running_jobs(path: str) -> None:
    """`fleet jobs why` has expected gain and cost of each planned batch; `fleet jobs list` has the newest decision."""
    names = []
    with Library.open(path) as library:
        for plan in ((planned("conv2d", 0.5), planned("softmax", 0.1)), (planned("matmul", 0.3),)):
            name = library.queue.submit(title="m", spec={}).name
            library.queue.take("o")
            progress = ProgressReport(selector="cpu", plan=plan, decisions=plan[:1])
            library.queue.tell(name, "o", {"kinds": [to_plain(progress)]})
            names.append(name)

    code, out, err = fleet("jobs", "why", names[0], "--library", path)
    document = json.loads(fleet("jobs", "why", names[0], "--library", path, "--json")[1])
    listed = fleet("jobs", "list", "--library", path)[1]

    assert code == 0, err
    rows = [line.split() for line in out.splitlines()[1:]]
    assert [(row[0], row[1]) for row in rows] == [("1/3", "conv2d"), ("3/3", "softmax")]
    assert "1 ms" in out
    assert [(batch["rank"], batch["reason"]["worth"]) for batch in document["plan"]] == [(1, 0.5), (3, 0.1)]
    assert f"{names[1]}, cpu: 8 candidates of matmul: matmul should gain" in listed


@pytest.mark.slow
def test_a_malformed_progress_of_another_job_breaks_no_list(path: str) -> None:
    """Every account with access to the library can write one."""
    with Library.open(path) as library:
        mine, other = (library.queue.submit(title="m", spec={}).name for _ in range(2))
        assert [library.queue.take("o") is not None for _ in range(2)] == [True, True]
        progress = ProgressReport(selector="cpu", plan=(planned("conv2d", 0.5),), decisions=(planned("conv2d", 0.5),))
        library.queue.tell(mine, "o", {"kinds": [to_plain(progress)]})
        library.queue.tell(other, "o", {"kinds": [{"plan": [{"operator": 5}]}]})

    code, listed, err = fleet("jobs", "list", "--library", path)
    why = fleet("jobs", "why", mine, "--library", path)

    assert (code, other in listed, "conv2d should gain" in listed) == (0, True, True), err
    assert (why[0], "1/1" in why[1]) == (0, True), why


@pytest.mark.slow
def test_a_job_that_is_queued_or_has_just_begun_plans_nothing(path: str, model: Path) -> None:
    """The command says why, and succeeds."""
    name = fleet("jobs", "submit", str(model), "--library", path)[1].strip()

    code, out, err = fleet("jobs", "why", name, "--library", path)
    with Library.open(path) as library:
        library.queue.take("o")
    begun = fleet("jobs", "why", name, "--library", path)

    assert (code, out) == (0, "")
    assert "plans nothing: it is queued" in err
    assert begun == (0, "", f"{name} plans nothing: it prepares its search, or is about to end.\n")


@pytest.mark.slow
def test_a_jobs_argument_file_submits_it_again(path: str, tmp_path: Path) -> None:
    """The file of `--format yaml` gives the same options; those at their default are left out."""
    words = "--on model=pi4 --on kind=cuda --trials 7 --tasks a* --no-model --until-gain 2 --priority urgent --top 4"
    others = "--deadline 2036-12-31T18:00:00Z --cooldown-ms 5 --cool-below-c 60 --flush-cache --minutes 2"
    again = tmp_path / "again.yaml"
    kept = "--seed 3 --max-age 90d"
    first = _submitted(path, "matmul-8", *words.split(), *others.split(), *kept.split())
    again.write_text(fleet("jobs", "show", first, "--library", path, "--format", "yaml")[1])
    plain = _submitted(path, "matmul-8", "--exhaust")

    second = _submitted(path, f"@{again}")

    with Library.open(path) as library:
        one, other = (order_of(library.queue.get(name)).options for name in (first, second))
    assert one == other
    shown = fleet("jobs", "show", plain, "--library", path, "--format", "yaml")[1]
    assert shown == "model: matmul-8\n'on':\n- cpu\nexhaust: true\n"


def test_jobs_are_found_by_their_tags(path: str) -> None:
    """A job has all tags that are asked for; its argument file and its row have them, too."""
    first = _submitted(path, "matmul-8", "--tag", "nightly", "--tag", "pi4/base")
    second = _submitted(path, "matmul-8", "--tag", "nightly")

    def listed(*words: str) -> list[tuple[str, list[str]]]:
        found = json.loads(fleet("jobs", "list", "--library", path, "--json", *words)[1])["jobs"]
        return [(job["name"], job["tags"]) for job in found if job["name"] in (first, second)]

    assert listed("--tag", "nightly") == [(second, ["nightly"]), (first, ["nightly", "pi4/base"])]
    assert listed("--tag", "nightly", "--tag", "pi4/base") == [(first, ["nightly", "pi4/base"])]
    assert listed("--tag", "night") == []
    assert "#nightly #pi4/base" in fleet("jobs", "list", "--library", path)[1]
    assert "tag:\n- nightly\n- pi4/base\n" in fleet("jobs", "show", first, "--library", path, "--format", "yaml")[1]
    code, _, err = fleet("jobs", "list", "--library", path, "--tag", "two words")
    assert code == 2
    assert "is no tag" in err


@pytest.mark.slow
def test_a_run_without_an_order_has_an_argument_file_too(path: str) -> None:
    """A run of `fleet tune` keeps its conditions, which are options; its evaluator is one of them."""
    name = _submitted(path, "matmul-8", "--trials", "7", "--seed", "3", "--on", "kind=cuda", "--flush-cache")
    with Library.open(path) as library:
        job = library.queue.get(name)
    conditions = order_of(job).options.conditions()

    text = argument_file(replace(job, spec=None, conditions=conditions))

    assert text == "model: matmul-8\n'on':\n- kind=cuda\ntrials: 7\nseed: 3\nflush-cache: true\n"


def _submitted(path: str, *words: str) -> str:
    code, out, err = fleet("jobs", "submit", *words, "--library", path)
    assert code == 0, err
    return out.strip()
