"""Proofs of times in every library, on SQLite and on PostgreSQL."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleet.domain.measuring import ErrorKind
from fleet.domain.proving import Proof, ProofVerdict
from fleet.errors import NotFound
from fleet.library import Library, RecordKind
from tests.contract.library_records import MATMUL, PI5, SCOPE, record
from tests.contract.library_records import library as library

PROVEN = Proof(verdict=ProofVerdict.PROVEN, claimed_sec=1e-3, measured_sec=1.01e-3, least_sec=0.8e-3, calls=7)
REFUTED = Proof(verdict=ProofVerdict.REFUTED, claimed_sec=1e-9, measured_sec=2e-2, message="7 calls took longer")


def test_a_time_is_proven_for_a_candidate(library: Library) -> None:
    """A proof holds for all measurements on its device model. On other device models, `is_proven` stays None."""
    (one, other) = library.add_records([record(1, 1e-3), record(2, 2e-3)])
    assert one.is_proven is None

    library.add_proof(MATMUL.shash, SCOPE, one.trace_json, PROVEN)
    library.add_records([record(1, 1.1e-3), record(1, 1e-3, scope=PI5)])

    proven = [(found.trace_digest, found.scope.device_model, found.is_proven) for found in library.records()]
    first, second = one.trace_digest, other.trace_digest
    assert proven == [(first, "pi4", True), (second, "pi4", None), (first, "pi4", True), (first, "pi5", None)]


def test_a_proof_proves_no_shorter_time(library: Library) -> None:
    """A later, shorter claim than the proof's bound is not proven until there is a newer proof."""
    library.add_record(record(1, 1e-3))
    trace = library.records()[0].trace_json
    library.add_proof(MATMUL.shash, SCOPE, trace, PROVEN)
    library.add_record(record(1, 0.5e-3))

    assert [found.is_proven for found in library.records()] == [True, None]
    assert library.best(MATMUL.shash, SCOPE, proven_only=True) == []
    assert len(library.best(MATMUL.shash, SCOPE)) == 1

    library.add_proof(MATMUL.shash, SCOPE, trace, replace(PROVEN, least_sec=0.4e-3))
    assert [found.is_proven for found in library.records()] == [True, True]
    assert len(library.best(MATMUL.shash, SCOPE, proven_only=True)) == 1


def test_a_refuted_time_counts_no_more(library: Library) -> None:
    """All its records on the device model become TIME_NOT_PROVEN, and the next best becomes the best."""
    liar, honest = library.add_records([record(1, 1e-9), record(2, 1e-3)])
    library.add_proof(MATMUL.shash, SCOPE, liar.trace_json, REFUTED)

    assert [found.id for found in library.best(MATMUL.shash, SCOPE, k=5)] == [honest.id]
    refused = library.records()[0]
    assert (refused.error, refused.error_message) == (ErrorKind.TIME_NOT_PROVEN, "7 calls took longer")
    assert refused.is_proven is False


def test_proofs_of_a_workload_that_is_not_there(library: Library) -> None:
    """The error is the same as for records: NotFound."""
    with pytest.raises(NotFound):
        library.add_proof("nowhere", SCOPE, "[]", PROVEN)


def test_a_static_schedule_needs_no_proof_where_times_are_proven(library: Library) -> None:
    """On a device without proofs, a faster trial comes first; elsewhere, an unproven claim does not beat it."""
    trial, claim = library.add_records([record(1, 1e-3), record(2, 1e-9)])
    (static,) = library.add_records([replace(record(3, 2e-3), kind=RecordKind.STATIC)])
    assert library.best(MATMUL.shash, SCOPE, proven_only=True) == []
    assert (static.needs_proof, claim.needs_proof) == (False, True)

    library.add_proof(MATMUL.shash, SCOPE, trial.trace_json, PROVEN)

    found = library.best(MATMUL.shash, SCOPE, k=3, proven_only=True)
    assert [one.id for one in found] == [trial.id, static.id]
