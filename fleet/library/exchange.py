"""Records out to, and in from, the two files of MetaSchedule's JSONDatabase. Needs no TVM.

    database_workload.json        one line per workload: ["<shash>", "<base64 of u64 length, program as JSON>"]
    database_tuning_record.json   one line per record: [<line of its workload>, [trace, run_secs, target, args]]

Numbers are written as TVM writes them, with 20 significant digits, so that what was imported is exported byte by byte
as it was. MetaSchedule knows no device model, TVM version or error: they are given by the user, or lost, respectively.
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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fleet.errors import DiskFull, InvalidRequest, LibraryError
from fleet.keys import canonical_target
from fleet.library.store import Library
from fleet.library.values import NewRecord, Record, Workload
from fleet.measuring import ErrorKind, TensorSpec

WORKLOAD_FILE = "database_workload.json"
RECORD_FILE = "database_tuning_record.json"

_FAILED_SEC = 1e9
"""TVM writes 1e10 s, or nothing, for a candidate that failed; no real run lasts 30 years."""

_BATCH = 500
"""Records per transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """What went out or came in."""

    workloads: int
    records: int
    known_records: int = 0
    """Of `records`, those that the library already had from an earlier import."""


def export_json(
    library: Library,
    directory: Path,
    *,
    pattern: str = "*",
    target_json: str | None = None,
    device_model: str | None = None,
    overwrite: bool = False,
) -> Exchanged:
    """Write the candidates that have times, oldest first, and their workloads.

    Raises:
        LibraryError: the directory has such files already, or cannot be written.
        DiskFull: no space left there.
    """
    workloads: list[str] = []
    lines: list[str] = []
    for workload in library.find_workloads(pattern):
        found = library.records(workload.shash, target_json=target_json, device_model=device_model, with_errors=False)
        lines += [_record_line(len(workloads), workload, record) for record in found]
        if found:
            workloads.append(_to_text([workload.shash, _encode_module(workload.mod_json)]))
    _write_files(directory, {WORKLOAD_FILE: workloads, RECORD_FILE: lines}, overwrite=overwrite)
    return Exchanged(workloads=len(workloads), records=len(lines))


def import_json(
    library: Library, directory: Path, *, device_model: str, tvm_version: str = "", target_json: str = ""
) -> Exchanged:
    """Read records that MetaSchedule wrote. Importing the same files again adds nothing.

    Args:
        device_model: what the records were measured on, which the files do not say.
        target_json: for records that name no target.

    Raises:
        LibraryError: a file is missing or is not what JSONDatabase writes; the library stays as it was up to that line.
        InvalidRequest: no device model.
    """
    if not device_model:
        raise InvalidRequest("say which device model the records were measured on")
    known = [_parse_workload(where, value) for where, value in _read_lines(directory / WORKLOAD_FILE)]
    parsed = [
        _parse_record(where, value, known, device_model, tvm_version, target_json)
        for where, value in _read_lines(directory / RECORD_FILE)
    ]
    args_by_shash = {record.workload: args for record, args in parsed if args}
    library.add_workloads(_with_args(workload, args_by_shash.get(workload.shash, ())) for workload in known)
    new = _with_uids([record for record, _ in parsed])
    known_count = 0
    for start in range(0, len(new), _BATCH):
        batch = new[start : start + _BATCH]
        known_count += len(library.known_uids(record.uid for record in batch))
        library.add_records(batch)
    return Exchanged(workloads=len(known), records=len(new), known_records=known_count)


def _record_line(index: int, workload: Workload, record: Record) -> str:
    given = record.target_json.strip()
    target = json.loads(given if given.startswith("{") else canonical_target(given) or "null")
    args = [["TENSOR", spec.dtype, list(spec.shape)] for spec in workload.args] or None
    return _to_text([index, [json.loads(record.trace_json), list(record.run_secs), target, args]])


def _to_text(value: Any) -> str:
    """JSON as TVM writes it: no white space, keys sorted, numbers with 20 digits, booleans as numbers."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{_to_text(item)}" for key, item in sorted(value.items())) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_to_text, value)) + "]"
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
    """Both files or, when one cannot be written, none of them changed."""
    existing = [name for name in lines_by_name if (directory / name).exists()]
    if existing and not overwrite:
        raise LibraryError(f"{directory} has {' and '.join(existing)} already; name another directory, or overwrite")
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
        kind = DiskFull if error.errno == errno.ENOSPC else LibraryError
        raise kind(f"cannot write to {directory}: {error.strerror}") from error


def _write_beside(directory: Path, lines: Sequence[str]) -> Path:
    handle, name = tempfile.mkstemp(dir=directory, prefix=".export-")
    with os.fdopen(handle, "w") as file:
        file.writelines(f"{line}\n" for line in lines)
    Path(name).chmod(0o644)
    return Path(name)


def _read_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Where and what, for every line that is not empty."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise LibraryError(f"cannot read {path}: {error}") from error
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{path}:{number}"
        if line.strip():
            try:
                yield where, json.loads(line)
            except ValueError as error:
                raise LibraryError(f"{where} is no JSON: {error}") from error


def _parse_workload(where: str, value: Any) -> Workload:
    try:
        shash, encoded = value
        int(shash)
        return Workload(shash=str(shash), name=f"imported-{shash}", mod_json=_decode_module(encoded))
    except (TypeError, ValueError, struct.error) as error:
        raise LibraryError(f"{where} is no workload of MetaSchedule's JSONDatabase: {error}") from error


def _parse_record(
    where: str, value: Any, workloads: Sequence[Workload], device_model: str, tvm_version: str, target_json: str
) -> tuple[NewRecord, tuple[TensorSpec, ...]]:
    try:
        index, (trace, run_secs, target, args) = value
        if not 0 <= index < len(workloads):
            raise ValueError(f"it is of workload {index}, and there are {len(workloads)}")
        times = tuple(float(sec) for sec in run_secs or ())
        record = NewRecord(
            workload=workloads[index].shash,
            target_json=_to_text(target) if target else target_json,
            device_model=device_model,
            tvm_version=tvm_version,
            trace_json=json.dumps(trace, separators=(",", ":")),
            provenance={"imported_from": where.rpartition(":")[0]},
            **_verdict(times),
        )
        return record, _parse_args(args or ())
    except (TypeError, ValueError, KeyError) as error:
        raise LibraryError(f"{where} is no record of MetaSchedule's JSONDatabase: {error}") from error


def _verdict(times: tuple[float, ...]) -> dict[str, Any]:
    if times and all(math.isfinite(sec) and sec < _FAILED_SEC for sec in times):
        return {"run_secs": times}
    return {"error": ErrorKind.RUN_FAILED, "error_message": "it has no times, and MetaSchedule does not say why"}


def _parse_args(args: Iterable[Any]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(tuple(int(extent) for extent in shape), str(dtype)) for _, dtype, shape in args)


def _with_args(workload: Workload, args: tuple[TensorSpec, ...]) -> Workload:
    return replace(workload, args=args)


def _with_uids(new: Sequence[NewRecord]) -> list[NewRecord]:
    """Name each record by its content and by how often that was there before, so that a second import finds it."""
    seen: Counter[str] = Counter()
    named = []
    for record in new:
        content = [record.workload, record.trace_json, record.run_secs, record.target_json, record.device_model]
        digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()
        named.append(replace(record, uid=f"import-{digest}-{seen[digest]}"))
        seen[digest] += 1
    return named
