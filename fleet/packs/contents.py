"""Configuration and lines of a pack: values to bytes and back. No I/O.

database_workload.json.gz          MetaSchedule's file of workloads, sorted by hash
database_tuning_record.json.gz     MetaSchedule's file of records
facts.jsonl.gz                     for each of these records a line with the facts that MetaSchedule cannot store
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

from fleet.base.plain import from_plain, to_plain
from fleet.base.text import sanitize
from fleet.domain.environment import environment_digest
from fleet.errors import InvalidRequest
from fleet.library import RecordKind
from fleet.packs import strict_json

FORMAT = 1
"""Incremented by changes that older programs would misread. Other changes only add fields."""

_MOST_CHARS = 200
_MOST_FACT_CHARS = 4096
_NEWEST = datetime(9000, 1, 1, tzinfo=UTC)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceModel:
    """Hardware that the records of a pack were measured on."""

    name: str
    facts: Mapping[str, object] = field(default_factory=dict)
    environments: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Software and settings of its devices, by digest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackConfig:
    """Facts about a pack."""

    format: int = FORMAT
    title: str
    licence: str = ""
    made_by: str = ""
    """Program and version: "tvm-fleet 0.1.0"."""

    device_models: tuple[DeviceModel, ...] = ()
    evaluators: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Parameters of timing that differ from the defaults of `Evaluator`, by digest."""

    targets: tuple[str, ...] = ()
    tvm_versions: tuple[str, ...] = ()
    workloads: int
    records: int
    checked: int = 0
    """Number of records with an output that the signer compared with the unscheduled program's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFacts:
    """Facts about one record."""

    uid: str
    device_model: str
    tvm_version: str
    kind: RecordKind = RecordKind.CANDIDATE
    is_checked: bool = False
    is_proven: bool = False
    measured_at: datetime
    environment: str = ""
    """Digest of the environment; empty: not known."""

    evaluator: str = ""
    """Digest of the parameters of its timing; empty: not known."""

    artifact_digest: str = ""


def encode(value: PackConfig | RecordFacts) -> bytes:
    """Return a value as one line of JSON."""
    return json.dumps(to_plain(value), separators=(",", ":"), sort_keys=True).encode()


def parse_config(content: bytes) -> PackConfig:
    """Return the configuration of a pack.

    Raises:
        InvalidRequest: it has another form, a newer format, or control characters.
    """
    where = "its configuration"
    plain = strict_json.parse_object(content, where)
    number = plain.get("format")
    if type(number) is int and number > FORMAT:
        raise InvalidRequest(f"it has a newer format than {FORMAT}; install a newer tvm-fleet")
    found = _read(PackConfig, plain, where)
    if found.format != FORMAT or not found.title or min(found.workloads, found.records, found.checked) < 0:
        raise InvalidRequest(f"{where} has no title, no format {FORMAT}, or negative counts")
    for text in (found.title, found.licence, found.made_by, *(model.name for model in found.device_models)):
        _check_text(text, where)
    for digest, facts in (*found.evaluators.items(), *_environments(found)):
        if facts_digest(facts) != digest:
            raise InvalidRequest(f"{where} has an environment or evaluator with another digest than its name")
        for text in _texts(facts):
            _check_text(text, where, _MOST_FACT_CHARS)
    return found


def facts_digest(facts: Mapping[str, object]) -> str:
    """Return "sha256:<hex>" of an environment or the parameters of an evaluator."""
    return environment_digest(facts)


def parse_facts(content: bytes, where: str) -> RecordFacts:
    """Return the facts of a record's line. Raises InvalidRequest."""
    found = _read(RecordFacts, strict_json.parse_object(content, where), where)
    for text in (
        found.uid,
        found.device_model,
        found.tvm_version,
        found.environment,
        found.evaluator,
        found.artifact_digest,
    ):
        _check_text(text, where)
    if found.kind not in (RecordKind.CANDIDATE, RecordKind.STATIC):
        raise InvalidRequest(f"{where}: a record of the kind {found.kind.value!r} has no schedule")
    if not (found.uid and found.device_model and found.tvm_version):
        raise InvalidRequest(f"{where}: it has no uid, device model or TVM version")
    if found.measured_at.tzinfo is None or found.measured_at > _NEWEST:
        raise InvalidRequest(f"{where}: its time has no zone, or is no time of a measurement")
    return found


def _environments(config: PackConfig) -> Iterator[tuple[str, Mapping[str, object]]]:
    for model in config.device_models:
        yield from model.environments.items()


def _texts(value: object) -> Iterator[str]:
    """Yield the keys and texts in a JSON value."""
    if isinstance(value, str):
        yield value
    if isinstance(value, Mapping):
        yield from (str(key) for key in value)
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    for part in parts:
        yield from _texts(part)


def _read(cls: type[T], plain: object, where: str) -> T:
    try:
        return from_plain(cls, plain)
    except (InvalidRequest, OverflowError, RecursionError) as error:
        raise InvalidRequest(f"{where} has another form: {sanitize(str(error), _MOST_CHARS)}") from error


def _check_text(text: str, where: str, most_chars: int = _MOST_CHARS) -> None:
    if len(text) > most_chars or sanitize(text) != text:
        raise InvalidRequest(f"{where} has control characters, or a text of more than {most_chars} characters")
