"""Contents of bundles, as far as they need no download."""

from __future__ import annotations

import errno
import json
import lzma
import os
import re
import tarfile
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from cross.bundle import archive as bundle
from cross.bundle import wheels as bundle_wheels
from cross.bundle.code import code_files
from cross.bundle.wheels import Userland, kept_files, needed_libc, requirements
from cross.targets.boards import load_boards
from fleet.domain.tvm_versions import KNOWN_PAIRS
from fleet.errors import ConfigError

_ROOT = Path(__file__).parents[2]


def test_two_bundles_of_the_same_input_are_the_same_bytes(tmp_path: Path) -> None:
    """The order of the files, the packing user and the time make no difference."""
    files = {"run": b"#!/bin/sh\n", "lib/b.py": b"b = 1\n", "lib/a/__init__.py": b"", "lib/a/x.so": b"\x7fELF"}

    bundle.pack(files, tmp_path / "one.tar.xz")
    bundle.pack(dict(reversed(files.items())), tmp_path / "two.tar.xz")

    assert (tmp_path / "one.tar.xz").read_bytes() == (tmp_path / "two.tar.xz").read_bytes()


def test_an_unpacked_bundle_can_be_started(tmp_path: Path) -> None:
    """Folders come before their contents, the script is executable, and all files belong to root."""
    bundle.pack({"run": b"#!/bin/sh\n", "lib/a/b.py": b""}, tmp_path / "made.tar.xz")

    with tarfile.open(tmp_path / "made.tar.xz") as archive:
        members = {member.name: member for member in archive.getmembers()}

    assert list(members)[:3] == ["fleet-agent", "fleet-agent/lib", "fleet-agent/lib/a"]
    assert members["fleet-agent/run"].mode == 0o755
    assert {(member.uid, member.gid, member.uname) for member in members.values()} == {(0, 0, "")}


@pytest.mark.slow
def test_our_code_is_all_that_an_agent_imports_and_no_more() -> None:
    """Imports inside functions and board descriptions are included; compiler and command line are not."""
    files = code_files()

    for wanted in (
        "device_agents/__main__.py",
        "device_agents/workers/warm.py",
        "fleet/__init__.py",
        "fleet/wire/rpc.py",
        "fleet/v1/__init__.py",
        "fleet/v1/session_service_pb2.py",
        "fleet/wire/discovery.py",
        "cross/targets/boards.py",
        "cross/targets/board_files/raspberry_pi.yaml",
    ):
        assert wanted in files
    assert not [
        name for name in files if name.startswith(("fleet/cli/", "fleet/client/", "fleet/optimizer/", "fleet/library/"))
    ]
    assert "cross/compile/library.py" not in files
    assert "fleet/testing/__init__.py" not in files
    assert sum(map(len, files.values())) < 3_000_000


