"""Exports and imports records as the two files of MetaSchedule's JSONDatabase. Needs no TVM.

    database_workload.json        one line per workload: ["<shash>", "<base64 of u64 length, program as JSON>"]
    database_tuning_record.json   one line per record: [<line of its workload>, [trace, run_secs, target, args]]

Numbers are written as TVM writes them, with 20 significant digits: an import is exported byte by byte as it was.
MetaSchedule knows no device model, TVM version or error: the user gives the first two, and errors are lost.

Both directions hold a few hundred records at a time. An import reads the files twice: all lines are checked before the
first is stored, and a batch that has changed since its check is refused.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import itertools
import json
import math
import re
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fleet.domain.keys import canonical_target
from fleet.domain.measuring import ErrorKind, TensorSpec
from fleet.domain.operators import program_name
from fleet.domain.program_check import MOST_PROGRAM_BYTES, check_program
from fleet.domain.scope import ANY_SCOPE, RecordScope, ScopeFilter
from fleet.domain.trace_check import MOST_TRACE_BYTES, check_trace_at
from fleet.domain.trace_text import Spelling, compact
from fleet.errors import InvalidRequest, NoLibrary
from fleet.library.line_files import Batch, read_batches, written
from fleet.library.rows import check_new
from fleet.library.store import Library
from fleet.library.values import Record, StoredWorkload, TimedTrace

WORKLOAD_FILE = "database_workload.json"
RECORD_FILE = "database_tuning_record.json"

_FAILED_SEC = 1e9
"""TVM writes 1e10 s, or nothing, for a candidate that failed; no real run lasts 30 years."""

_RECORD_START = re.compile(r"\[\s*(\d{1,18})\s*,\s*\[\s*")
"""Start of a record's line, up to its trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """Result of an export or import."""

    workloads: int
    records: int
    known_records: int = 0
    """Number of `records` that the library already had from an earlier import."""


def export_json(
    library: Library,
    directory: Path,
    *,
    pattern: str = "*",
    within: ScopeFilter = ANY_SCOPE,
    best: int | None = None,
    checked_only: bool = False,
    overwrite: bool = False,
) -> Exchanged:
    """Write one time for each candidate that has any, oldest first, and their workloads.

    MetaSchedule takes the fastest line of a candidate, so superseded times are not written.

    Args:
        best: only so many of the fastest candidates of each workload in each scope; None: all.
        checked_only: leave out candidates whose output was never checked.

    Raises:
        LibraryError: the directory has such files already, or cannot be written.
        DiskFull: no space left there.
    """
    workloads = records = 0
    with written(directory, [WORKLOAD_FILE, RECORD_FILE], overwrite=overwrite) as (workload_file, record_file):
        for outline in library.find_outlines(pattern):
            before = records
            for part in _parts(library, outline.shash, within, by_scope=best is not None):
                for time in library.timed_traces(outline.shash, part, k=best, checked_only=checked_only):
                    record_file.write(f"{_line(workloads, outline.args, time)}\n")
                    records += 1
            if records > before:
                workload_file.write(f"{workload_line(library.workload(outline.shash))}\n")
                workloads += 1
    return Exchanged(workloads=workloads, records=records)


def _parts(library: Library, shash: str, within: ScopeFilter, *, by_scope: bool) -> list[ScopeFilter]:
    """Return a filter for each scope of a workload, since their times do not compare; or the given one."""
    return [within.of(scope) for scope in library.scopes([shash], within)] if by_scope else [within]


