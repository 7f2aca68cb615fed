"""Packs: their documents, signatures and .tar files."""

from __future__ import annotations

import base64
import contextlib
import functools
import gzip
import io
import json
import os
import struct
import tarfile
from collections.abc import Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fleet.base.scratch import scratch_dir
from fleet.errors import InvalidRequest
from fleet.packs import layout
from fleet.packs.addresses import parse_address
from fleet.packs.contents import PackConfig, parse_config, parse_facts
from fleet.packs.credentials import parse_challenge
from fleet.packs.reading import read_groups
from fleet.packs.signers import parse_signers
from fleet.packs.sources import open_source, read_all
from fleet.packs.sshsig import NAMESPACE, signer_of
from fleet.packs.web import resolved
from tests.fuzz.target import Target, no_loop
from tests.packs import Draft

_BETWEEN = b"\n|\n"
_READERS = (
    layout.parse_layout,
    layout.parse_index,
    layout.parse_manifest,
    parse_config,
    functools.partial(parse_facts, where="facts.jsonl.gz:1"),
    lambda content: parse_signers(content.decode(errors="replace")),
    layout.parse_referrers,
    functools.partial(layout.with_referrer, signature=layout.descriptor_of(b"{}", layout.MANIFEST_TYPE)),
    lambda content: parse_address(content.decode(errors="replace")),
    lambda content: parse_challenge(content.decode("latin-1")),
    lambda content: resolved("http://127.0.0.1:5000/v2/", content.decode("latin-1")),
)
_WORDS = (
    b"NaN",
    b"1e999",
    b"[[[[",
    b'"sha256:',
    b"\\u202e",
    b"\\ud800",
    b"null",
    b"true",
    b"-1",
    b'"size":',
    b"1" * 40,
)


def _documents(content: bytes) -> None:
    for read in _READERS:
        with contextlib.suppress(InvalidRequest):
            read(content)


def _signature(content: bytes) -> None:
    lines = ("-----BEGIN SSH SIGNATURE-----", base64.b64encode(content).decode(), "-----END SSH SIGNATURE-----")
    with contextlib.suppress(InvalidRequest):
        signer_of("\n".join(lines).encode(), b"content")


def _tar(content: bytes) -> None:
    descriptor = os.memfd_create("pack")
    try:
        os.write(descriptor, content)
        with contextlib.suppress(InvalidRequest), open_source(Path(f"/proc/self/fd/{descriptor}")) as source:
            read_all(source, layout.INDEX_NAME, layout.MOST_JSON_BYTES)
    finally:
        os.close(descriptor)


def _records(content: bytes) -> None:
    """Read the lines of the three layers, which lie one behind the other."""
    layers = content.split(_BETWEEN, 2)
    with scratch_dir("fuzz") as folder, contextlib.suppress(InvalidRequest):
        (folder / "blobs" / "sha256").mkdir(parents=True)
        blobs = [
            layout.Descriptor(media_type=kind, digest=f"sha256:{kind.rpartition('.pack.')[2]}", size_bytes=0)
            for kind in layout.LAYER_TYPES
        ]
        for blob, lines in zip(blobs, layers + [b""] * 3, strict=False):
            (folder / blob.blob_name).write_bytes(gzip.compress(lines, 1))
        manifest = layout.Manifest(artifact_type="", config=blobs[0], layers=tuple(blobs))
        for _ in read_groups(folder, manifest, PackConfig(title="pi4", workloads=1, records=2)):
            pass


def _good_records() -> Sequence[bytes]:
    draft = Draft()
    records, facts = (b"\n".join(json.dumps(one).encode() for one in some) for some in (draft.records, draft.facts))
    return [_BETWEEN.join([b"\n".join(draft.workloads) + b"\n", records + b"\n", facts + b"\n"])]


def _good_documents() -> Sequence[bytes]:
    draft = Draft()
    blob = layout.descriptor_of(b"{}", layout.CONFIG_TYPE, "title")
    pack = layout.pack_manifest(blob, [blob])
    described = layout.descriptor_of(pack, layout.MANIFEST_TYPE)
    key = b'ann namespaces="tvm-fleet-pack" ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICa+gNR9V3/Mu+DibDuWIWq8'
    challenge = b'Bearer realm="https://registry.example.org/token",service="registry",scope="repository:pi4:pull"'
    addresses = (b"oci://registry.example.org:5000/lab/pi4:1", b"https://registry.example.org/pi4/", challenge)
    documents = (json.dumps(one).encode() for one in (draft.config, draft.facts[0]))
    return [
        layout.index_of(described, [described]),
        pack,
        layout.signature_manifest(blob, described),
        *documents,
        *addresses,
        key,
    ]


def _good_signature() -> Sequence[bytes]:
    key = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
    public = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    packed = (_packed(b"ssh-ed25519") + _packed(public), NAMESPACE.encode(), b"", b"sha512")
    signed = _packed(b"ssh-ed25519") + _packed(b"s" * 64)
    return [b"SSHSIG\0\0\0\1" + b"".join(map(_packed, (*packed, signed)))]


def _packed(text: bytes) -> bytes:
    return struct.pack(">I", len(text)) + text


def _good_tar() -> Sequence[bytes]:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in (layout.LAYOUT_NAME, layout.INDEX_NAME, "blobs/sha256/" + "a" * 64):
            member = tarfile.TarInfo(name)
            member.size = 2
            archive.addfile(member, io.BytesIO(b"{}"))
    return [buffer.getvalue()]


PACKS = [
    Target(
        name="pack_records",
        run=no_loop(_records),
        seeds=_good_records,
        words=(*_WORDS, b"1e-9", b'"kind":"static"', b'["Annotate",[],[],[]]', b"\n"),
        large_bytes=8192,
        quick_inputs=40,
    ),
    Target(name="pack_documents", run=no_loop(_documents), seeds=_good_documents, words=_WORDS, quick_inputs=200),
    Target(
        name="pack_signature",
        run=no_loop(_signature),
        seeds=_good_signature,
        words=(
            b"\0\0\0\x0bssh-ed25519",
            b"\0\0\0\x07ssh-rsa",
            b"\xff\xff\xff\xff",
            b"ecdsa-sha2-nistp256",
            b"\0\0\0\0",
        ),
        large_bytes=16 * 1024,
    ),
    Target(
        name="pack_tar",
        run=no_loop(_tar),
        seeds=_good_tar,
        words=(b"../", b"ustar\0", b"0000644\0", b"00000000002\0", b"\x80" + b"\xff" * 11, b"\0" * 512),
        most_bytes=8192,
        quick_inputs=200,
    ),
]
