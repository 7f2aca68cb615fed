"""Packs of strangers: a table of changed ones, each refused in one sentence with nothing kept."""

from __future__ import annotations

import base64
import gzip
import json
import os
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleet.errors import FleetError, InvalidRequest
from fleet.packs import layout
from fleet.packs.contents import facts_digest
from fleet.packs.files import Budget, read_lines
from fleet.packs.shelf import Shelf
from tests.packs import ANYONE, PROGRAM, Draft, as_tar, put, trace

Change = Callable[[Draft], object]


def set_to(part: str, *keys: Any, value: Any) -> Change:
    """Set an entry, or an entry of an entry, of a part."""

    def change(draft: Draft) -> None:
        at = getattr(draft, part)
        for key in keys[:-1]:
            at = at[key]
        at[keys[-1]] = value

    return change


def field(name: str, value: Any) -> Change:
    """Set an attribute of the draft."""
    return lambda draft: setattr(draft, name, value)


def manifest(change: Callable[[dict[str, Any]], object]) -> Change:
    return field("manifest", change)


def index(change: Callable[[dict[str, Any]], object]) -> Change:
    return field("index", change)


def after(change: Callable[[Path], object]) -> Change:
    return field("after", change)


def blobs(folder: Path) -> list[Path]:
    """The blobs of a folder, smallest first."""
    return sorted((folder / "blobs" / "sha256").iterdir(), key=lambda path: (path.stat().st_size, path.name))


def replaced(path: Path, make: Callable[[Path], object]) -> None:
    """Put something else in the place of a file; the file stays beside it."""
    path.rename(path.with_name("moved"))
    make(path)


def workload(shash: str, program: str) -> bytes:
    packed = struct.pack("<Q", len(program)) + program.encode()
    return json.dumps([shash, base64.b64encode(packed).decode()]).encode()


def times(*secs: float) -> Change:
    return set_to("records", 0, 1, 1, value=list(secs))


def steps(*instructions: Any) -> Change:
    return set_to("records", 0, 1, 0, value=[list(instructions), []])


def record_text(text: bytes) -> Change:
    return set_to("records", 0, value=text)


def steps_text(decisions: bytes) -> Change:
    return record_text(b'[0,[[[["GetSBlock",[],["b","main"],["x"]]],' + decisions + b'],[1],{"kind":"llvm"},null]]')


def layer(kind: str, content: bytes) -> Change:
    return set_to("layers", kind, value=content)


def without(name: str) -> Callable[[dict[str, Any]], object]:
    return lambda entry: entry.pop(name)


FACTS = gzip.compress(b"".join(json.dumps(one).encode() + b"\n" for one in Draft().facts))
DIGEST = f"sha256:{'a' * 64}"
CODES = {"owner": {"cooling": "fan\x1b[2J"}}
CODES_DIGEST = facts_digest(CODES)
PRAGMA = ["Annotate", ["x", '"evil"'], ["pragma_import_llvm"], []]

