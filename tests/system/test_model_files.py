"""Commands that take a model, with unusable files and folders: one line, before anything is started."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fleet.cli.main import app
from fleet.errors import FleetError
from fleet.library import Library
from fleet.local.children import Child, ChildSpec


def refused(*words: str) -> str:
    """Run a command that must be refused, and return its output."""
    done = CliRunner().invoke(app, words)
    assert done.exit_code in (1, 2), done.output
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.output


@contextmanager
def mounted(place: Path, options: str) -> Iterator[Path]:
    """Mount a small file system of its own."""
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], check=False).returncode:
        pytest.skip("nothing may be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A folder where even root cannot write."""
    with mounted(tmp_path / "read-only", "ro") as place:
        yield place


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A folder with room for a name, and no more."""
    with mounted(tmp_path / "full", "size=4k") as place:
        yield place


@pytest.mark.parametrize("command", ["build", "explain", "export", "profile", "tune"])
def test_a_model_that_is_none(command: str, tmp_path: Path) -> None:
    """Errors distinguish a missing file from a folder; no tracker or agent is started for either."""
    (tmp_path / "a.onnx").mkdir()

    assert "missing.onnx" in refused(command, str(tmp_path / "missing.onnx"))
    said = refused(command, str(tmp_path / "a.onnx"))
    assert "a.onnx is a folder" in said or "a.onnx: Is a directory" in said
    assert "starting" not in said


@pytest.mark.parametrize("command", ["build", "explain", "profile"])
def test_a_model_that_is_cut_short(command: str, two_products: Path, tmp_path: Path) -> None:
    """The parser's error is one line, before a device is leased or a fleet started."""
    (tmp_path / "cut.onnx").write_bytes(two_products.read_bytes()[:-9])

    said = refused(command, str(tmp_path / "cut.onnx"))

    assert "cut.onnx is no ONNX model" in said
    assert "starting" not in said


def test_an_exported_model_that_is_none(tmp_path: Path) -> None:
    """Found before a device is leased for it."""
    (tmp_path / "cut.fleet").write_bytes(b"PK\x03\x04")

    assert "No such file" in refused("serve-check", str(tmp_path / "missing.fleet"))
    assert "lacks manifest.json" in refused("serve-check", str(tmp_path))
    found = refused("serve-check", str(tmp_path / "cut.fleet"))
    assert "no exported model, or cut short" in found
    assert "starting" not in found


@pytest.mark.parametrize("command", ["build", "export"])
def test_an_unwritable_folder(command: str, two_products: Path, read_only: Path) -> None:
    """The error comes before the model is compiled, not after."""
    said = refused(command, str(two_products), "-o", str(read_only / "it"))

    assert f"cannot write {read_only / 'it'}: {read_only} is read-only, or not yours" in " ".join(said.split())


def test_a_library_that_may_only_be_read(two_products: Path, tmp_path: Path) -> None:
    """A read-only library is refused before the model is imported, since no result could be stored."""
    with mounted(tmp_path / "lab", "size=4m") as place:
        Library.open(place / "library.sqlite").close()
        subprocess.run(["mount", "-o", "remount,ro", place], check=True)

        said = refused("tune", str(two_products), "--library", str(place / "library.sqlite"))

    assert "library.sqlite is read-only" in said
    assert "starting" not in said


async def test_a_child_with_an_empty_log_reports_the_full_disk(full: Path) -> None:
    """With an empty log, the full disk is the only reason to report."""
    spec = ChildSpec(name="tracker", command=("false",), log_path=full / "log")

    with pytest.raises(FleetError, match="full has no room left"):
        await Child(spec).start()


def test_a_library_on_a_full_disk(full: Path) -> None:
    """The full disk is reported before the search, by the library's name."""
    said = refused("tune", "matmul-8", "--trials", "1", "--library", str(full / "library.sqlite"))

    (line,) = said.splitlines()
    assert line.startswith("error: no space left for the library sqlite:///")
    assert line.endswith("/library.sqlite; free some, or name another --library")
