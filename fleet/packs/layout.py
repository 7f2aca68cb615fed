"""OCI image layouts of packs: media types, and manifests and indexes as bytes and back. No I/O.

    oci-layout                  {"imageLayoutVersion":"1.0.0"}
    index.json                  lists the manifests of the pack and of its signatures
    blobs/sha256/<hex>          manifests, the configuration, layers and signatures

The digest of the pack's manifest is the name of the pack. A signature is a referrer: a manifest that has the pack's as
its subject.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleet.base.digests import digest_of
from fleet.base.text import sanitize
from fleet.errors import InvalidRequest
from fleet.packs import strict_json

LAYOUT_NAME, INDEX_NAME = "oci-layout", "index.json"
LAYOUT_CONTENT = b'{"imageLayoutVersion":"1.0.0"}'

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
PACK_TYPE = "application/vnd.tvm-fleet.pack.v1+json"
CONFIG_TYPE = "application/vnd.tvm-fleet.pack.config.v1+json"
WORKLOADS_TYPE = "application/vnd.tvm-fleet.pack.workloads.v1+gzip"
RECORDS_TYPE = "application/vnd.tvm-fleet.pack.records.v1+gzip"
FACTS_TYPE = "application/vnd.tvm-fleet.pack.facts.v1+gzip"
SIGNATURE_TYPE = "application/vnd.tvm-fleet.pack.signature.v1+json"
SSHSIG_TYPE = "application/vnd.tvm-fleet.pack.sshsig.v1"

LAYER_TYPES = (WORKLOADS_TYPE, RECORDS_TYPE, FACTS_TYPE)
"""Layers that each pack has exactly once. Others may follow, and are kept unread."""

MOST_PACK_BYTES = 1024**3
"""Limit of all blobs together, and of all layers after decompression."""

MOST_JSON_BYTES = 1024**2
"""Limit of an index, a manifest or a configuration."""

_MOST_DESCRIPTORS = 16
_MOST_TITLE_CHARS = 200
_REFERENCE = "org.opencontainers.image.ref.name"
"""Key by which other tools choose a manifest: skopeo copy oci-archive:rpi4.pack:pack"""

_TITLE = "org.opencontainers.image.title"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_EMPTY = b"{}"
_EMPTY_TYPE = "application/vnd.oci.empty.v1+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """Reference to a blob."""

    media_type: str
    digest: str
    """ "sha256:<hex>"."""

    size_bytes: int
    title: str = ""
    """File name of a layer, for other tools."""

    @property
    def blob_name(self) -> str:
        """Name of its file in a layout."""
        return f"blobs/sha256/{self.digest.removeprefix('sha256:')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A manifest of a pack, a signature, or an artifact of others."""

    artifact_type: str
    config: Descriptor
    layers: tuple[Descriptor, ...]
    subject: Descriptor | None = None

    def layer(self, media_type: str) -> Descriptor:
        """Return the only layer of a type. Raises InvalidRequest."""
        found = [layer for layer in self.layers if layer.media_type == media_type]
        if len(found) != 1:
            raise InvalidRequest(f"it has {len(found)} layers of the type {media_type}, and needs one")
        return found[0]

    @property
    def blobs(self) -> tuple[Descriptor, ...]:
        """All blobs that it refers to, but for its subject."""
        return (self.config, *self.layers)


def descriptor_of(content: bytes, media_type: str, title: str = "") -> Descriptor:
    """Return the descriptor of a blob."""
    return Descriptor(media_type=media_type, digest=digest_of(content), size_bytes=len(content), title=title)


def pack_manifest(config: Descriptor, layers: Sequence[Descriptor]) -> bytes:
    """Return the manifest of a pack. Equal descriptors give equal bytes."""
    return _encode(_manifest(PACK_TYPE, config, layers))


def signature_manifest(signature: Descriptor, pack: Descriptor) -> bytes:
    """Return the manifest that attaches a signature to a pack. Its configuration is `EMPTY_BLOB`."""
    config = descriptor_of(_EMPTY, _EMPTY_TYPE)
    return _encode({**_manifest(SIGNATURE_TYPE, config, [signature]), "subject": _described(pack)})


EMPTY_BLOB = _EMPTY
"""The configuration of manifests without one."""


def index_of(pack: Descriptor, signatures: Iterable[Descriptor]) -> bytes:
    """Return the index of a layout."""
    manifests = [
        {**_described(pack), "artifactType": PACK_TYPE, "annotations": {_REFERENCE: "pack"}},
        *({**_described(one), "artifactType": SIGNATURE_TYPE} for one in signatures),
    ]
    return _index(manifests)