def import_json(library: Library, directory: Path, scope: RecordScope) -> Exchanged:
    """Read records that MetaSchedule wrote. Importing the same files again adds nothing.

    Each batch is one transaction: after an import was killed, the next one adds the rest.

    Args:
        scope: device model and versions of the records, which the files do not contain. Its target applies to records
            without one.

    Raises:
        NoLibrary: a file is missing, or not in JSONDatabase's format. Nothing is imported.
        InvalidRequest: no device model, or a program or schedule, which are code, is not on the allowlist. Nothing is
            imported.
    """
    if not scope.device_model:
        raise InvalidRequest("say which device model the records were measured on")
    workload_file = _TwiceRead(directory / WORKLOAD_FILE, 2 * MOST_PROGRAM_BYTES)
    record_file = _TwiceRead(directory / RECORD_FILE, 2 * MOST_TRACE_BYTES)
    shashes = [parse_workload(where, _parse(where, text)).shash for where, text in workload_file.first()]
    lines = _RecordLines(shashes, scope)
    for where, text in record_file.first():
        lines.check(where, text)
    for batch in workload_file.again():
        known = [parse_workload(where, _parse(where, text)) for where, text in batch.lines]
        library.add_workloads(with_args(workload, lines.args.get(workload.shash, ())) for workload in known)
    added = sum(
        library.add_imported([lines.read(where, text) for where, text in batch.lines]) for batch in record_file.again()
    )
    return Exchanged(workloads=len(shashes), records=lines.count, known_records=lines.count - added)


@dataclass(slots=True)
class _TwiceRead:
    """A file that is read once to check all of it, and again to store the checked lines."""

    path: Path
    most_chars: int
    """Of a line."""

    digests: list[bytes] = field(default_factory=list)

    def first(self) -> Iterator[tuple[str, str]]:
        """Yield all lines with their positions, and remember them by digests."""
        for batch in read_batches(self.path, self.most_chars):
            yield from batch.lines
            self.digests.append(batch.digest)

    def again(self) -> Iterator[Batch]:
        """Yield the same lines in batches. Raises NoLibrary if the file has changed."""
        batches = read_batches(self.path, self.most_chars)
        for batch, digest in itertools.zip_longest(batches, self.digests):
            if batch is None or batch.digest != digest:
                raise NoLibrary(f"{self.path} was changed while it was read; import it again")
            yield batch


@dataclass(slots=True)
class _RecordLines:
    """Reads the lines of records in order: first checks all, then returns their records."""

    shashes: Sequence[str]
    """Hash of the workload on each line of its file."""

    scope: RecordScope
    args: dict[str, tuple[TensorSpec, ...]] = field(default_factory=dict)
    """Arguments of workloads by hash."""

    ends: array[int] = field(default_factory=lambda: array("I"))
    """Position after the trace in each line, which would take long to find again."""

    _occurrences: _Occurrences = field(default_factory=lambda: _Occurrences())
    _next: int = 0
    """Number of the line that is read next."""

    @property
    def count(self) -> int:
        return len(self.ends)

    def check(self, where: str, text: str) -> None:
        """Check a line, and remember its workload's arguments.

        Raises:
            NoLibrary, InvalidRequest: see `import_json`.
        """
        try:
            start = _start_of(text)
            with _refusing(where):
                end = check_trace_at(text, start.end())
                record, args = self._record(where, text, start, end)
                check_new(record)
        except (TypeError, ValueError, KeyError, OverflowError, RecursionError) as error:
            raise NoLibrary(f"{where} is not a record of MetaSchedule's JSONDatabase: {error}") from error
        self.ends.append(end)
        if args:
            self.args[record.workload] = _parse_args(args)

    def read(self, where: str, text: str) -> Record:
        """Return the record of a line that was checked, with the uid that a second import recognises."""
        start, end = _start_of(text), self.ends[self._next]
        self._next += 1
        record, _ = self._record(where, text, start, end)
        trace = _IN_PYTHON.of(text[start.end() : end])
        scope = record.scope
        content = [record.workload, trace, record.run_secs, scope.target_json, scope.device_model]
        uid = self._occurrences.uid_of(json.dumps(content))
        return replace(record, uid=uid, trace_json=trace)

    def _record(self, where: str, text: str, start: re.Match[str], end: int) -> tuple[Record, Any]:
        """Return the record without its trace, and the parsed arguments of its workload."""
        index = int(start[1])
        if index >= len(self.shashes):
            raise ValueError(f"it is of workload {index}, and there are {len(self.shashes)}")
        run_secs, target, args = json.loads(f"[{_rest_of(text, end)}")
        return _record_of(where, self.shashes[index], "", run_secs, target, self.scope), args


