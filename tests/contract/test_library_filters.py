"""Filters of records by age and by facts of their environments, on SQLite and on PostgreSQL."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from fleet.domain.scope import ScopeFilter
from fleet.library import Library
from tests.contract.library_records import MATMUL, PI5, SCOPE, numbers, record
from tests.contract.library_records import library as library

NOW = datetime(2026, 5, 1, tzinfo=UTC)
FAN = {"kernel": "6.6.1", "owner": {"cooling": "fan", "kernel": "mine"}}
BARE = {"kernel": "6.6.2"}


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        ((("cooling", "fan"),), [1]),
        ((("kernel", "6.6*"),), [1, 2]),
        ((("kernel", "mine"),), []),
        ((("kernel", "6.6*"), ("cooling", "none")), []),
        ((), [1, 2, 3]),
    ],
)
def test_records_are_chosen_by_their_environments(
    library: Library, facts: tuple[tuple[str, str], ...], found: list[int]
) -> None:
    """All facts must fit; the owner's facts do not replace others; records without an environment have no facts."""
    library.add_records([record(1, environment=FAN), record(2, environment=BARE), record(3)])

    assert numbers(library.records(MATMUL.shash, ScopeFilter(facts=facts))) == found
    assert library.scopes(within=ScopeFilter(facts=facts)) == ([SCOPE] if found else [])
    assert library.known_facts() == ["cooling", "kernel"]


def test_old_records_are_left_out_and_counted(library: Library) -> None:
    """A candidate counts with its newest time that is young enough; failures and other scopes are not counted."""
    old, young = {"created_at": NOW - timedelta(days=2)}, {"created_at": NOW}
    library.add_records(
        [
            record(1, 1e-3, **old),
            record(2, 5e-3, **young),
            record(2, 1e-4, **old),
            record(3, None, **old),
            record(4, scope=PI5, **old),
        ]
    )
    within = replace(ScopeFilter().of(SCOPE), measured_since=NOW - timedelta(days=1))

    assert [(one.median_sec, one.created_at) for one in library.best(MATMUL.shash, within, k=9)] == [(5e-3, NOW)]
    assert library.count_older([MATMUL.shash], within) == 2
    assert library.count_older(["18"], within) == 0
    assert library.count_older([MATMUL.shash], SCOPE) == 0