@pytest.mark.slow
def test_dynamically_loaded_modules_and_data_are_bundled() -> None:
    """Runtimes and drivers are named in strings, which no search for imports finds; packages also contain data."""
    files = code_files()

    texts = "\n".join(content.decode() for name, content in files.items() if name.startswith("device_agents/drivers/"))
    named = {name.replace(".", "/") for name in re.findall(r'"(device_agents\.runtimes\.[\w.]+)[:"]', texts)}
    assert len(named) >= 7
    assert {f"{name}.py" for name in named} <= set(files)
    patterns = tomllib.loads((_ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    packed = [("device_agents", each) for each in patterns["device_agents"]] + [("cross", "targets/board_files/*.yaml")]
    for package, pattern in packed:
        shipped = {path.relative_to(_ROOT).as_posix() for path in (_ROOT / package).glob(pattern)}
        assert shipped, pattern
        assert shipped <= set(files), pattern


def test_a_board_without_wheels_takes_packages_from_its_system() -> None:
    """A bundle for 32-bit ARM contains only pure Python packages."""
    names = {each.partition("==")[0] for each in requirements(Userland(machine="armv7l"))}

    assert names == {"protobuf", "typing_extensions"}


def test_the_versions_are_the_tested_ones() -> None:
    """The exact pair of TVM and tvm-ffi; numpy only when asked for."""
    wanted = requirements(Userland(machine="aarch64"))
    tvm, ffi = list(KNOWN_PAIRS.items())[-1]

    assert {f"apache-tvm=={tvm}", f"apache-tvm-ffi=={ffi}"} <= set(wanted)
    assert not [each for each in wanted if each.startswith("numpy")]
    assert [each for each in requirements(Userland(machine="aarch64"), ["numpy"]) if each.startswith("numpy==")]
    with pytest.raises(ConfigError, match="nosuch is not installed here"):
        requirements(Userland(machine="aarch64"), ["nosuch"])


def test_a_platform_takes_every_older_libc() -> None:
    """pip needs a tag for each of them."""
    tags = Userland(machine="aarch64", libc="2.19").tags

    assert tags == [
        "manylinux_2_19_aarch64",
        "manylinux_2_18_aarch64",
        "manylinux_2_17_aarch64",
        "manylinux2014_aarch64",
    ]


def test_the_bundle_requires_the_newest_libc_of_its_wheels() -> None:
    """A wheel with several libc versions needs the oldest of them."""
    wheels = [
        Path("grpcio-1.85.1-cp311-cp311-manylinux2014_aarch64.manylinux_2_17_aarch64.whl"),
        Path("apache_tvm_ffi-0.1.14-cp311-cp311-manylinux_2_24_aarch64.manylinux_2_28_aarch64.whl"),
        Path("ifaddr-0.2.0-py3-none-any.whl"),
    ]

    assert needed_libc(wheels) == "2.24"


def test_of_tvm_only_the_runtime_is_kept(tmp_path: Path) -> None:
    """The compiler is 95 of its 100 MB."""
    wheel = tmp_path / "apache_tvm-0.27.0.post1-py3-none-manylinux_2_28_aarch64.whl"
    inside = ("tvm/__init__.py", "tvm/lib/libtvm_compiler.so", "tvm/lib/libtvm_runtime.so")
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in (*inside, "apache_tvm-0.27.0.post1.dist-info/METADATA", "apache_tvm-0.27.0.post1.dist-info/RECORD"):
            archive.writestr(name, "x")

    kept = [name for name, _ in kept_files(wheel)]

    assert kept == ["apache_tvm-0.27.0.post1.dist-info/METADATA", "tvm/lib/libtvm_runtime.so"]


@pytest.mark.parametrize(
    ("board", "options", "said"),
    [
        ("rpi4-65", {}, "did you mean 'rpi4-64'"),
        ("rpi4-64", {"python": "3.10"}, "the agent needs Python 3.11 or newer"),
        ("rpi4-64", {"python": "three"}, "expected a version with two numbers"),
        ("rpi4-64", {"libc": "2"}, "--libc 2: expected a version with two numbers"),
    ],
)
def test_a_bundle_that_cannot_be_is_refused(board: str, options: dict[str, str], said: str) -> None:
    """The refusal comes before any download."""
    with pytest.raises(ConfigError, match=said):
        bundle.spec_for(board, **options)


def test_every_board_that_is_listed_has_a_userland() -> None:
    """Its C library and machine are those of the board's description."""
    listed = [name for name, board in load_boards().items() if board.arch in bundle.MACHINES and "glibc" in board.libc]

    userlands = [bundle.spec_for(name).userland for name in listed]

    assert userlands
    assert {userland.machine for userland in userlands} <= set(bundle.MACHINES)
    assert all(int(userland.libc.split(".")[1]) >= 17 for userland in userlands)


@pytest.mark.slow
def test_a_full_disk_is_one_sentence_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file is left at the archive's destination."""
    monkeypatch.setenv("FLEET_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(bundle, "fetch", lambda *_: [])

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(lzma.LZMAFile, "write", full)

    with pytest.raises(ConfigError, match=r"no space for the bundle in .*: No space left on device; free 300 MB there"):
        bundle.make_bundle(bundle.spec_for("x86_64"), lambda _: None)

    assert list((tmp_path / "cache/bundles").iterdir()) == []


def test_an_archive_that_does_not_fit_is_refused_before_it_is_written(tmp_path: Path) -> None:
    """The message has the needed and the free space."""
    path = tmp_path / "made.tar.xz"
    path.write_bytes(b"x")
    made = bundle.Bundle(
        path=path, digest="sha256:0", userland=Userland(machine="aarch64"), size_bytes=10**18, unpacked_bytes=10**18
    )

    with pytest.raises(ConfigError, match="takes 1000000000000 MB and"):
        bundle.save(made, tmp_path / "agent.tar.xz")

    assert [each.name for each in tmp_path.iterdir()] == ["made.tar.xz"]


def test_a_bundle_describes_its_target() -> None:
    """The bundle's description has the facts that the start script checks and a second deployment compares."""
    content = json.loads(bundle.describe(bundle.spec_for("rpi2-32"), [], "abc"))

    assert (content["machine"], content["python"], content["digest"]) == ("armv7l", "3.11", "sha256:abc")
    assert content["from_system"]["grpc"] == "python3-grpcio"


def test_a_wheel_that_reaches_out_of_its_folder_is_refused(tmp_path: Path) -> None:
    """A wheel with paths outside its folder would overwrite files of the deploying account on the board."""
    wheel = tmp_path / "bad-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("bad/../../../.profile", "echo here")

    with pytest.raises(ConfigError, match=r"bad-1\.0-py3-none-any\.whl holds 'bad/\.\./"):
        list(kept_files(wheel))


def made_here(_: Userland, wanted: Sequence[str], folder: Path) -> None:
    for name in wanted:
        (folder / f"{name}-1.0.whl").touch()


def test_leftovers_of_killed_downloads_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leftovers of killed downloads are removed; downloads that may still be running stay."""
    monkeypatch.setenv("FLEET_CACHE_DIR", str(tmp_path))
    for name in ("download-old", "download-old-ready", "download-now", "aarch64-kept"):
        (tmp_path / "wheels" / name).mkdir(parents=True)
        if "old" in name:
            os.utime(tmp_path / "wheels" / name, (0, 0))

    (wheel,) = bundle_wheels.fetch(Userland(machine="aarch64"), ["some"], lambda _: None, download=made_here)

    assert wheel.name == "some-1.0.whl"
    assert sorted(path.name for path in (tmp_path / "wheels").iterdir()) == sorted(
        ["aarch64-kept", "download-now", wheel.parent.name]
    )