def _start_of(text: str) -> re.Match[str]:
    start = _RECORD_START.match(text)
    if start is None:
        raise ValueError("it does not begin with the number of its workload")
    return start


def _rest_of(text: str, end: int) -> str:
    """Return the part of a line behind its schedule, up to the bracket that ends the record."""
    rest = text[end:].strip()
    if not (rest.startswith(",") and rest.endswith("]")):
        raise ValueError("it has other parts")
    return rest[1:-1]


class _Occurrences:
    """Counts equal records, in 8 bytes for each."""

    def __init__(self) -> None:
        self._buckets = [array("Q") for _ in range(1 << 12)]

    def uid_of(self, content: str) -> str:
        """Derive a record's uid from its content and its number of earlier occurrences."""
        digest = hashlib.sha256(content.encode())
        number = int.from_bytes(digest.digest()[:8])
        bucket = self._buckets[number >> 52]
        first, last = bisect_left(bucket, number), bisect_right(bucket, number)
        bucket.insert(last, number)
        return f"import-{digest.hexdigest()}-{last - first}"


def workload_line(workload: StoredWorkload) -> str:
    """Return the line of a workload in `WORKLOAD_FILE`."""
    return to_text([workload.shash, _encode_module(workload.mod_json)])


def record_line(index: int, workload: StoredWorkload, record: Record) -> str:
    """Return the line of a record in `RECORD_FILE`.

    Args:
        index: line of its workload in `WORKLOAD_FILE`, from 0.
    """
    scope = record.scope
    time = TimedTrace(target_json=scope.target_json, trace_json=record.trace_json, run_secs=record.run_secs)
    return _line(index, workload.args, time)


def _line(index: int, args: tuple[TensorSpec, ...], time: TimedTrace) -> str:
    parts = (
        _IN_TVM.of(time.trace_json),
        to_text(list(time.run_secs)),
        _target_text(time.target_json),
        _args_text(args),
    )
    return f"[{index},[{','.join(parts)}]]"


@functools.lru_cache(maxsize=256)
def _target_text(target_json: str) -> str:
    given = target_json.strip()
    return to_text(json.loads(given if given.startswith("{") else canonical_target(given) or "null"))


@functools.lru_cache(maxsize=256)
def _args_text(args: tuple[TensorSpec, ...]) -> str:
    return to_text([["TENSOR", spec.dtype, list(spec.shape)] for spec in args] or None)


