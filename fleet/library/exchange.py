"""Exports and imports records as the two files of MetaSchedule's JSONDatabase. Needs no TVM.

    database_workload.json        one line per workload: ["<shash>", "<base64 of u64 length, program as JSON>"]
    database_tuning_record.json   one line per record: [<line of its workload>, [trace, run_secs, target, args]]

Numbers are written as TVM writes them, with 20 significant digits: an import is exported byte by byte as it was.
MetaSchedule knows no device model, TVM version or error: the user gives the first two, and errors are lost.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import math
import os
import struct
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fleet.domain.keys import canonical_target
from fleet.domain.measuring import ErrorKind, TensorSpec
from fleet.domain.operators import program_name
from fleet.domain.program_check import check_program
from fleet.domain.scope import ANY_SCOPE, RecordScope, ScopeFilter
from fleet.domain.trace_check import check_trace
from fleet.errors import DiskFull, InvalidRequest, LibraryError, NoLibrary
from fleet.library.store import Library
from fleet.library.values import Record, StoredWorkload

WORKLOAD_FILE = "database_workload.json"
RECORD_FILE = "database_tuning_record.json"

_FAILED_SEC = 1e9
"""TVM writes 1e10 s, or nothing, for a candidate that failed; no real run lasts 30 years."""

_BATCH = 500
"""Records per transaction."""


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
    overwrite: bool = False,
) -> Exchanged:
    """Write one time for each candidate that has any, oldest first, and their workloads.

    MetaSchedule takes the fastest line of a candidate, so superseded times are not written.

    Raises:
        LibraryError: the directory has such files already, or cannot be written.
        DiskFull: no space left there.
    """
    workloads: list[str] = []
    lines: list[str] = []
    for workload in library.find_workloads(pattern):
        found = library.candidates(workload.shash, within)
        lines += [_record_line(len(workloads), workload, record) for record in found]
        if found:
            workloads.append(to_text([workload.shash, _encode_module(workload.mod_json)]))
    _write_files(directory, {WORKLOAD_FILE: workloads, RECORD_FILE: lines}, overwrite=overwrite)
    return Exchanged(workloads=len(workloads), records=len(lines))


def import_json(library: Library, directory: Path, scope: RecordScope) -> Exchanged:
    """Read records that MetaSchedule wrote. Importing the same files again adds nothing.

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
    known = [_parse_workload(where, value) for where, value in _read_lines(directory / WORKLOAD_FILE)]
    parsed = [_parse_record(where, value, known, scope) for where, value in _read_lines(directory / RECORD_FILE)]
    args_by_shash = {record.workload: args for record, args in parsed if args}
    library.add_workloads(_with_args(workload, args_by_shash.get(workload.shash, ())) for workload in known)
    new = _with_uids([record for record, _ in parsed])
    known_count = 0
    for start in range(0, len(new), _BATCH):
        batch = new[start : start + _BATCH]
        known_count += len(library.known_uids(record.uid for record in batch))
        library.add_records(batch)
    return Exchanged(workloads=len(known), records=len(new), known_records=known_count)


def _record_line(index: int, workload: StoredWorkload, record: Record) -> str:
    given = record.scope.target_json.strip()
    target = json.loads(given if given.startswith("{") else canonical_target(given) or "null")
    args = [["TENSOR", spec.dtype, list(spec.shape)] for spec in workload.args] or None
    return to_text([index, [json.loads(record.trace_json), list(record.run_secs), target, args]])