CHANGES: dict[str, tuple[Change, str]] = {
    # the layout
    "no layout file": (after(lambda f: (f / "oci-layout").unlink()), "oci-layout cannot be read"),
    "another layout": (after(lambda f: (f / "oci-layout").write_bytes(b'{"imageLayoutVersion":"2"}')), "only 1.0.0"),
    "large layout file": (after(lambda f: (f / "oci-layout").write_bytes(b" " * 5000)), "more than 4,096"),
    "no index": (after(lambda f: (f / "index.json").unlink()), "index.json cannot be read"),
    "index of text": (after(lambda f: (f / "index.json").write_bytes(b"no")), "index.json is not JSON"),
    "index of bytes": (after(lambda f: (f / "index.json").write_bytes(b"\xff\xfe")), "index.json is not JSON"),
    "index is a list": (after(lambda f: (f / "index.json").write_bytes(b"[]")), "no JSON object"),
    "deep index": (after(lambda f: (f / "index.json").write_bytes(b"[" * 200_000)), "not JSON"),
    "large index": (after(lambda f: (f / "index.json").write_bytes(b" " * (1024**2 + 1))), "more than 1,048,576"),
    "key twice": (after(lambda f: (f / "index.json").write_bytes(b'{"manifests":[],"manifests":[]}')), "two values"),
    "no manifests": (index(lambda i: i.update(manifests=[])), "0 packs instead of one"),
    "two packs": (index(lambda i: i["manifests"].append(i["manifests"][0] | {"size": 0})), "instead of"),
    "many manifests": (index(lambda i: i.update(manifests=i["manifests"] * 17)), "at most 16"),
    "manifests are a text": (index(lambda i: i.update(manifests="none")), "at most 16"),
    "descriptor is a text": (index(lambda i: i.update(manifests=["none"])), "no object"),
    "path as digest": (index(lambda i: i["manifests"][0].update(digest="sha256:../../../etc/passwd")), "sha256:<hex>"),
    "short digest": (index(lambda i: i["manifests"][0].update(digest="sha256:abc")), "sha256:<hex>"),
    "another hash": (index(lambda i: i["manifests"][0].update(digest="md5:" + "a" * 64)), "sha256:<hex>"),
    "missing manifest": (index(lambda i: i["manifests"][0].update(digest="sha256:" + "a" * 64)), "cannot be read"),
    "negative size": (index(lambda i: i["manifests"][0].update(size=-1)), "-1 bytes"),
    "size true": (index(lambda i: i["manifests"][0].update(size=True)), "True bytes"),
    "size 1e3": (index(lambda i: i["manifests"][0].update(size=1e3)), "1000.0 bytes"),
    "huge size": (index(lambda i: i["manifests"][0].update(size=10**30)), "the limit is"),
    # the manifest
    "newer type": (manifest(lambda m: m.update(artifactType=layout.PACK_TYPE.replace("v1", "v2"))), "newer format"),
    "another type": (manifest(lambda m: m.update(artifactType="application/x")), "0 packs"),
    "type is a number": (manifest(lambda m: m.update(artifactType=1)), "no text"),
    "schema version 1": (manifest(lambda m: m.update(schemaVersion=1)), "another version"),
    "no configuration": (manifest(without("config")), "no object"),
    "no layers": (manifest(without("layers")), "a list"),
    "two fact layers": (manifest(lambda m: m["layers"].append(m["layers"][-1])), "2 layers"),
    "no fact layer": (manifest(lambda m: m["layers"].pop()), "0 layers"),
    "title of a layer": (
        manifest(lambda m: m["layers"][0].update(annotations={"org.opencontainers.image.title": "a\x1b[2J"})),
        "control characters",
    ),
    "more than 1 GiB": (
        manifest(
            lambda m: m["layers"].extend(
                m["layers"][0] | {"mediaType": "x", "size": 2**30, "digest": f"sha256:{n:064}"} for n in (1, 2)
            )
        ),
        "more than 1,073,741,824",
    ),
    "changed manifest": (after(lambda f: blobs(f)[-1].write_bytes(blobs(f)[-1].read_bytes()[::-1])), "was changed"),
    # the blobs
    "changed layer": (after(lambda f: blobs(f)[1].write_bytes(b"\0" * blobs(f)[1].stat().st_size)), "was changed"),
    "truncated layer": (after(lambda f: os.truncate(blobs(f)[1], 9)), "truncated or changed"),
    "longer layer": (after(lambda f: blobs(f)[1].write_bytes(blobs(f)[1].read_bytes() + b"x")), "truncated or changed"),
    "linked blob": (after(lambda f: replaced(blobs(f)[1], lambda p: p.symlink_to("moved"))), "a link"),
    "linked index": (after(lambda f: replaced(f / "index.json", lambda p: p.symlink_to("moved"))), "a link"),
    "linked folder": (after(lambda f: replaced(f / "blobs", lambda p: p.symlink_to("moved"))), "a link"),
    "pipe": (after(lambda f: replaced(blobs(f)[1], os.mkfifo)), "no file"),
    "folder as blob": (after(lambda f: replaced(blobs(f)[1], Path.mkdir)), "no file"),
    # the configuration
    "newer format": (set_to("config", "format", value=2), "newer format"),
    "format is a text": (set_to("config", "format", value="1"), "another form"),
    "no title": (set_to("config", "title", value=""), "no title"),
    "terminal codes": (set_to("config", "title", value="\x1b]0;pwned\x07"), "control characters"),
    "turned text": (set_to("config", "licence", value="MIT\u202e"), "control characters"),
    "long title": (set_to("config", "title", value="a" * 201), "more than 200"),
    "NaN": (field("config_text", lambda text: text.replace(b"2", b"NaN")), "NaN"),
    "records are many": (set_to("config", "records", value=10**9), "more than 1,000,000"),
    "negative count": (set_to("config", "checked", value=-1), "negative"),
    "more than counted": (set_to("config", "records", value=1), "more records"),
    "fewer than counted": (set_to("config", "records", value=3), "its configuration says"),
    "checked miscounted": (set_to("config", "checked", value=2), "its configuration says"),
    "another environment": (
        set_to("config", "device_models", value=[{"name": "pi4", "environments": {DIGEST: {"kernel": "6.1"}}}]),
        "another digest",
    ),
    "codes in an environment": (
        set_to("config", "device_models", value=[{"name": "pi4", "environments": {CODES_DIGEST: CODES}}]),
        "control characters",
    ),
    "another evaluator": (set_to("config", "evaluators", value={DIGEST: {"repeat": 3}}), "another digest"),
    "evaluator is a list": (set_to("config", "evaluators", value={DIGEST: [3]}), "another form"),
    "deep configuration": (
        field("config_text", lambda text: text[:-1] + b',"more":' + b"[" * 99 + b"]" * 99 + b"}"),
        "16 levels",
    ),
    # the lines
    "no gzip": (layer(layout.RECORDS_TYPE, b"plain"), "damaged"),
    "half a gzip": (layer(layout.FACTS_TYPE, FACTS[:-9]), "damaged"),
    "bad checksum": (layer(layout.FACTS_TYPE, FACTS[:-8] + b"\0" * 8), "damaged"),
    "bomb of one line": (layer(layout.RECORDS_TYPE, gzip.compress(b" " * (25 * 1024**2))), "too long"),
    "no line end": (layer(layout.RECORDS_TYPE, gzip.compress(b"[]")), "does not end"),
    "empty records": (layer(layout.RECORDS_TYPE, gzip.compress(b"")), "different numbers"),
    "fewer facts": (lambda draft: draft.facts.pop(), "different numbers"),
    "workload twice": (lambda draft: draft.workloads.append(draft.workloads[0]), "not sorted"),
    "unused workload": (lambda draft: draft.workloads.append(workload("8", PROGRAM)), "not sorted"),
    "hash is a text": (set_to("workloads", 0, value=workload("x", PROGRAM)), "not a workload"),
    "no base64": (set_to("workloads", 0, value=b'["7","!"]'), "not a workload"),
    "calls C": (
        set_to("workloads", 0, value=workload("7", '{"root_index":0,"nodes":[{"type":"tirx.call_extern"}]}')),
        "which no workload",
    ),
    "record of nothing": (set_to("records", 1, 0, value=1), "lacks"),
    "negative workload": (set_to("records", 0, 0, value=-1), "does not begin with the number"),
    "workload true": (set_to("records", 0, 0, value=True), "not a record"),
    "record without end": (record_text(f"[0,[{trace()},[1],null,null]".encode()), "not JSON"),
    "half a record": (record_text(f"[0,[{trace()}".encode()), "other parts"),
    "record of bytes": (record_text(b"[0,[[[],[]],[1],\xff"), "not UTF-8"),
    "two times": (record_text(f"[0,[{trace()},[1],[1],null,null]]".encode()), "too many values"),
    "arguments are a text": (set_to("records", 0, 1, 3, value="x"), "not a record"),
    "decision without end": (
        record_text(b'[0,[[[["GetSBlock",[],["b","main"],["x"]]],[[0,[1]],[1],null,null]]'),
        "not JSON",
    ),
    "decision of a zero first": (steps_text(b"[[0,[01]]]"), "not JSON as"),
    "huge decision": (steps_text(b"[[0,[9223372036854775808]]]"), "is no number"),
    "deep decision": (steps_text(b"[[0,[[[[[1]]]]]]]"), "is no number"),
    "record is a text": (set_to("records", 0, value="x"), "not a record"),
    "deep record": (record_text(b"[" * 100_000), "does not begin with the number"),
    "key of a record twice": (record_text(b'[0,[[[],[]],[1],{"kind":"llvm","kind":"cuda"},null]]'), "two values"),
    "LLVM code": (steps(PRAGMA), "not allowed"),
    "unknown instruction": (steps(["Evil", [], [], []]), "not allowed"),
    "trace is a text": (set_to("records", 0, 1, 0, value="x"), "not JSON as"),
    "NaN as time": (times(float("nan")), "NaN"),
    "infinite time": (record_text(f'[0,[{trace()},[1e999],{{"kind":"llvm"}},null]]'.encode()), "impossible"),
    "no time": (times(), "no times"),
    "zero": (times(0.0), "impossible"),
    "negative time": (times(-1.0), "impossible"),
    "absurd time": (times(1e8), "impossible"),
    "too fast": (times(1e-12), "impossible"),
    "integer without end": (record_text(b"[0,[[[],[]],[1" + b"0" * 5000 + b"],null,null]]"), "not JSON"),
    "no target": (set_to("records", 0, 1, 2, value=None), "no target"),
    "target without kind": (set_to("records", 0, 1, 2, value={"mcpu": "x"}), '"kind"'),
    "long target": (set_to("records", 0, 1, 2, value={"kind": "llvm", "mcpu": "x" * 5000}), "no target"),
    # the facts
    "uid twice": (set_to("facts", 1, "uid", value="u1"), "twice"),
    "no uid": (set_to("facts", 0, "uid", value=""), "no uid"),
    "baseline": (set_to("facts", 0, "kind", value="baseline"), "no schedule"),
    "unknown kind": (set_to("facts", 0, "kind", value="x"), "another form"),
    "codes in a model": (set_to("facts", 0, "device_model", value="pi4\x1b[31m"), "control characters"),
    "no zone": (set_to("facts", 0, "measured_at", value="2026-11-01T00:00:00"), "no zone"),
    "checked is 1": (set_to("facts", 0, "is_checked", value=1), "another form"),
    "facts are a list": (set_to("facts", 0, value=[]), "no JSON object"),
}