def to_text(value: object) -> str:
    """Write JSON as TVM does: no white space, keys sorted, numbers with 20 digits, booleans as numbers."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{to_text(item)}" for key, item in sorted(value.items())) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(to_text, value)) + "]"
    if isinstance(value, bool):
        return str(int(value))
    return f"{value:.20g}" if isinstance(value, float) else json.dumps(value)


_IN_TVM, _IN_PYTHON = Spelling(to_text), Spelling(compact)


def _encode_module(mod_json: str) -> str:
    text = mod_json.encode()
    return base64.b64encode(struct.pack("<Q", len(text)) + text).decode()


def _decode_module(encoded: str) -> str:
    content = base64.b64decode(encoded, validate=True)
    (length,) = struct.unpack_from("<Q", content)
    if len(content) != 8 + length:
        raise ValueError("its length is wrong")
    return content[8:].decode()


def _parse(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NoLibrary(f"{where} is not JSON: {error}") from error


def parse_workload(where: str, value: Any) -> StoredWorkload:
    """Return the workload of a line that was parsed as JSON.

    Args:
        where: the line's place, for messages.

    Raises:
        NoLibrary: it has another form.
        InvalidRequest: its program is not on the allowlist.
    """
    try:
        shash, encoded = value
        int(shash)
        workload = StoredWorkload(shash=str(shash), name="imported", mod_json=_decode_module(encoded))
    except (TypeError, ValueError, OverflowError, struct.error) as error:
        raise NoLibrary(f"{where} is not a workload of MetaSchedule's JSONDatabase: {error}") from error
    with _refusing(where):
        check_program(workload.mod_json)
    return workload


@contextlib.contextmanager
def _refusing(where: str) -> Iterator[None]:
    """Name the line that is refused."""
    try:
        yield
    except InvalidRequest as error:
        raise InvalidRequest(f"{where} is refused: {error}") from error


@dataclass(frozen=True, slots=True)
class RecordLine:
    """A line of `RECORD_FILE` with a schedule that was checked."""

    workload: int
    """Line of its workload, from 0."""

    trace_json: str
    run_secs: Any
    target: Any
    args: Any


def parse_record_line(where: str, text: str, parse: Callable[[str], Any]) -> RecordLine:
    """Return the parts of a record's line.

    Args:
        where: the line's place, for messages.
        parse: parser of the JSON beside the schedule.

    Raises:
        NoLibrary: it has another form.
        InvalidRequest: its schedule is not on the allowlist, or `parse` raises it.
    """
    try:
        start = _start_of(text)
        with _refusing(where):
            end = check_trace_at(text, start.end())
        run_secs, target, args = parse(f"[{_rest_of(text, end)}")
        trace = _IN_PYTHON.of(text[start.end() : end])
    except (TypeError, ValueError, RecursionError) as error:
        raise NoLibrary(f"{where} is not a record of MetaSchedule's JSONDatabase: {error}") from error
    return RecordLine(int(start[1]), trace, run_secs, target, args)


def record_of_line(where: str, line: RecordLine, shash: str, scope: RecordScope) -> Record:
    """Return the record of a workload's line. Raises NoLibrary if its times or target have another form."""
    try:
        return _record_of(where, shash, line.trace_json, line.run_secs, line.target, scope)
    except (TypeError, ValueError, KeyError, OverflowError, RecursionError) as error:
        raise NoLibrary(f"{where} is not a record of MetaSchedule's JSONDatabase: {error}") from error


def args_of_line(where: str, line: RecordLine) -> tuple[TensorSpec, ...]:
    """Return the arguments of a line's workload. Raises NoLibrary if they have another form."""
    try:
        return _parse_args(line.args or ())
    except (TypeError, ValueError, OverflowError) as error:
        raise NoLibrary(f"{where} is not a record of MetaSchedule's JSONDatabase: {error}") from error


def _record_of(where: str, shash: str, trace_json: str, run_secs: Any, target: Any, scope: RecordScope) -> Record:
    times = tuple(float(sec) for sec in run_secs or ())
    has_times = bool(times) and all(math.isfinite(sec) and sec < _FAILED_SEC for sec in times)
    return Record(
        workload=shash,
        scope=_scope_of(scope, to_text(target)) if target else scope,
        trace_json=trace_json,
        run_secs=times if has_times else (),
        error=None if has_times else ErrorKind.RUN_FAILED,
        error_message="" if has_times else "it has no times, and MetaSchedule does not say why",
        provenance={"imported_from": where.rpartition(":")[0]},
    )


@functools.lru_cache(maxsize=256)
def _scope_of(scope: RecordScope, target_json: str) -> RecordScope:
    return replace(scope, target_json=target_json)


def _parse_args(args: Iterable[tuple[str, str, Sequence[int]]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(tuple(int(extent) for extent in shape), str(dtype)) for _, dtype, shape in args)


def with_args(workload: StoredWorkload, args: tuple[TensorSpec, ...]) -> StoredWorkload:
    """Return the workload with its arguments, and a name made from its operators."""
    return replace(workload, name=f"imported_{program_name(workload.mod_json, args)}", args=args)