def to_text(value: object) -> str:
    """Write JSON as TVM does: no white space, keys sorted, numbers with 20 digits, booleans as numbers."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{to_text(item)}" for key, item in sorted(value.items())) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(to_text, value)) + "]"
    if isinstance(value, bool):
        return str(int(value))
    return f"{value:.20g}" if isinstance(value, float) else json.dumps(value)


def _encode_module(mod_json: str) -> str:
    text = mod_json.encode()
    return base64.b64encode(struct.pack("<Q", len(text)) + text).decode()


def _decode_module(encoded: str) -> str:
    content = base64.b64decode(encoded, validate=True)
    (length,) = struct.unpack_from("<Q", content)
    if len(content) != 8 + length:
        raise ValueError("its length is wrong")
    return content[8:].decode()


def _write_files(directory: Path, lines_by_name: dict[str, list[str]], *, overwrite: bool) -> None:
    """Write both files, or change neither if one cannot be written."""
    existing = [name for name in lines_by_name if (directory / name).exists()]
    if existing and not overwrite:
        raise LibraryError(f"{directory} has {' and '.join(existing)} already; name another directory, or --overwrite")
    written: list[tuple[Path, Path]] = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, lines in lines_by_name.items():
            written.append((_write_beside(directory, lines), directory / name))
        for temporary, final in written:
            temporary.replace(final)
    except OSError as error:
        for temporary, _ in written:
            temporary.unlink(missing_ok=True)
        kind = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else LibraryError
        raise kind(f"cannot write to {directory}: {error.strerror}") from error


def _write_beside(directory: Path, lines: Sequence[str]) -> Path:
    handle, name = tempfile.mkstemp(dir=directory, prefix=".export-")
    with os.fdopen(handle, "w") as file:
        file.writelines(f"{line}\n" for line in lines)
    Path(name).chmod(0o644)
    return Path(name)


def _read_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield position and content of every line that is not empty."""
    try:
        text = path.read_text()
    except OSError as error:
        raise NoLibrary(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise NoLibrary(f"{path} is no file of MetaSchedule's JSONDatabase: it is no text") from error
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{path}:{number}"
        if line.strip():
            try:
                yield where, json.loads(line)
            except (ValueError, RecursionError) as error:
                raise NoLibrary(f"{where} is not JSON: {error}") from error


def _parse_workload(where: str, value: Any) -> StoredWorkload:
    try:
        shash, encoded = value
        int(shash)
        workload = StoredWorkload(shash=str(shash), name="imported", mod_json=_decode_module(encoded))
    except (TypeError, ValueError, OverflowError, struct.error) as error:
        raise NoLibrary(f"{where} is not a workload of MetaSchedule's JSONDatabase: {error}") from error
    _check(where, check_program, workload.mod_json)
    return workload


def _check(where: str, check: Callable[[str], None], text: str) -> None:
    try:
        check(text)
    except InvalidRequest as error:
        raise InvalidRequest(f"{where} is refused: {error}") from error


def _parse_record(
    where: str, value: Any, workloads: Sequence[StoredWorkload], scope: RecordScope
) -> tuple[Record, tuple[TensorSpec, ...]]:
    try:
        index, (trace, run_secs, target, args) = value
        if not 0 <= index < len(workloads):
            raise ValueError(f"it is of workload {index}, and there are {len(workloads)}")
        times = tuple(float(sec) for sec in run_secs or ())
        record = Record(
            workload=workloads[index].shash,
            scope=replace(scope, target_json=to_text(target)) if target else scope,
            trace_json=json.dumps(trace, separators=(",", ":")),
            provenance={"imported_from": where.rpartition(":")[0]},
        )
        specs = _parse_args(args or ())
    except (TypeError, ValueError, KeyError, OverflowError, RecursionError) as error:
        raise NoLibrary(f"{where} is not a record of MetaSchedule's JSONDatabase: {error}") from error
    _check(where, check_trace, record.trace_json)
    return _with_verdict(record, times), specs


def _with_verdict(record: Record, times: tuple[float, ...]) -> Record:
    if times and all(math.isfinite(sec) and sec < _FAILED_SEC for sec in times):
        return replace(record, run_secs=times)
    message = "it has no times, and MetaSchedule does not say why"
    return replace(record, error=ErrorKind.RUN_FAILED, error_message=message)


def _parse_args(args: Iterable[tuple[str, str, Sequence[int]]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(tuple(int(extent) for extent in shape), str(dtype)) for _, dtype, shape in args)


def _with_args(workload: StoredWorkload, args: tuple[TensorSpec, ...]) -> StoredWorkload:
    return replace(workload, name=f"imported_{program_name(workload.mod_json, args)}", args=args)


def _with_uids(new: Sequence[Record]) -> list[Record]:
    """Derive each record's uid from its content and its number of earlier occurrences, so that a second import
    recognises it.
    """
    seen: Counter[str] = Counter()
    named = []
    for record in new:
        scope = record.scope
        content = [record.workload, record.trace_json, record.run_secs, scope.target_json, scope.device_model]
        digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()
        named.append(replace(record, uid=f"import-{digest}-{seen[digest]}"))
        seen[digest] += 1
    return named
