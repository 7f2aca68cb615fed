"""Records, their workload and a library for tests of the contract."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from fleet.domain.measuring import ErrorKind, TensorSpec
from fleet.domain.scope import RecordScope
from fleet.library import Library, Record, StoredWorkload

TARGET = '{"kind":"llvm","mcpu":"x86-64-v3","num-cores":2}'
SCOPE = RecordScope(target_json=TARGET, device_model="pi4", tvm_version="0.27.0")
PI5 = replace(SCOPE, device_model="pi5")
MATMUL = StoredWorkload(
    shash="17",
    name="matmul",
    mod_json='{"root": 1}',
    flop=2.0 * 64**3,
    args=(TensorSpec((64, 64), "float32"), TensorSpec((64, 64), "float32", is_output=True)),
)


@pytest.fixture
def library(url: str) -> Iterator[Library]:
    with Library.open(url) as library:
        library.add_workload(MATMUL)
        yield library


def record(number: int, sec: float | None = 1e-3, **facts: object) -> Record:
    """A record of candidate `number`; no time means that it crashed."""
    given: dict[str, object] = {
        "workload": MATMUL.shash,
        "scope": SCOPE,
        "trace_json": f'[[["Split",["l1",{number}]]],[]]',
        "run_secs": () if sec is None else (sec,),
        "error": ErrorKind.CRASHED if sec is None else None,
    }
    return Record(**(given | facts))  # type: ignore[arg-type]


def numbers(found: list[Record]) -> list[int]:
    """Return the numbers of the records' candidates."""
    return [json.loads(entry.trace_json)[0][0][1][1] for entry in found]
