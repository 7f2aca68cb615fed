"""Finds a pack in a layout, checks its manifests and signatures, and copies its blobs with their digests checked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fleet.errors import InvalidRequest
from fleet.packs import layout
from fleet.packs.contents import PackConfig, parse_config
from fleet.packs.files import copy_blob, read_blob
from fleet.packs.layout import Descriptor, Manifest
from fleet.packs.sources import Source, read_all
from fleet.packs.sshsig import MOST_BYTES as MOST_SIGNATURE_BYTES
from fleet.packs.sshsig import PublicKey, signer_of

_FAMILY = "application/vnd.tvm-fleet.pack."
_MOST_LAYOUT_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """A signature in a layout, and the key that made it."""

    descriptor: Descriptor
    """Of its manifest."""

    blobs: tuple[Descriptor, ...]
    key: PublicKey


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPack:
    """A pack in a layout. Its layers were not read yet."""

    descriptor: Descriptor
    manifest: Manifest
    config: PackConfig
    signatures: tuple[Signature, ...]

    @property
    def digest(self) -> str:
        """Its name."""
        return self.descriptor.digest


def find_pack(source: Source) -> FoundPack:
    """Return the pack of a layout. Verifies signatures; the caller judges their keys.

    Raises:
        InvalidRequest: the layout has no pack or several, or a part of it is not as described.
    """
    layout.parse_layout(read_all(source, layout.LAYOUT_NAME, _MOST_LAYOUT_BYTES))
    listed = layout.parse_index(read_all(source, layout.INDEX_NAME, layout.MOST_JSON_BYTES))
    contents = {one.digest: read_blob(source, one, layout.MOST_JSON_BYTES) for one in listed}
    manifests = {digest: layout.parse_manifest(content) for digest, content in contents.items()}
    digest = _only_pack(manifests)
    pack = manifests[digest]
    for media_type in layout.LAYER_TYPES:
        pack.layer(media_type)
    return FoundPack(
        descriptor=layout.descriptor_of(contents[digest], layout.MANIFEST_TYPE),
        manifest=pack,
        config=parse_config(read_blob(source, pack.config, layout.MOST_JSON_BYTES)),
        signatures=tuple(
            _signature(source, layout.descriptor_of(contents[name], layout.MANIFEST_TYPE), one, contents[digest])
            for name, one in manifests.items()
            if one.artifact_type == layout.SIGNATURE_TYPE and one.subject is not None and one.subject.digest == digest
        ),
    )


def write_layout(folder: Path, pack: Descriptor, signatures: Iterable[Descriptor]) -> None:
    """Write the two files of a layout beside its blobs."""
    (folder / layout.LAYOUT_NAME).write_bytes(layout.LAYOUT_CONTENT)
    (folder / layout.INDEX_NAME).write_bytes(layout.index_of(pack, signatures))


def stage(source: Source, pack: FoundPack, folder: Path) -> None:
    """Copy a pack and its signatures into an empty folder.

    Raises:
        InvalidRequest: a blob is not as described, or all together are too large.
        OSError: it cannot be written.
    """
    signatures = [one.descriptor for one in pack.signatures]
    of_signatures = (blob for one in pack.signatures for blob in (one.descriptor, *one.blobs))
    blobs = {blob.digest: blob for blob in (pack.descriptor, *pack.manifest.blobs, *of_signatures)}
    total = sum(blob.size_bytes for blob in blobs.values())
    if total > layout.MOST_PACK_BYTES:
        raise InvalidRequest(f"it has {total:,} bytes, more than {layout.MOST_PACK_BYTES:,}")
    (folder / "blobs" / "sha256").mkdir(parents=True)
    for blob in blobs.values():
        copy_blob(source, blob, folder / blob.blob_name)
    write_layout(folder, pack.descriptor, signatures)


def _only_pack(manifests: dict[str, Manifest]) -> str:
    found = [digest for digest, one in manifests.items() if one.artifact_type == layout.PACK_TYPE]
    if len(found) == 1:
        return found[0]
    ours = (layout.PACK_TYPE, layout.SIGNATURE_TYPE)
    types = [one.artifact_type for one in manifests.values()]
    if not found and any(one.startswith(_FAMILY) and one not in ours for one in types):
        raise InvalidRequest("it has a newer format; install a newer tvm-fleet")
    raise InvalidRequest(f"its {layout.INDEX_NAME} has {len(found)} packs instead of one")


def _signature(source: Source, descriptor: Descriptor, manifest: Manifest, pack: bytes) -> Signature:
    armored = read_blob(source, manifest.layer(layout.SSHSIG_TYPE), MOST_SIGNATURE_BYTES)
    return Signature(descriptor=descriptor, blobs=manifest.blobs, key=signer_of(armored, pack))
