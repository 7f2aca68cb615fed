"""`fleet tune` stores proven records, also for schedules of earlier jobs, and commands prefer proven schedules."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from fleet.domain.proving import Proof, ProofVerdict
from fleet.library import Library, Record, RecordKind
from fleet.library.schema import proofs, records

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

_BUSY = "others used"
"""Message of the command if a time stays unproven because other processes use the processors."""


def fleet(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fleet.cli.main", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )


@pytest.fixture
def tuned(tmp_path: Path) -> tuple[Path, str]:
    """A library with a tuned matrix product, and the messages of the command."""
    path = tmp_path / "library.sqlite"
    return path, fleet("tune", "matmul-128", "--trials", "4", "--library", path).stderr


def best(path: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(fleet("library", "best", "--library", path, "--json").stdout)["best"][0]
    return found


def build(path: Path) -> str:
    """Build the product with the schedule that all commands take; return stderr."""
    return fleet("build", "matmul-128", "--library", path, "--output", path.with_name("matmul.so")).stderr


def test_the_best_of_a_job_is_proven_and_that_of_an_earlier_one_when_it_is_tuned_again(tuned: tuple[Path, str]) -> None:
    """A job without trials proves them too. Without proofs, `fleet build` prints one line about it."""
    path, said = tuned
    assert "not proven" not in build(path) or _BUSY in said

    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        connection.execute(proofs.delete())
        connection.execute(records.delete().where(records.c.kind == RecordKind.STATIC))  # it needs no proof
    engine.dispose()
    with Library.open(path) as library:
        _two_schedules(library)  # marks one as checked
    assert best(path)["is_proven"] is None
    assert "times not proven for 1 of 1 schedule" in build(path)

    again = fleet("tune", "matmul-128", "--trials", "0", "--library", path).stderr
    assert "not proven" not in build(path) or _BUSY in again


def test_a_build_takes_a_proven_schedule_before_a_faster_claim(tuned: tuple[Path, str]) -> None:
    """`fleet build` and `library best` pass over an unproven record that claims a nanosecond."""
    path, _ = tuned
    with Library.open(path) as library:
        honest, other = _two_schedules(library)
        proof = Proof(verdict=ProofVerdict.PROVEN, claimed_sec=honest.median_sec, least_sec=honest.median_sec / 2)
        library.add_proof(honest.workload, honest.scope, honest.trace_json, proof)
        library.add_record(
            Record(
                workload=other.workload, scope=other.scope, trace_json=other.trace_json, run_secs=(1e-9,), checked=True
            )
        )
        library.add_proof(other.workload, other.scope, other.trace_json, replace(proof, least_sec=1e-6))

    assert best(path)["trace"] == honest.trace_json
    assert "not proven" not in build(path)


def _two_schedules(library: Library) -> tuple[Record, Record]:
    """Return two candidates of the library with times."""
    (workload,) = library.find_workloads()
    honest, other = library.best(workload.shash, k=2)
    library.mark_checked(honest.id)
    return honest, other
