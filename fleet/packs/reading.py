"""Reads the records of a copied pack, each through the same check as an import, into a library of their own.

Workloads are sorted by hash and each has records, in the same order: a pack of any size is read in little memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fleet.domain.keys import canonical_target
from fleet.domain.making import Making
from fleet.domain.measuring import ABSURD_SEC, TensorSpec
from fleet.domain.scope import RecordScope
from fleet.errors import InvalidRequest, NoLibrary
from fleet.library import Library, Record, StoredWorkload
from fleet.library.exchange import (
    RECORD_FILE,
    WORKLOAD_FILE,
    RecordLine,
    args_of_line,
    parse_record_line,
    parse_workload,
    record_of_line,
    with_args,
)
from fleet.packs import layout, strict_json
from fleet.packs.contents import PackConfig, RecordFacts, parse_facts
from fleet.packs.files import Budget, read_lines
from fleet.packs.layout import Manifest

WORKLOADS_NAME, RECORDS_NAME, FACTS_NAME = f"{WORKLOAD_FILE}.gz", f"{RECORD_FILE}.gz", "facts.jsonl.gz"

MOST_RECORDS = 1_000_000
_MOST_OF_WORKLOAD = 1_000
_MOST_OF_WORKLOAD_BYTES = 64 * 1024**2
_MOST_RUNS = 10_000
_MOST_TARGET_CHARS = 4_096
_LEAST_SEC = 1e-9
"""A call alone takes longer."""

_BATCH = 2_000
"""Records per transaction."""


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of a record, and its facts."""

    where: str
    content: RecordLine
    facts: RecordFacts
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Group:
    """A workload of a pack with its records."""

    workload: StoredWorkload
    records: list[Record]
    size_bytes: int


def fill(library: Library, folder: Path, manifest: Manifest, config: PackConfig) -> None:
    """Store the workloads and records of a pack that was copied into a folder.

    Raises:
        InvalidRequest: a line has another form or is not allowed, or the configuration has other counts.
    """
    if config.records > MOST_RECORDS:
        raise InvalidRequest(f"it has {config.records:,} records, more than {MOST_RECORDS:,}")
    counted = _Counts(config)
    for groups in _batches(read_groups(folder, manifest, config)):
        for group in groups:
            counted.add(group)
        library.add_workloads(group.workload for group in groups)
        library.add_unread([record for group in groups for record in group.records])
    counted.check()


def _batches(groups: Iterator[Group]) -> Iterator[list[Group]]:
    """Yield groups for one transaction each."""
    batch, records, size_bytes = list[Group](), 0, 0
    for group in groups:
        batch.append(group)
        records += len(group.records)
        size_bytes += group.size_bytes
        if records >= _BATCH or size_bytes >= _MOST_OF_WORKLOAD_BYTES:
            yield batch
            batch, records, size_bytes = [], 0, 0
    if batch:
        yield batch


def read_groups(folder: Path, manifest: Manifest, config: PackConfig) -> Iterator[Group]:
    """Yield each workload with its records. Raises InvalidRequest."""
    budget = Budget()
    origins = _Origins(config)
    lines = itertools.groupby(_lines(folder, manifest, budget), key=lambda line: line.content.workload)
    workloads = read_lines(folder / manifest.layer(layout.WORKLOADS_TYPE).blob_name, WORKLOADS_NAME, budget)
    before = ""
    for number, (where, content) in enumerate(workloads):
        workload = _workload(where, content)
        found, of_workload = next(lines, (None, iter(())))
        if found != number or workload.shash <= before:
            raise InvalidRequest(f"{where}: its workloads are not sorted by hash, or one of them has no record")
        before = workload.shash
        yield _group(workload, of_workload, len(content), origins)
    if next(lines, None) is not None:
        raise InvalidRequest(f"its {RECORDS_NAME} has records of workloads that {WORKLOADS_NAME} lacks")


class _Counts:
    """Counts the content of a pack, and compares it with the configuration."""

    def __init__(self, config: PackConfig) -> None:
        self._expected = (config.workloads, config.records, config.checked)
        self._most = config.records
        self._uids: set[str] = set()
        self._workloads = self._records = self._checked = 0

    def add(self, group: Group) -> None:
        self._workloads += 1
        self._records += len(group.records)
        self._checked += sum(record.checked is True for record in group.records)
        self._uids.update(record.uid for record in group.records)
        if self._records > self._most or len(self._uids) < self._records:
            raise InvalidRequest("it has more records than its configuration says, or one of them twice")

    def check(self) -> None:
        found = (self._workloads, self._records, self._checked)
        if found != self._expected:
            raise InvalidRequest(
                f"it has {found} workloads, records and checked ones; its configuration says {self._expected}"
            )