def refusal(shelf: Shelf, path: Path) -> str:
    with pytest.raises(FleetError) as refused:
        shelf.add(path, ANYONE, "pack")
    return str(refused.value)


def test_the_unchanged_pack_is_kept(tmp_path: Path) -> None:
    """The table would prove nothing if its pack were refused anyway."""
    shelf = Shelf(tmp_path / "packs")
    shelf.add(Draft().write(tmp_path / "draft"), ANYONE)
    assert [("draft", 2)] == [(one.name, one.records) for one in shelf.kept()]


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_pack_is_refused_and_nothing_is_kept(tmp_path: Path, name: str) -> None:
    """Each is refused in one line with the reason."""
    change, reason = CHANGES[name]
    draft = Draft()
    change(draft)
    path = draft.write(tmp_path / "draft")

    said = refusal(Shelf(tmp_path / "packs"), path)

    assert reason in said
    assert said.startswith(f"the pack {path} is refused: ")
    assert said.isprintable()
    assert {".changing"} == {entry.name for entry in (tmp_path / "packs").iterdir()}


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> Callable[[tarfile.TarFile], object]:
    """Add an entry to a .tar file."""

    def add(archive: tarfile.TarFile) -> None:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, link
        archive.addfile(member)

    return add


TARS: dict[str, tuple[Callable[[tarfile.TarFile], object], str]] = {
    "leaves the folder": (entry("../../evil"), "which no layout has"),
    "absolute": (entry("/etc/passwd"), "which no layout has"),
    "leaves by a blob": (entry("blobs/sha256/../../x"), "which no layout has"),
    "symbolic link": (entry("blobs/sha256/" + "a" * 64, tarfile.SYMTYPE, "/etc/passwd"), "a link"),
    "hard link": (entry("blobs/sha256/" + "a" * 64, tarfile.LNKTYPE, "index.json"), "a link"),
    "device": (entry("blobs/sha256/" + "a" * 64, tarfile.CHRTYPE), "no file"),
    "sparse": (entry("blobs/sha256/" + "a" * 64, tarfile.GNUTYPE_SPARSE), "no file"),
    "long name": (entry("a" * 300), "which no layout has"),
    "index twice": (entry("index.json"), "twice"),
    "another folder": (entry("etc", tarfile.DIRTYPE), "no file"),
}


