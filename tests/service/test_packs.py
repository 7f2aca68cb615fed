"""`fleet pack` on real files and with the real ssh-keygen, as users run it."""

from __future__ import annotations

import gzip
import json
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fleet.cli.main import app
from fleet.errors import AlreadyExists, InvalidRequest
from fleet.library import Library, Record, RecordKind
from fleet.packs import layout
from fleet.packs.lookup import open_packs
from fleet.packs.shelf import Shelf, Trust
from fleet.packs.signing import sign
from fleet.packs.sources import open_source
from fleet.packs.sshsig import NAMESPACE, signer_of
from fleet.packs.staging import find_pack
from tests.needs import is_absent
from tests.packs import ANYONE, SCOPE, Draft, add_records, make_key

Fleet = Callable[..., tuple[int, str, str]]


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """Runs `fleet pack` for a user with empty folders, and a library of two workloads."""
    monkeypatch.setenv("FLEET_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("FLEET_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    with Library.open(str(tmp_path / "library.sqlite")) as library:
        add_records(library, "9", "10")

    def run(*words: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(app, ["pack", *words], env={"COLUMNS": "200"}, prog_name="fleet")
        return result.exit_code, result.stdout, result.stderr

    return run


def make(fleet: Fleet, name: str = "pi4.pack", *more: str) -> str:
    """Make a pack, and return its digest."""
    code, out, err = fleet("make", name, "--device-model", "pi4", "--library", "library.sqlite", *more)
    assert (code, err) == (0, err)
    return out.strip()


def allow(key: Path, name: str = "ann@lab") -> None:
    """Put a key into the user's file of allowed signers."""
    file = Path("config/tvm-fleet/allowed_signers")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{name} {key.with_suffix('.pub').read_text()}")


def content(pack: str) -> dict[str, Any]:
    """The files of a pack by their names for other tools, and its manifests by artifact type."""
    with tarfile.open(pack) as archive:
        files = {one.name: archive.extractfile(one).read() for one in archive if one.isfile()}  # type: ignore[union-attr]
    manifests = {}
    for one in json.loads(files["index.json"])["manifests"]:
        blob = files[f"blobs/sha256/{one['digest'][7:]}"]
        manifests[one["artifactType"]] = json.loads(blob)
    layers = manifests[layout.PACK_TYPE]["layers"]
    named = {one["annotations"]["org.opencontainers.image.title"]: one["digest"][7:] for one in layers}
    return {**manifests, **{title: files[f"blobs/sha256/{name}"] for title, name in named.items()}}


def test_a_signed_pack_is_made_added_and_removed(fleet: Fleet, tmp_path: Path) -> None:
    """The whole way of a pack: unknown signers are refused, allowed ones are named."""
    key = make_key(tmp_path)
    digest = make(fleet, "pi4.pack", "--sign", str(key), "--licence", "CC0-1.0")

    refused = fleet("add", "pi4.pack")
    allow(key)
    added = fleet("add", "pi4.pack", "--json")
    listed = fleet("list", "--json")
    verified = fleet("verify")
    removed = fleet("remove", "pi4")

    assert refused[0] == 2
    assert "allowed_signers has no such key" in refused[2]
    [pack] = json.loads(added[1])["packs"]
    assert (pack["name"], pack["digest"], pack["signer"], pack["records"]) == ("pi4", digest, "ann@lab", 6)
    assert json.loads(listed[1]) == {**json.loads(added[1]), "packaged": []}
    assert verified == (0, "", "pi4 unchanged: 6 records of 2 workloads, signed by ann@lab\n")
    assert removed[0] == 0
    assert {"packs.lock", ".changing"} == {entry.name for entry in (tmp_path / "data" / "packs").iterdir()}


def test_equal_records_give_equal_bytes(fleet: Fleet, tmp_path: Path) -> None:
    """The digest is the name, and signing does not change it."""
    unsigned = make(fleet, "a.pack")
    signed = make(fleet, "b.pack", "--sign", str(make_key(tmp_path)))
    make(fleet, "c.pack")
    assert unsigned == signed
    assert Path("a.pack").read_bytes() == Path("c.pack").read_bytes()


@pytest.mark.skipif(is_absent("skopeo"), reason="needs skopeo")
def test_another_reader_of_layouts_finds_the_same_pack(fleet: Fleet, tmp_path: Path) -> None:
    """skopeo copies all blobs of the manifest whose digest is the pack's name."""
    digest = make(fleet, "pi4.pack", "--sign", str(make_key(tmp_path)))
    subprocess.run(["skopeo", "copy", "--quiet", "oci-archive:pi4.pack:pack", "dir:copied"], check=True)
    manifest = Path("copied/manifest.json").read_bytes()
    layers = {one["digest"] for one in json.loads(manifest)["layers"]}
    assert layout.descriptor_of(manifest, layout.MANIFEST_TYPE).digest == digest
    assert {digest[7:] for digest in layers} < {entry.name for entry in Path("copied").iterdir()}


def test_a_pack_names_no_devices_and_no_jobs(fleet: Fleet, tmp_path: Path) -> None:
    """Names stay private. The environment does not, since times depend on it."""
    with Library.open("library.sqlite") as library:
        job = library.start_job(title="secret")
        [known] = library.records("9", limit=1)
        library.add_record(replace(known, uid="", run_secs=(1e-5,), job_name=job.name, device_name="devices/attic"))
    make(fleet)
    found = content("pi4.pack")
    texts = b"".join(gzip.decompress(one) for one in found.values() if isinstance(one, bytes))
    assert not [word for word in (b"secret", b"attic", job.name.encode()) if word in texts]
    code, out, _ = fleet("show", "pi4.pack", "--json")
    [model] = json.loads(out)["config"]["device_models"]
    assert (code, model["name"], len(model["environments"])) == (0, "pi4", 1)


def test_a_pack_can_be_of_one_environment(fleet: Fleet) -> None:
    """Times of a board with a fan differ from those of a bare one."""
    with Library.open("library.sqlite") as library:
        [known] = library.records("9", limit=1)
        cooled = {"owner": {"cooling": "fan"}}
        library.add_record(replace(known, uid="", run_secs=(7e-3,), trace_json="[[],[[7,1]]]", environment=cooled))

    make(fleet, "pi4.pack", "--where", "cooling=fan")

    [line] = gzip.decompress(content("pi4.pack")["database_tuning_record.json.gz"]).decode().splitlines()
    assert json.loads(line)[1][1] == [7e-3]


def test_slow_and_wrong_schedules_are_left_out(fleet: Fleet) -> None:
    """Schedules that are slower than none, and those with wrong outputs, help nobody."""
    with Library.open("library.sqlite") as library:
        library.add_record(Record(workload="9", scope=SCOPE, run_secs=(1.5e-3,), kind=RecordKind.BASELINE))
        library.mark_wrong(library.best("10", SCOPE)[0].id)
    make(fleet)
    lines = gzip.decompress(content("pi4.pack")["database_tuning_record.json.gz"]).decode().splitlines()
    assert [(0, [0.002]), (0, [0.003]), (0, [0.004]), (1, [0.001])] == [
        (number, secs) for number, (_, secs, _, _) in map(json.loads, lines)
    ]


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_ssh_keygen_signs_and_verifies(tmp_path: Path, kind: str) -> None:
    """Ours verifies signatures of ssh-keygen, and ssh-keygen those in packs, by the same file of signers."""
    key = make_key(tmp_path, kind)
    signature = sign(b"content", key)
    signers = tmp_path / "signers"
    signers.write_text(f"ann@lab {key.with_suffix('.pub').read_text()}")
    (tmp_path / "sig").write_bytes(signature)
    command = ["ssh-keygen", "-Y", "verify", "-f", signers, "-I", "ann@lab", "-n", NAMESPACE, "-s", tmp_path / "sig"]

    assert key.with_suffix(".pub").read_text().startswith(signer_of(signature, b"content").line)
    assert subprocess.run(command, input=b"content", capture_output=True, check=False).returncode == 0
    with pytest.raises(InvalidRequest, match="not of this manifest"):
        signer_of(signature, b"Content")
    subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", "git", signers], check=True, capture_output=True)
    with pytest.raises(InvalidRequest, match="another purpose"):
        signer_of((tmp_path / "signers.sig").read_bytes(), signers.read_bytes())


def test_a_signature_of_another_pack_is_refused(fleet: Fleet, tmp_path: Path) -> None:
    """A signature is taken along with its pack only."""
    key = make_key(tmp_path)
    make(fleet, "pi4.pack", "--sign", str(key))
    with open_source(Path("pi4.pack")) as source:
        found = find_pack(source)
    [signature] = found.signatures
    other = Draft().write(tmp_path / "other")
    (tmp_path / "signed").mkdir()
    subprocess.run(["tar", "-xf", "pi4.pack", "-C", str(tmp_path / "signed")], check=True)
    for blob in (signature.descriptor, *signature.blobs):
        shutil.copy(tmp_path / "signed" / blob.blob_name, other / blob.blob_name)
    index = json.loads((other / "index.json").read_bytes())
    index["manifests"].append(
        {
            "mediaType": layout.MANIFEST_TYPE,
            "digest": signature.descriptor.digest,
            "size": signature.descriptor.size_bytes,
        }
    )
    (other / "index.json").write_text(json.dumps(index))
    allow(key)

    assert "is refused: it is unsigned" in fleet("add", "other")[2]
    index["manifests"] = index["manifests"][:1]
    forged = json.loads((other / signature.descriptor.blob_name).read_bytes())
    forged["subject"] = {key: index["manifests"][0][key] for key in ("mediaType", "digest", "size")}
    text = json.dumps(forged).encode()
    descriptor = layout.descriptor_of(text, layout.MANIFEST_TYPE)
    (other / descriptor.blob_name).write_bytes(text)
    index["manifests"].append({"mediaType": layout.MANIFEST_TYPE, "digest": descriptor.digest, "size": len(text)})
    (other / "index.json").write_text(json.dumps(index))
    assert "not of this manifest" in fleet("add", "other")[2]


def test_an_unsigned_pack_stays_visible(fleet: Fleet) -> None:
    """--allow-unsigned is needed again for its new version."""
    make(fleet)
    assert "is unsigned" in fleet("add", "pi4.pack")[2]
    assert "UNSIGNED" in fleet("add", "pi4.pack", "--allow-unsigned")[2]
    assert "UNSIGNED" in fleet("list")[1]
    assert "UNSIGNED" in fleet("verify")[2]
    assert "is unsigned" in fleet("update")[2]


def test_a_new_version_comes_by_update_only(fleet: Fleet, tmp_path: Path) -> None:
    """Adding another pack under a known name is refused, and updates keep the order of packs."""
    shelf, first = Shelf(), Draft().write(tmp_path / "first")
    shelf.add(first, ANYONE)
    shelf.add(Draft(config={**Draft().config, "title": "second"}).write(tmp_path / "second"), ANYONE)
    shutil.rmtree(first)
    Draft(config={**Draft().config, "title": "new"}).write(first)

    with pytest.raises(AlreadyExists, match="fleet pack update first"):
        shelf.add(first, ANYONE)
    shelf.update(shelf.named("first"), ANYONE)

    assert [("first", "new"), ("second", "second")] == [(one.name, one.title) for one in shelf.kept()]
    assert {one.hex for one in shelf.kept()} == {
        one.name for one in (tmp_path / "data" / "packs").iterdir() if one.is_dir()
    }


def test_a_refused_update_keeps_the_former_version(fleet: Fleet, tmp_path: Path) -> None:
    """A source that turns bad, or goes away, takes nothing from its users."""
    shelf = Shelf()
    shelf.add(Draft().write(tmp_path / "first"), ANYONE)
    (tmp_path / "first" / "index.json").write_text("{}")
    before = shelf.kept()
    with pytest.raises(InvalidRequest, match="refused"):
        shelf.update(shelf.named("first"), ANYONE)
    assert before == shelf.kept()
    assert shelf.verify(before[0], ANYONE).records == 2


def test_verification_finds_changed_copies(fleet: Fleet, tmp_path: Path) -> None:
    """Both the layout and the records made from it are compared."""
    shelf = Shelf()
    pack = shelf.add(Draft().write(tmp_path / "first"), ANYONE)
    with Library.open(str(shelf.database(pack))) as library:
        library.mark_wrong(library.records()[0].id)
    with pytest.raises(InvalidRequest, match="changed database"):
        shelf.verify(pack, ANYONE)
    shelf.database(pack).unlink()
    assert shelf.verify(pack, ANYONE).digest == pack.digest
    blob = max((tmp_path / "data" / "packs" / pack.hex / "blobs" / "sha256").iterdir())
    blob.write_bytes(blob.read_bytes()[::-1])
    with pytest.raises(InvalidRequest, match="was changed"):
        shelf.verify(pack, ANYONE)


def test_a_signer_can_be_disallowed(fleet: Fleet, tmp_path: Path) -> None:
    """`fleet pack verify` goes by the present file."""
    key = make_key(tmp_path)
    make(fleet, "pi4.pack", "--sign", str(key))
    allow(key)
    assert fleet("add", "pi4.pack")[0] == 0
    allow(make_key(tmp_path, "ecdsa"))
    assert "has no such key" in fleet("verify")[2]


def test_what_a_kill_leaves_is_removed_by_the_next_change(fleet: Fleet, tmp_path: Path) -> None:
    """A copy that is not whole is in no list."""
    packs = tmp_path / "data" / "packs"
    (packs / ".staging-killed" / "pack").mkdir(parents=True)
    (packs / ("a" * 64)).mkdir()
    shelf = Shelf()
    kept = shelf.add(Draft().write(tmp_path / "first"), ANYONE)
    assert {kept.hex, ".changing", "packs.lock"} == {entry.name for entry in packs.iterdir()}


@pytest.mark.parametrize("step", ["fill", "write_private", "shutil.rmtree"])
def test_a_kill_at_any_step_leaves_a_shelf_that_works(fleet: Fleet, tmp_path: Path, step: str) -> None:
    """A killed addition has happened or not; the next one takes place, and nothing else is left."""
    pack = Draft().write(tmp_path / "first")
    program = (
        "import os, sys, pathlib\nfrom fleet.packs import shelf\nfrom tests.packs import ANYONE\n"
        f"shelf.{step} = lambda *_, **__: os.kill(os.getpid(), 9)\nshelf.Shelf().add(pathlib.Path(sys.argv[1]), ANYONE)"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program, str(pack)], cwd=root, check=False, capture_output=True)
    shelf = Shelf()
    before = shelf.kept()
    kept = shelf.add(pack, ANYONE)
    assert (done.returncode, before) == (-signal.SIGKILL, ()), done.stderr
    assert (kept,) == shelf.kept()
    assert {kept.hex, ".changing", "packs.lock"} == {entry.name for entry in (tmp_path / "data" / "packs").iterdir()}
    assert shelf.verify(kept, ANYONE).digest == kept.digest


def test_the_first_pack_with_a_checked_record_serves_it(tmp_path: Path) -> None:
    """Times of two packs do not compete, and unchecked records are only tried."""
    shelf = Shelf(tmp_path / "packs")
    slow = Draft()
    slow.records[0][1][1], slow.records[1][1][1] = [5e-3], [1e-6]
    shelf.add(slow.write(tmp_path / "slow"), ANYONE)
    shelf.add(Draft().write(tmp_path / "fast"), ANYONE)
    with open_packs(shelf) as packs:
        found = packs.best(["7", "8"], SCOPE)
        other = packs.best(["7"], replace(SCOPE, device_model="pi5"))
    assert ([("7", "slow", 5e-3)], {}) == (
        [(shash, one.pack.name, one.record.median_sec) for shash, one in found.items()],
        other,
    )


def test_trust_is_part_of_the_lock_file(tmp_path: Path) -> None:
    """A damaged lock file is an error, and never an empty list."""
    shelf = Shelf(tmp_path / "packs")
    shelf.add(Draft().write(tmp_path / "first"), replace(ANYONE, signers={b"x": "nobody"}))
    lock = tmp_path / "packs" / "packs.lock"
    assert json.loads(lock.read_text())["packs"][0]["signer"] == ""
    lock.write_text("{")
    with pytest.raises(Exception, match=r"packs\.lock"):
        shelf.kept()


def test_a_key_that_is_not_there_is_named(fleet: Fleet) -> None:
    """Nothing is written without the signature that was asked for."""
    code, _, err = fleet("make", "a.pack", "--device-model", "pi4", "--library", "library.sqlite", "--sign", "nokey")
    assert (code, "there is no key nokey" in err, Path("a.pack").exists()) == (2, True, False)
    code, _, err = fleet("make", "a.pack", "--device-model", "pi5", "--library", "library.sqlite")
    assert (code, "no such records of 'pi5'" in err) == (1, True)


def test_nobody_is_allowed_without_a_file(tmp_path: Path) -> None:
    """A named file has to exist; the default one may be missing."""
    shelf = Shelf(tmp_path / "packs")
    with pytest.raises(InvalidRequest, match="unsigned"):
        shelf.add(Draft().write(tmp_path / "first"), Trust(signers={}, file=tmp_path / "none"))