class _Origins:
    """Measuring conditions that a configuration names by digests."""

    def __init__(self, config: PackConfig) -> None:
        self._environments = {
            (model.name, digest): facts
            for model in config.device_models
            for digest, facts in model.environments.items()
        }
        self._makings = {digest: Making(evaluator=facts) for digest, facts in config.evaluators.items()}

    def environment(self, facts: RecordFacts) -> Mapping[str, object] | None:
        """Return the environment of a record; None if the configuration has none."""
        return self._environments.get((facts.device_model, facts.environment))

    def making(self, facts: RecordFacts) -> Making | None:
        """Return the parameters of a record's timing; None if the configuration has none."""
        return self._makings.get(facts.evaluator)


def _workload(where: str, content: bytes) -> StoredWorkload:
    try:
        return parse_workload(where, strict_json.parse(content, where))
    except NoLibrary as error:
        raise InvalidRequest(str(error)) from error


def _group(workload: StoredWorkload, lines: Iterator[_Line], size_bytes: int, origins: _Origins) -> Group:
    records: list[Record] = []
    args: tuple[TensorSpec, ...] = ()
    parsed: object = None
    for line in lines:
        records.append(_record(line, workload, origins))
        if line.content.args != parsed:
            found, parsed = _args(line), line.content.args
            args = args or found
        size_bytes += line.size_bytes
        if len(records) > _MOST_OF_WORKLOAD or size_bytes > _MOST_OF_WORKLOAD_BYTES:
            raise InvalidRequest(
                f"{line.where}: its workload has more than {_MOST_OF_WORKLOAD:,} records, or too large ones"
            )
    return Group(with_args(workload, args), records, size_bytes)


def _args(line: _Line) -> tuple[TensorSpec, ...]:
    try:
        return args_of_line(line.where, line.content)
    except NoLibrary as error:
        raise InvalidRequest(str(error)) from error


def _record(line: _Line, workload: StoredWorkload, origins: _Origins) -> Record:
    facts = line.facts
    scope = RecordScope(target_json="", device_model=facts.device_model, tvm_version=facts.tvm_version)
    try:
        record = record_of_line(line.where, line.content, workload.shash, scope)
    except NoLibrary as error:
        raise InvalidRequest(str(error)) from error
    if len(record.run_secs) > _MOST_RUNS or not all(_LEAST_SEC <= sec < ABSURD_SEC for sec in record.run_secs):
        raise InvalidRequest(f"{line.where} has impossible times, or more than {_MOST_RUNS:,}")
    if record.error is not None:
        raise InvalidRequest(f"{line.where} has no times, or impossible ones")
    target = record.scope.target_json
    if len(target) > _MOST_TARGET_CHARS or not canonical_target(target):
        raise InvalidRequest(f"{line.where} has no target, or one of more than {_MOST_TARGET_CHARS:,} characters")
    return replace(
        record,
        uid=facts.uid,
        kind=facts.kind,
        checked=True if facts.is_checked else None,
        artifact_digest=facts.artifact_digest,
        created_at=facts.measured_at,
        provenance={},
        environment=origins.environment(facts),
        making=origins.making(facts),
    )


def _lines(folder: Path, manifest: Manifest, budget: Budget) -> Iterator[_Line]:
    """Yield the lines of records, each with the line of its facts."""
    records, facts = (
        read_lines(folder / manifest.layer(media_type).blob_name, title, budget)
        for media_type, title in ((layout.RECORDS_TYPE, RECORDS_NAME), (layout.FACTS_TYPE, FACTS_NAME))
    )
    for (where, record), (where_facts, fact) in _in_step(records, facts):
        yield _Line(where, _content(where, record), parse_facts(fact, where_facts), len(record))


def _content(where: str, record: bytes) -> RecordLine:
    try:
        return parse_record_line(where, record.decode(), lambda text: strict_json.parse(text, where))
    except (NoLibrary, UnicodeDecodeError) as error:
        raise InvalidRequest(str(error) if isinstance(error, NoLibrary) else f"{where} is not UTF-8") from error


def _in_step(
    records: Iterator[tuple[str, bytes]], facts: Iterator[tuple[str, bytes]]
) -> Iterator[tuple[tuple[str, bytes], tuple[str, bytes]]]:
    for record, fact in itertools.zip_longest(records, facts):
        if record is None or fact is None:
            raise InvalidRequest(f"its {RECORDS_NAME} and {FACTS_NAME} have different numbers of lines")
        yield record, fact