@pytest.mark.parametrize("name", TARS)
def test_a_changed_tar_file_is_refused(tmp_path: Path, name: str) -> None:
    """A member that is no file of a layout refuses the whole, whether or not it is used."""
    change, reason = TARS[name]
    path = as_tar(Draft().write(tmp_path / "draft"), change)
    assert reason in refusal(Shelf(tmp_path / "packs"), path)


def test_a_tar_file_of_other_tools_is_read(tmp_path: Path) -> None:
    """Python writes extended headers with fractions of seconds, and names after "./"."""
    shelf = Shelf(tmp_path / "packs")
    shelf.add(as_tar(Draft().write(tmp_path / "draft")), ANYONE)
    assert [2] == [one.records for one in shelf.kept()]


@pytest.mark.parametrize("kept", [0.3, 0.9])
def test_a_truncated_tar_file_is_refused(tmp_path: Path, kept: float) -> None:
    """A download that broke off leaves one."""
    path = as_tar(Draft().write(tmp_path / "draft"))
    content = path.read_bytes().rstrip(b"\0")
    path.write_bytes(content[: int(kept * len(content))])
    assert "is refused" in refusal(Shelf(tmp_path / "packs"), path)


def test_a_compressed_tar_file_is_no_pack(tmp_path: Path) -> None:
    """Decompression would begin before anything is known of the content."""
    path = as_tar(Draft().write(tmp_path / "draft"))
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert "no uncompressed .tar file" in refusal(Shelf(tmp_path / "packs"), path)


