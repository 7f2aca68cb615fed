"""Single programs, found by a user's text for them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fleet.errors import ConfigError, FleetError, InvalidRequest
from fleet.workloads.sources import find_program, is_program, program_file

_PYTHON = """
from tvm import te

def product(n=8):
    a, b = te.placeholder((n, n), name="A"), te.placeholder((n, n), name="B")
    k = te.reduce_axis((0, n), name="k")
    return te.create_prim_func([a, b, te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")])

made = product(16)

def broken():
    raise RuntimeError("no such luck")

number = 3
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLEET_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "programs_of_mine.py").write_text(_PYTHON)
    return tmp_path


@pytest.mark.parametrize("source", ["matmul-64", "matmul-64-float16", "a.json", "pack.module:name", "sub/file.py:name"])
def test_a_program_reference_is_recognised_by_its_form(source: str) -> None:
    """The program does not have to exist."""
    assert is_program(source)


@pytest.mark.parametrize("source", ["model.onnx", "model.onnx:conv1", "net.pt2:add", "matmul", "matmul-x", "folder/"])
def test_models_and_their_operators_are_no_programs(source: str) -> None:
    """A colon after a model's name is an operator's."""
    assert not is_program(source)


@pytest.mark.parametrize("source", ["programs_of_mine:product", "programs_of_mine.py:product", "programs_of_mine:made"])
def test_a_name_in_python_is_found_in_the_current_folder(here: Path, source: str) -> None:
    """A function that makes a program is called; a program is taken as it is."""
    workload = find_program(source)

    assert workload.name == source.rpartition(":")[2]
    assert workload.flop > 0


def test_a_program_survives_its_file(here: Path) -> None:
    """A program made in Python and its copy from the file are one workload and share their records."""
    path = program_file("programs_of_mine:product")

    assert path.name == "product.json"
    assert find_program(str(path)).shash == find_program("programs_of_mine:product").shash
    assert program_file(str(path)) == path


def test_a_cache_that_cannot_be_written_is_reported(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error comes with a remedy."""
    monkeypatch.setenv("FLEET_CACHE_DIR", "/proc/nowhere")

    with pytest.raises(ConfigError, match=r"cannot write /proc/nowhere.*FLEET_CACHE_DIR"):
        program_file("programs_of_mine:product")


@pytest.mark.parametrize(
    ("source", "kind", "message"),
    [
        ("matmul-0", ConfigError, "SIZE goes from 1"),
        ("matmul-8-float3", ConfigError, "there is no type float3"),
        ("nowhere.json", ConfigError, "cannot read nowhere.json"),
        ("nowhere.py:x", ConfigError, "cannot import nowhere.py"),
        ("no_module_of_this_name:x", ConfigError, "cannot import no_module_of_this_name"),
        ("programs_of_mine:nothing", ConfigError, "programs_of_mine has no 'nothing'"),
        ("programs_of_mine:broken", InvalidRequest, "broken() failed: RuntimeError: no such luck"),
        ("programs_of_mine:number", InvalidRequest, "is a int, not a PrimFunc or an IRModule"),
    ],
)
def test_an_invalid_program_is_refused_with_its_text(
    here: Path, source: str, kind: type[FleetError], message: str
) -> None:
    """The message contains the user's text."""
    with pytest.raises(kind, match=re.escape(message)):
        find_program(source)


@pytest.mark.parametrize("content", ["", "{}", "no json", '{"nodes": []}', "\x00"])
def test_a_file_that_holds_no_program_is_refused(here: Path, content: str) -> None:
    """The error names the file for every kind of content."""
    (here / "odd.json").write_text(content)

    with pytest.raises(InvalidRequest, match=r"odd\.json"):
        find_program("odd.json")
