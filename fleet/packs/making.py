"""Makes a pack of the best records of a library. Equal records give equal bytes, and thereby the same name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fleet.base.scratch import scratch_dir
from fleet.base.version import package_version
from fleet.domain.scope import ScopeFilter
from fleet.errors import NotFound
from fleet.library import Library, Record, StoredWorkload
from fleet.library.exchange import record_line, workload_line
from fleet.packs import layout
from fleet.packs.contents import DeviceModel, PackConfig, RecordFacts, encode, facts_digest, parse_config
from fleet.packs.files import describe_file, write_lines, write_tar
from fleet.packs.layout import Descriptor
from fleet.packs.reading import FACTS_NAME, RECORDS_NAME, WORKLOADS_NAME
from fleet.packs.signing import sign
from fleet.packs.staging import write_layout

_SHARED_FACTS = ("kind", "core_count", "memory_bytes", "is_simulated")
"""Facts that all devices of a model have in common. Others could identify the owner of a board."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackOrder:
    """Choice of records, and the pack's description."""

    scopes: Sequence[ScopeFilter]
    """Records to choose from, each of one scope."""

    best: int = 3
    """Records of each workload and scope."""

    checked_only: bool = False
    title: str
    licence: str = ""
    key: Path | None = None
    """Key to sign with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MadePack:
    """A pack that was written."""

    digest: str
    config: PackConfig


def make_pack(library: Library, order: PackOrder, path: Path) -> MadePack:
    """Write a pack as a .tar file.

    Raises:
        NotFound: the library has no such records.
        InvalidRequest: readers would refuse its title, licence or environments.
        ConfigError: there is no such key, or it does not sign.
        OSError: the file cannot be written.
    """
    chosen = _chosen(library, order)
    if not chosen:
        raise NotFound("no record of these scopes is faster than its workload without a schedule")
    with scratch_dir("pack") as folder:
        blobs = folder / "blobs" / "sha256"
        blobs.mkdir(parents=True)
        origins = _origins(library, chosen)
        config = _config(library, order, chosen, origins)
        content = encode(config)
        parse_config(content)
        layers = _write_layers(library, folder, chosen, origins)
        manifest = layout.pack_manifest(layout.descriptor_of(content, layout.CONFIG_TYPE), layers)
        pack = _put(folder, manifest, layout.MANIFEST_TYPE)
        _put(folder, content, layout.CONFIG_TYPE)
        signatures = [] if order.key is None else [_put_signature(folder, pack, sign(manifest, order.key))]
        write_layout(folder, pack, signatures)
        names = sorted(f"blobs/sha256/{one.name}" for one in blobs.iterdir())
        write_tar(path, folder, [layout.LAYOUT_NAME, layout.INDEX_NAME, *names])
    return MadePack(digest=pack.digest, config=config)


def _chosen(library: Library, order: PackOrder) -> dict[str, list[Record]]:
    """Return the records of each workload, fastest first in each scope. Workloads are sorted by hash."""
    shashes = [outline.shash for outline in library.outlines()]
    found: dict[str, list[Record]] = {}
    for scope in order.scopes:
        untuned = library.baselines(shashes, scope)
        for shash, records in library.best_of(shashes, scope, k=order.best, checked_only=order.checked_only).items():
            faster = [one for one in records if shash not in untuned or one.median_sec < untuned[shash].median_sec]
            found.setdefault(shash, []).extend(faster)
    return {shash: sorted(found[shash], key=_place) for shash in sorted(found) if found[shash]}


def _place(record: Record) -> tuple[str, str, str, float, str]:
    scope = record.scope
    return scope.device_model, scope.target_json, scope.tvm_version, record.median_sec, record.uid


@dataclass(frozen=True, slots=True)
class _Origins:
    """Measuring conditions of chosen records, by record id."""

    environments: Mapping[int, tuple[str, Mapping[str, object]]]
    evaluators: Mapping[int, tuple[str, Mapping[str, object]]]
    """Digest and facts of each."""


def _origins(library: Library, chosen: Mapping[str, Sequence[Record]]) -> _Origins:
    ids = [record.id for group in chosen.values() for record in group]
    evaluators = {number: making.evaluator for number, making in library.makings(ids).items()}
    return _Origins(
        environments=library.environments_of(ids),
        evaluators={number: (facts_digest(found), found) for number, found in evaluators.items()},
    )


def _config(
    library: Library, order: PackOrder, chosen: Mapping[str, Sequence[Record]], origins: _Origins
) -> PackConfig:
    records = [record for group in chosen.values() for record in group]
    return PackConfig(
        title=order.title,
        licence=order.licence,
        made_by=f"tvm-fleet {package_version()}",
        device_models=_device_models(library, records, origins),
        evaluators=dict(origins.evaluators.values()),
        targets=tuple(sorted({record.scope.target_json for record in records})),
        tvm_versions=tuple(sorted({record.scope.tvm_version for record in records})),
        workloads=len(chosen),
        records=len(records),
        checked=sum(record.checked is True for record in records),
    )


def _device_models(library: Library, records: Sequence[Record], origins: _Origins) -> tuple[DeviceModel, ...]:
    facts = library.memory.device_facts()
    by_model: dict[str, dict[str, Mapping[str, object]]] = {}
    for record in records:
        of_model = by_model.setdefault(record.scope.device_model, {})
        if record.id in origins.environments:
            digest, found = origins.environments[record.id]
            of_model[digest] = found
    return tuple(
        DeviceModel(
            name=name,
            facts={key: value for key, value in facts.get(name, {}).items() if key in _SHARED_FACTS},
            environments=by_model[name],
        )
        for name in sorted(by_model)
    )


def _write_layers(
    library: Library, folder: Path, chosen: Mapping[str, Sequence[Record]], origins: _Origins
) -> list[Descriptor]:
    facts = (encode(_facts(record, origins)) for group in chosen.values() for record in group)
    return [
        _put_lines(folder, _workload_lines(library, chosen), layout.WORKLOADS_TYPE, WORKLOADS_NAME),
        _put_lines(folder, _record_lines(library, chosen), layout.RECORDS_TYPE, RECORDS_NAME),
        _put_lines(folder, facts, layout.FACTS_TYPE, FACTS_NAME),
    ]


def _workload_lines(library: Library, shashes: Iterable[str]) -> Iterator[bytes]:
    return (workload_line(library.workload(shash)).encode() for shash in shashes)


def _record_lines(library: Library, chosen: Mapping[str, Sequence[Record]]) -> Iterator[bytes]:
    for number, (shash, records) in enumerate(chosen.items()):
        workload: StoredWorkload = library.workload(shash)
        for record in records:
            yield record_line(number, workload, record).encode()


def _facts(record: Record, origins: _Origins) -> RecordFacts:
    return RecordFacts(
        uid=record.uid,
        device_model=record.scope.device_model,
        tvm_version=record.scope.tvm_version,
        kind=record.kind,
        is_checked=record.checked is True,
        is_proven=record.is_proven is True,
        measured_at=record.created_at,
        environment=origins.environments.get(record.id, ("", {}))[0],
        evaluator=origins.evaluators.get(record.id, ("", {}))[0],
        artifact_digest=record.artifact_digest,
    )


def _put_lines(folder: Path, lines: Iterable[bytes], media_type: str, title: str) -> Descriptor:
    path = folder / title
    write_lines(path, lines)
    found = describe_file(path, media_type, title)
    path.rename(folder / found.blob_name)
    return found


def _put_signature(folder: Path, pack: Descriptor, armored: bytes) -> Descriptor:
    signature = _put(folder, armored, layout.SSHSIG_TYPE)
    _put(folder, layout.EMPTY_BLOB, layout.MANIFEST_TYPE)
    return _put(folder, layout.signature_manifest(signature, pack), layout.MANIFEST_TYPE)


def _put(folder: Path, content: bytes, media_type: str) -> Descriptor:
    found = layout.descriptor_of(content, media_type)
    (folder / found.blob_name).write_bytes(content)
    return found