def test_a_pipe_is_no_pack(tmp_path: Path) -> None:
    """Opening it does not wait for a writer."""
    os.mkfifo(tmp_path / "pipe")
    assert "neither a folder nor a .tar file" in refusal(Shelf(tmp_path / "packs"), tmp_path / "pipe")


def test_layers_share_a_limit_after_decompression(tmp_path: Path) -> None:
    """Many short lines are a bomb as well."""
    path = tmp_path / "lines"
    path.write_bytes(gzip.compress(b"12345678\n" * 10))
    budget = Budget(99)
    assert 10 == len(list(read_lines(path, "lines", budget)))
    with pytest.raises(InvalidRequest, match="after decompression"):
        list(read_lines(path, "lines", budget))


def test_other_manifests_lie_beside_a_pack(tmp_path: Path) -> None:
    """Signatures of other tools are ignored."""

    def add_cosign(found: dict[str, Any]) -> None:
        other = {"schemaVersion": 2, "mediaType": layout.MANIFEST_TYPE, "artifactType": "application/vnd.dev.cosign"}
        config = put(tmp_path / "draft", b"{}", "application/vnd.oci.empty.v1+json")
        content = json.dumps({**other, "config": config, "layers": [config]}).encode()
        found["manifests"].append(put(tmp_path / "draft", content, layout.MANIFEST_TYPE))

    shelf = Shelf(tmp_path / "packs")
    shelf.add(Draft(index=add_cosign).write(tmp_path / "draft"), ANYONE)
    assert [""] == [one.signer for one in shelf.kept()]
