"""Coverage of a model by a library's records, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from cross.targets.target import parse_target
from fleet.domain.measuring import TensorSpec
from fleet.domain.scope import ScopeFilter
from fleet.domain.workload import Workload
from fleet.library import Library
from fleet.optimizer.library_coverage import Coverage, CoveredOperator, Share, cover, shares
from tests.contract.test_library_static_times import OTHER, SCOPE, record, search

_TARGET = parse_target(SCOPE.target_json)
_WITHIN = ScopeFilter(target_json=SCOPE.target_json, device_model="m", tvm_version="1")


@pytest.fixture
def library(url: str) -> Iterator[Library]:
    with Library.open(url) as library:
        yield library


def product(rows: int, *, weight: int = 1, name: str = "matmul") -> Workload:
    """The workload that `search` stores, as a model has it."""
    args = (
        TensorSpec((rows, 64), "float32"),
        TensorSpec((64, 64), "float32"),
        TensorSpec((rows, 64), "float32", is_output=True),
    )
    return Workload(shash=str(rows), name=name, mod_json="{}", args=args, flop=100.0, weight=weight)


def covered(library: Library, *workloads: Workload) -> list[CoveredOperator]:
    return cover(library, workloads, _TARGET, _WITHIN)


def test_a_checked_record_of_the_program_comes_first(library: Library) -> None:
    """An unchecked record, and one of another target, cover nothing."""
    search(library, 1, best_sec=0.5)
    search(library, 2, best_sec=0.5, scope=OTHER)
    library.add_workload(product(3))
    library.add_record(record(3, 0.1))

    exact, other, unchecked = covered(library, product(1), product(2), product(3))

    assert exact.coverage is Coverage.EXACT
    assert exact.record is not None
    assert exact.record.median_sec == 0.5
    assert [one.coverage for one in (other, unchecked)] == [Coverage.NEIGHBOUR] * 2
    assert [one.neighbour.shash for one in (other, unchecked) if one.neighbour] == ["1", "1"]


def test_a_neighbour_has_a_checked_record_and_the_same_operators(library: Library) -> None:
    """The nearest recorded shape is named; other operators, and shapes without a record, are not."""
    search(library, 8, best_sec=0.5)
    search(library, 64, best_sec=0.5)
    library.add_workload(product(15))

    near, alone = covered(library, product(16), product(17, name="softmax"))

    assert near.neighbour is not None
    assert (near.coverage, near.neighbour.shash) == (Coverage.NEIGHBOUR, "8")
    assert (alone.coverage, alone.neighbour) == (Coverage.NOTHING, None)


def test_static_is_enough_for_a_kind_that_trials_did_not_improve(library: Library) -> None:
    """Five searches of the kind without a gain count for more than a neighbour."""
    for rows in range(1, 6):
        search(library, rows, best_sec=1.0)

    [found] = covered(library, product(100))

    assert found.coverage is Coverage.STATIC
    assert found.quality is not None
    assert (found.quality.searched, found.quality.improved) == (5, 0)


def test_shares_count_programs_and_weigh_operations(library: Library) -> None:
    """Operators are distinct programs; operations count as often as the model calls them."""
    search(library, 1, best_sec=0.5)

    found = shares(covered(library, product(1, weight=3), product(2, name="softmax")))

    assert found == [
        Share(coverage=Coverage.EXACT, operators=1, operations=0.75),
        Share(coverage=Coverage.STATIC, operators=0, operations=0.0),
        Share(coverage=Coverage.NEIGHBOUR, operators=0, operations=0.0),
        Share(coverage=Coverage.NOTHING, operators=1, operations=0.25),
    ]
    nothing = shares([replace(one, workload=replace(one.workload, flop=0.0)) for one in covered(library, product(1))])
    assert nothing[0] == Share(coverage=Coverage.EXACT, operators=1, operations=0.0)
