"""The manifest of an exported model, and the checks of its readers."""

from __future__ import annotations

import io
import json
import os
import tracemalloc
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tvm_ffi

from fleet.base.machine import architecture
from fleet.errors import ArtifactRefused, ConfigError
from fleet.runtime.agreement import agree
from fleet.runtime.fit import check_here, cpu_flags
from fleet.runtime.manifest import (
    Affinity,
    Check,
    FileFacts,
    Manifest,
    TensorType,
    UsedRecord,
    format_manifest,
    parse_manifest,
)
from fleet.runtime.memory import check_types, staged
from fleet.runtime.model import stored_arrays
from fleet.runtime.package import open_package, read_file, read_manifest, verify, write_archive

CONTENT = {"library.so": b"machine code", "check/input0.npy": b"in", "check/output0.npy": b"out"}
MANIFEST = Manifest(
    title="toy",
    model_digest="sha256:00",
    target={"kind": "llvm", "num-cores": 2},
    device_type="cpu",
    machine=architecture(),
    cpu_features=("avx2",),
    tvm_version="0.27.0",
    threads=2,
    affinity=Affinity.FREE,
    device_model="it x2",
    inputs=(TensorType(name="x", shape=(1, 3), dtype="float32"),),
    outputs=(TensorType(name="y", shape=(1, 2), dtype="float32"),),
    records=(UsedRecord(workload="fused_a", operator="a 3x3", shash="1", uid="u", median_sec=0.5),),
    library="library.so",
    files={
        "library.so": FileFacts(
            sha256="6ccd7ab86d9ae8ff3bb1ec4e72d2a2b3b9a2ff9cb2a3c9b8ad5ddd9aa8b1a8a0",
            size_bytes=len(CONTENT["library.so"]),
        ),
        **{name: FileFacts(sha256="", size_bytes=3) for name in ("check/input0.npy", "check/output0.npy")},
    },
    check=Check(
        inputs=("check/input0.npy",), outputs=("check/output0.npy",), tolerances=(1e-5,), reference="onnx", seed=3
    ),
)


def test_a_manifest_survives_its_journey_as_json() -> None:
    """No field is lost, and equal manifests give equal texts."""
    text = format_manifest(MANIFEST)

    assert parse_manifest(text, where="it") == MANIFEST
    assert format_manifest(parse_manifest(text, where="it")) == text


def test_a_manifest_of_an_earlier_version_is_read() -> None:
    """Missing fields have their defaults."""
    found = json.loads(format_manifest(replace(MANIFEST, records=(replace(MANIFEST.records[0], is_static=True),))))
    del found["records"][0]["is_static"]

    assert parse_manifest(json.dumps(found), where="it") == MANIFEST


def test_a_manifest_of_a_newer_format_is_refused() -> None:
    """An old reader refuses with advice instead of guessing."""
    newer = json.loads(format_manifest(MANIFEST)) | {"format": 99}

    with pytest.raises(ArtifactRefused, match="it has format 99, this version reads 1; update"):
        parse_manifest(json.dumps(newer), where="it")


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 1}', '{"format": 1, "check": 3}'])
def test_a_malformed_manifest_is_an_error_of_ours(text: str) -> None:
    """For any contents of the file, the error names it and a remedy."""
    with pytest.raises(ArtifactRefused, match="manifest of it is malformed"):
        parse_manifest(text, where="it")


def test_archives_of_equal_content_are_equal(tmp_path: Path) -> None:
    """Exporting twice, also on another machine, gives files with equal hashes."""
    for name in ("a.fleet", "b.fleet"):
        write_archive(tmp_path / name, MANIFEST, CONTENT)

    assert (tmp_path / "a.fleet").read_bytes() == (tmp_path / "b.fleet").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.fleet", "b.fleet"]


def test_an_archive_is_a_zip_that_anyone_can_unpack(tmp_path: Path) -> None:
    """The folder that comes out is read like the archive."""
    write_archive(tmp_path / "a.fleet", MANIFEST, CONTENT)
    zipfile.ZipFile(tmp_path / "a.fleet").extractall(tmp_path / "a")

    for path in (tmp_path / "a.fleet", tmp_path / "a"):
        package = open_package(path)
        assert read_manifest(package) == MANIFEST
        assert {name: read_file(package, name) for name in CONTENT} == CONTENT
        with package.library_file("library.so") as library:
            assert library.read_bytes() == CONTENT["library.so"]


