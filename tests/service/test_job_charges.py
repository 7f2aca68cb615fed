"""A job's charges while its library is away, and after its return."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from fleet.building.turns import Cores, Turns
from fleet.domain.scope import RecordScope
from fleet.library import Library, Record, StoredWorkload
from fleet.optimizer.charges import ChargesOfJob
from fleet.optimizer.core import events as ev
from fleet.optimizer.core.state import JobCore
from fleet.testing import eventually
from tests.unit.optimizer_core import conditions, known

SCOPE = RecordScope(target_json='{"kind":"llvm"}', device_model="pi4", tvm_version="0.27.0")


@pytest.mark.slow
async def test_charges_are_read_once_the_library_is_back(
    library: Library, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A closed workload is left then, so that the job pays for no more trials of others. One warning is logged."""
    library.add_workload(StoredWorkload(shash="w", name="w", mod_json="{}"))
    name, other = (library.start_job(title=title, optimizer=title).name for title in "ab")
    library.claims.take(name, "w", SCOPE, {"d": "[[],[]]"})
    library.add_records(
        [
            Record(
                workload="w",
                scope=SCOPE,
                trace_json="[[],[]]",
                run_secs=(1.0,),
                job_name=name,
                provenance={"device_sec": 3.0, "shared_with": [other]},
            )
        ]
    )
    core = JobCore()
    core.start(conditions(), 8, [known("w")])
    core.apply(ev.EndWanted("the deadline"))
    charges = ChargesOfJob(library=library, job_name=name, scope=SCOPE)
    with closing(sqlite3.connect(tmp_path / "library.sqlite", isolation_level=None)) as database:
        database.execute(
            "CREATE TRIGGER away BEFORE DELETE ON candidate_claims BEGIN SELECT RAISE(ABORT, 'the disk is full'); END"
        )
        following = asyncio.create_task(charges.follow(core, Turns(shares_cores=False, cores=Cores())))
        await eventually(lambda: "library not read" in caplog.text or following.done())
        assert library.claims.sharers(other, "w", SCOPE) == {name}
        database.execute("DROP TRIGGER away")
        await eventually(lambda: core.progress.charged_sec > 0 or following.done())
    following.cancel()

    assert core.progress.charged_sec == 1.5
    assert library.claims.sharers(other, "w", SCOPE) == frozenset()
    assert caplog.text.count("library not read") == 1