def with_referrer(content: bytes, signature: Descriptor) -> bytes:
    """Return a list of referrers with a signature.

    Args:
        content: the present list, also with manifests of other tools; empty: no list.

    Raises:
        InvalidRequest: the list has another form.
    """
    listed = _referrers(content) if content else []
    others = [one for one in listed if one.get("digest") != signature.digest]
    return _index([*others, {**_described(signature), "artifactType": SIGNATURE_TYPE}])


def parse_referrers(content: bytes) -> list[Descriptor]:
    """Return the signatures in a list of referrers. Raises InvalidRequest for another form, or too many."""
    found = [one for one in _referrers(content) if one.get("artifactType") == SIGNATURE_TYPE]
    return _listed(found, "its list of signatures")


def parse_layout(content: bytes) -> None:
    """Check the version of a layout. Raises InvalidRequest."""
    found = strict_json.parse_object(content, LAYOUT_NAME).get("imageLayoutVersion")
    if found != "1.0.0":
        raise InvalidRequest(f"{LAYOUT_NAME} has version {str(found)[:20]!r}, and only 1.0.0 is known")


def parse_index(content: bytes) -> list[Descriptor]:
    """Return the manifests that a layout lists; those of other types are left out. Raises InvalidRequest."""
    listed = _listed(strict_json.parse_object(content, INDEX_NAME).get("manifests"), INDEX_NAME)
    return [one for one in listed if one.media_type == MANIFEST_TYPE]


def parse_manifest(content: bytes) -> Manifest:
    """Return a manifest. Raises InvalidRequest."""
    where = "a manifest"
    found = strict_json.parse_object(content, where)
    if found.get("schemaVersion") != 2 or found.get("mediaType") != MANIFEST_TYPE:
        raise InvalidRequest(f"{where} has another version or media type")
    artifact_type = found.get("artifactType", "")
    if not isinstance(artifact_type, str):
        raise InvalidRequest(f"the artifactType of {where} is no text")
    subject = found.get("subject")
    return Manifest(
        artifact_type=artifact_type,
        config=_parse_descriptor(found.get("config"), where),
        layers=tuple(_listed(found.get("layers"), where)),
        subject=None if subject is None else _parse_descriptor(subject, where),
    )


def _index(manifests: Sequence[Mapping[str, object]]) -> bytes:
    return _encode({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": manifests})


def _referrers(content: bytes) -> list[dict[str, Any]]:
    found = strict_json.parse_object(content, "its list of referrers").get("manifests")
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise InvalidRequest("its list of referrers is no index")
    return found


def _manifest(artifact_type: str, config: Descriptor, layers: Sequence[Descriptor]) -> dict[str, object]:
    return {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "artifactType": artifact_type,
        "config": _described(config),
        "layers": [_described(layer) for layer in layers],
    }


def _described(one: Descriptor) -> dict[str, object]:
    found: dict[str, object] = {"mediaType": one.media_type, "digest": one.digest, "size": one.size_bytes}
    return {**found, "annotations": {_TITLE: one.title}} if one.title else found


def _encode(value: Mapping[str, object]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _listed(found: Any, where: str) -> list[Descriptor]:
    if not isinstance(found, list) or len(found) > _MOST_DESCRIPTORS:
        raise InvalidRequest(f"{where} needs a list of at most {_MOST_DESCRIPTORS} descriptors")
    return [_parse_descriptor(one, where) for one in found]


def _parse_descriptor(found: Any, where: str) -> Descriptor:
    if not isinstance(found, dict):
        raise InvalidRequest(f"{where} has a descriptor that is no object")
    media_type, digest, size = (found.get(name) for name in ("mediaType", "digest", "size"))
    if not isinstance(media_type, str) or not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise InvalidRequest(f"{where} has a descriptor without a media type, or with a digest other than sha256:<hex>")
    if type(size) is not int or not 0 <= size <= MOST_PACK_BYTES:
        raise InvalidRequest(f"{where} has a blob of {str(size)[:20]} bytes; the limit is {MOST_PACK_BYTES:,}")
    title = _title(found.get("annotations"), where)
    return Descriptor(media_type=media_type, digest=digest, size_bytes=size, title=title)


def _title(annotations: Any, where: str) -> str:
    title = annotations.get(_TITLE, "") if isinstance(annotations, dict) else ""
    if not isinstance(title, str) or sanitize(title, _MOST_TITLE_CHARS) != title:
        raise InvalidRequest(f"{where} has a title with control characters, or of more than {_MOST_TITLE_CHARS}")
    return title
