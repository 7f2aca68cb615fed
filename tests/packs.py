"""Packs made by hand, with any part of them changed."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleet.domain.measuring import TensorSpec
from fleet.domain.scope import RecordScope
from fleet.library import Library, Record, StoredWorkload
from fleet.library.exchange import workload_line
from fleet.packs import layout
from fleet.packs.shelf import Trust

PROGRAM = '{"root_index":0,"nodes":[{"type":"None"}]}'
TARGET = {"kind": "llvm", "num-cores": 4}
SCOPE = RecordScope(target_json=json.dumps(TARGET), device_model="pi4", tvm_version="0.27.0.post1")
ARGS = (
    TensorSpec((1, 16, 55, 55), "float32"),
    TensorSpec((64, 16, 3, 3), "float32"),
    TensorSpec((1, 64, 55, 55), "float32", is_output=True),
)
ANYONE = Trust(signers={}, file=Path("allowed_signers"), allows_unsigned=True)


def trace(decision: int = 1) -> str:
    """A trace that the check of instructions allows."""
    return json.dumps([[["GetSBlock", [], ["b", "main"], ["x"]]], [[0, [decision]]]])


def add_records(library: Library, *shashes: str, count: int = 4, scope: RecordScope = SCOPE) -> None:
    """Add workloads, each with checked records of 1 ms, 2 ms and so on."""
    library.add_workloads(
        StoredWorkload(shash=shash, name="fused_conv2d", mod_json=PROGRAM, args=ARGS) for shash in shashes
    )
    library.add_records(
        Record(
            workload=shash,
            scope=scope,
            trace_json=trace(place),
            run_secs=(1e-3 * place,),
            checked=True,
            environment={"kernel": "6.1", "runtime": "tvm 0.27"},
        )
        for shash in shashes
        for place in range(1, count + 1)
    )


def make_key(folder: Path, kind: str = "ed25519") -> Path:
    """Make an SSH key without a passphrase."""
    key = folder / f"id_{kind}"
    size = ["-b", "2048"] if kind == "rsa" else []
    subprocess.run(["ssh-keygen", "-q", "-N", "", "-t", kind, *size, "-C", "test", "-f", str(key)], check=True)
    return key


@dataclass
class Draft:
    """Parts of a pack of one workload with two records. Change them, then write it."""

    config: dict[str, Any] = field(
        default_factory=lambda: {"format": 1, "title": "pi4", "workloads": 1, "records": 2, "checked": 1}
    )
    workloads: list[bytes] = field(
        default_factory=lambda: [workload_line(StoredWorkload(shash="7", name="w", mod_json=PROGRAM)).encode()]
    )
    records: list[Any] = field(
        default_factory=lambda: [
            [0, [json.loads(trace(n)), [1e-3 * n], TARGET, [["TENSOR", "float32", [4]]]]] for n in (1, 2)
        ]
    )
    facts: list[Any] = field(
        default_factory=lambda: [
            {
                "uid": f"u{n}",
                "device_model": "pi4",
                "tvm_version": "0.27.0.post1",
                "kind": "candidate",
                "is_checked": n == 1,
                "measured_at": "2026-11-01T00:00:00+00:00",
            }
            for n in (1, 2)
        ]
    )
    layers: dict[str, bytes] = field(default_factory=dict)
    """Content by media type, in place of the gzipped lines."""

    manifest: Callable[[dict[str, Any]], object] = lambda _: None
    """Changes the manifest."""

    index: Callable[[dict[str, Any]], object] = lambda _: None
    manifest_text: Callable[[bytes], bytes] = lambda content: content
    """Changes the manifest's text."""

    config_text: Callable[[bytes], bytes] = lambda content: content
    after: Callable[[Path], object] = lambda _: None
    """Changes the written folder."""

    def write(self, folder: Path) -> Path:
        """Write the pack as a folder."""
        (folder / "blobs" / "sha256").mkdir(parents=True)
        lines = {
            layout.WORKLOADS_TYPE: self.workloads,
            layout.RECORDS_TYPE: [_line(one) for one in self.records],
            layout.FACTS_TYPE: [_line(one) for one in self.facts],
        }
        zipped = {kind: gzip.compress(b"".join(one + b"\n" for one in text), mtime=0) for kind, text in lines.items()}
        content = {**zipped, **self.layers}
        manifest = {
            "schemaVersion": 2,
            "mediaType": layout.MANIFEST_TYPE,
            "artifactType": layout.PACK_TYPE,
            "config": put(folder, self.config_text(_line(self.config)), layout.CONFIG_TYPE),
            "layers": [put(folder, one, kind) for kind, one in content.items()],
        }
        self.manifest(manifest)
        listed = put(folder, self.manifest_text(_line(manifest)), layout.MANIFEST_TYPE)
        index = {"schemaVersion": 2, "manifests": [listed]}
        self.index(index)
        (folder / "index.json").write_bytes(_line(index))
        (folder / "oci-layout").write_bytes(layout.LAYOUT_CONTENT)
        self.after(folder)
        return folder


def put(folder: Path, content: bytes, media_type: str) -> dict[str, Any]:
    """Write a blob, and return its descriptor."""
    digest = hashlib.sha256(content).hexdigest()
    (folder / "blobs" / "sha256" / digest).write_bytes(content)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}


def as_tar(folder: Path, change: Callable[[tarfile.TarFile], object] = lambda _: None) -> Path:
    """Write a folder as a .tar file beside it."""
    path = folder.with_suffix(".tar")
    with tarfile.open(path, "w") as archive:
        archive.add(folder, ".")
        change(archive)
    shutil.rmtree(folder)
    return path


def _line(value: object) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode()