def test_a_file_that_is_not_the_exported_one_is_found(tmp_path: Path) -> None:
    """A folder has no checksums of its own: the manifest's hashes tell."""
    write_archive(tmp_path / "a.fleet", MANIFEST, CONTENT)

    with pytest.raises(ArtifactRefused, match=r"library\.so in .* is not the file that was exported"):
        verify(open_package(tmp_path / "a.fleet"), MANIFEST)


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        (None, ConfigError, "cannot read the model"),
        (b"\x7fELF", ArtifactRefused, "is no exported model"),
    ],
)
def test_wrong_paths_and_wrong_files_have_specific_errors(
    content: bytes | None, error: type[Exception], words: str, tmp_path: Path
) -> None:
    """A wrong path and a wrong file have different errors."""
    path = tmp_path / "a.fleet"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(error, match=words):
        open_package(path)


def test_a_zip_of_something_else_is_refused(tmp_path: Path) -> None:
    """It has no manifest."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("notes.txt", "hello")

    with pytest.raises(ArtifactRefused, match=r"lacks manifest\.json"):
        read_manifest(open_package(tmp_path / "a.zip"))


@pytest.mark.parametrize("name", ["/etc/hostname", "../outside.so", "check/../../outside.so", "..", "", "a\0b"])
@pytest.mark.parametrize("field", ["library", "check"])
def test_a_file_outside_of_the_package_is_refused(name: str, field: str, tmp_path: Path) -> None:
    """A crafted model could load any library of the machine, or show any file as its stored output."""
    (tmp_path / "outside.so").write_bytes(b"theirs")
    changed = (
        replace(MANIFEST, library=name)
        if field == "library"
        else replace(MANIFEST, check=replace(MANIFEST.check, outputs=(name,)))
    )
    listed = replace(changed, files={**MANIFEST.files, name: FileFacts(sha256="", size_bytes=6)})
    write_archive(tmp_path / "a.fleet", listed, CONTENT)
    zipfile.ZipFile(tmp_path / "a.fleet").extractall(tmp_path / "a")

    for path in (tmp_path / "a.fleet", tmp_path / "a"):
        package = open_package(path)
        with pytest.raises(ArtifactRefused, match="which is not in it"):
            read_manifest(package)
        with pytest.raises(ArtifactRefused):
            read_file(package, name)
        with pytest.raises(ArtifactRefused), package.library_file(name):
            pass


def test_a_symbolic_link_out_of_a_folder_is_refused(tmp_path: Path) -> None:
    """Pipes are not opened either: reading one would block forever."""
    write_archive(tmp_path / "a.fleet", MANIFEST, CONTENT)
    zipfile.ZipFile(tmp_path / "a.fleet").extractall(tmp_path / "a")
    (tmp_path / "outside.so").write_bytes(b"theirs")
    library = tmp_path / "a" / "library.so"
    package = open_package(tmp_path / "a")

    library.unlink()
    library.symlink_to(tmp_path / "outside.so")
    with pytest.raises(ArtifactRefused, match="leads out of the folder"), package.library_file("library.so"):
        pass
    with pytest.raises(ArtifactRefused, match="leads out of the folder"):
        verify(package, MANIFEST)
    library.unlink()
    os.mkfifo(library)
    with pytest.raises(ArtifactRefused, match="is no file"):
        read_file(package, "library.so")


def test_a_file_that_the_manifest_does_not_list_is_refused(tmp_path: Path) -> None:
    """It would have no hash to compare with."""
    write_archive(tmp_path / "a.fleet", replace(MANIFEST, files={}), CONTENT)

    with pytest.raises(ArtifactRefused, match="lists no file"):
        read_manifest(open_package(tmp_path / "a.fleet"))


@pytest.mark.parametrize("content", [b"[" * 2**26, b"[]," * 2**24, b'"' + b"a" * 2**26], ids=["deep", "many", "long"])
@pytest.mark.parametrize("is_packed", [True, False], ids=["archive", "folder"])
def test_a_manifest_of_very_many_bytes_is_refused_before_it_is_parsed(
    content: bytes, is_packed: bool, tmp_path: Path
) -> None:
    """Before, 64 MiB compressed to 64 kB took 2.1 GiB as Python values."""
    path = tmp_path / "a"
    if is_packed:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("manifest.json", content)
    else:
        path.mkdir()
        (path / "manifest.json").write_bytes(content)

    tracemalloc.start()
    with pytest.raises(ArtifactRefused, match=r"unpacks to|has more than 1,048,576 bytes"):
        read_manifest(open_package(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 * 2**20


@pytest.mark.parametrize("shape", [(2**40, 2**40), (2**50,)])
def test_an_input_larger_than_the_memory_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ArtifactRefused, match="no memory for the input 'x'"):
        staged(TensorType(name="x", shape=shape, dtype="float32"), tvm_ffi.device("cpu", 0))


def test_a_negative_size_is_malformed() -> None:
    found = json.loads(format_manifest(MANIFEST))
    found["inputs"][0]["shape"] = [-5]

    with pytest.raises(ArtifactRefused, match="is malformed"):
        parse_manifest(json.dumps(found), where="it")


def test_a_stored_array_that_claims_more_than_it_has_is_refused(tmp_path: Path) -> None:
    """Its header claims 2^50 numbers."""
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(content, {"descr": "<f4", "fortran_order": False, "shape": (2**50,)})
    write_archive(tmp_path / "a.fleet", MANIFEST, {**CONTENT, "check/input0.npy": content.getvalue()})

    with pytest.raises(ArtifactRefused, match="is damaged"):
        stored_arrays(open_package(tmp_path / "a.fleet"), ["check/input0.npy"])


def test_a_model_for_another_machine_is_refused() -> None:
    """The check comes before its library is loaded, which would only report "wrong ELF class"."""
    with pytest.raises(ArtifactRefused, match=r"toy is exported for riscv64, this machine is"):
        check_here(replace(MANIFEST, machine="riscv64"), tvm_version="0.27.0")


def test_a_model_that_needs_features_of_another_cpu_is_refused() -> None:
    """An illegal instruction would end the process."""
    with pytest.raises(ArtifactRefused, match="CPU features that this machine lacks: avx2"):
        check_here(MANIFEST, tvm_version="0.27.0", flags=frozenset({"sse4_2"}))
    check_here(MANIFEST, tvm_version="0.27.0", flags=frozenset({"sse4_2", "avx2"}))
    check_here(MANIFEST, tvm_version="0.27.0", flags=frozenset())  # a system that does not report them


def test_a_model_of_another_tvm_is_refused() -> None:
    """The message names the version to install."""
    with pytest.raises(ArtifactRefused, match=r"pip install apache-tvm==0\.27\.0"):
        check_here(MANIFEST, tvm_version="0.28.0", flags=frozenset({"avx2"}))


def test_cpu_features_are_read_on_x86_and_arm(tmp_path: Path) -> None:
    """The line has different names on the two architectures."""
    for line in ("flags\t\t: fpu sse2", "Features\t: fpu sse2"):
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{line}\n\nprocessor\t: 1\n{line}\n")
        assert cpu_flags(tmp_path / "cpuinfo") == {"fpu", "sse2"}
    assert cpu_flags(tmp_path / "none") == frozenset()


def test_types_that_numpy_lacks_are_refused() -> None:
    """A model of bfloat16 is exported, and C runs it; in Python it was a BufferError of DLPack."""
    usual = ("bool", "int8", "uint16", "int32", "int64", "float16", "float32", "float64")
    check_types(TensorType(name="x", shape=(2,), dtype=dtype) for dtype in usual)

    with pytest.raises(ArtifactRefused, match="'y' is bfloat16, which numpy does not have"):
        check_types([TensorType(name="y", shape=(2,), dtype="bfloat16")])


def test_answers_agree_within_their_tolerance() -> None:
    """It is a share of the output's size, so that an element near zero may carry the rounding of its neighbours."""
    expected = np.array([100.0, 0.0, np.nan], np.float32)
    near = expected + np.array([1e-4, 1e-4, 0], np.float32)

    assert agree([near], [expected], [1e-5]).is_right
    assert "differs in 2 of 3" in agree([near], [expected], [1e-7]).problem
    assert not agree([np.array([100.0, 0.0, 0.0], np.float32)], [expected], [1e-5]).is_right
    assert "expected float32[3]" in agree([expected[:2]], [expected], [1.0]).problem
    assert "0 outputs where 1" in agree([], [expected], [1.0]).problem
    assert agree([np.array([1, 2])], [np.array([1, 2])], [0.0]).max_abs_error == 0
    assert not agree([np.array([1, 3])], [np.array([1, 2])], [0.0]).is_right
