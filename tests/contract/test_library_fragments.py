"""Fragments of workloads, on SQLite and on PostgreSQL."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from fleet.library import Library, schema
from fleet.library.migrations import migrate
from tests.contract.library_records import MATMUL, TARGET
from tests.contract.library_records import library as library
from tests.contract.test_library_migrations import connected

OTHER = '{"kind":"cuda","arch":"sm_90"}'
RESPELT = '{"num-cores": 2, "mcpu": "x86-64-v3", "kind": "llvm"}'


def test_the_first_fragment_of_a_workload_is_kept_for_each_target(library: Library) -> None:
    """Targets are compared by meaning, and a workload that the library lacks is left out."""
    library.add_fragments(TARGET, {MATMUL.shash: b"first", "99": b"unknown"})
    library.add_fragments(RESPELT, {MATMUL.shash: b"second"})
    library.add_fragments(OTHER, {MATMUL.shash: b"\x00of a GPU"})

    assert library.fragments(RESPELT, [MATMUL.shash, "99"]) == {MATMUL.shash: b"first"}
    assert library.fragments(OTHER, [MATMUL.shash]) == {MATMUL.shash: b"\x00of a GPU"}
    assert library.fragments(TARGET, []) == {}


def test_fragments_of_many_workloads_are_stored_and_read_at_once(library: Library) -> None:
    """More than the parameters of one statement; two writers in different order do not block each other."""
    shashes = [str(1000 + number) for number in range(1100)]
    library.add_workloads(replace(MATMUL, shash=shash) for shash in shashes)
    by_workload = {shash: shash.encode() for shash in shashes}
    orders = [by_workload, dict(reversed(by_workload.items()))]

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda order: library.add_fragments(TARGET, order), orders))

    assert library.fragments(TARGET, shashes) == by_workload


def test_an_older_schema_has_no_place_for_fragments(url: str) -> None:
    """They are lost on the way down, and nothing else is."""
    with Library.open(url) as library:
        library.add_workload(MATMUL)
        library.add_fragments(TARGET, {MATMUL.shash: b"first"})
    with connected(url) as connection:
        migrate(connection, schema.SCHEMA_VERSION, 11)

    with Library.open(url) as library:
        assert library.fragments(TARGET, [MATMUL.shash]) == {}
        assert library.workload(MATMUL.shash) == MATMUL
        library.add_fragments(TARGET, {MATMUL.shash: b"again"})
        assert library.fragments(TARGET, [MATMUL.shash]) == {MATMUL.shash: b"again"}
