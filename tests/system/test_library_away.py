"""A running job outlasts an outage of its library's database."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import live_tasks
from benchmarks.live_lab import write_model
from benchmarks.processes import Process, python
from fleet.jobs.options import TuneOptions
from fleet.library import JobState, Library, RecordKind
from fleet.optimizer.submit import submit
from fleet.testing import eventually_sync
from tests.contract.library_postgres import empty_database, postgres_server
from tests.system.fleet_processes import running_fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

_WITHIN_SEC = 150
_KEY = "8x16x32"
_TRIALS = 24


def test_a_job_goes_on_when_its_library_is_back(tmp_path: Path) -> None:
    """It waits for the database, stores the results of the outage, and ends in the same process."""
    tracks = {_KEY: {"group": 0, "order": list(range(_TRIALS))}}
    (tmp_path / "tracks.json").write_text(json.dumps(tracks))
    write_model(tmp_path / "product.onnx", {_KEY: 1.0})
    (tmp_path / "fleet").mkdir()
    board = "devices: [{driver: simulated, name: sim, load_ms: 200}]"
    with postgres_server() as server, running_fleet(tmp_path / "fleet", board) as fleet:
        url, log = empty_database(server.url), tmp_path / "optimizer.log"
        words = ("--tracker", fleet.address, "--library", url, "--jobs", 1, "--workers", 1)
        command = python("benchmarks.peers.recorded_optimizer", *words)
        environment = {live_tasks.TRACKS_VARIABLE: str(tmp_path / "tracks.json")}
        with Library.open(url) as library, Process(command, log, environment=environment):
            options = TuneOptions(
                model=tmp_path / "product.onnx",
                selector="kind=simulated",
                trials=_TRIALS,
                batch_size=4,
                until_gain=0.0,
                compares_model=False,
            )
            name = submit(library, options, holder="test").name
            eventually_sync(lambda: len(library.records(job_name=name)) >= 4, _WITHIN_SEC)
            before = library.queue.get(name)

            server.stop()
            eventually_sync(lambda: "a job's library is unavailable" in log.read_text(), _WITHIN_SEC)
            server.start()
            eventually_sync(lambda: library.queue.get(name).state is not JobState.RUNNING, _WITHIN_SEC)

            after = library.queue.get(name)
            records = library.records(job_name=name, kinds=[RecordKind.CANDIDATE])

    assert (before.state, after.state, after.message) == (JobState.RUNNING, JobState.FINISHED, "")
    assert before.pid == after.pid
    assert len({record.trace_digest for record in records}) == after.trials_done == _TRIALS
