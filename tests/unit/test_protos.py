"""Generated messages are fresh, the pins fit, and every rpc and field is explained."""

from __future__ import annotations

import importlib.util
import itertools
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROTOS = sorted((ROOT / "protos/fleet/v1").glob("*.proto"))


def test_generated_messages_are_fresh(tmp_path: Path) -> None:
    """fleet/v1 is what protos/generate.py writes today."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "protos/generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)

    generate.generate(tmp_path)

    assert generate.stale_files(tmp_path / "fleet/v1", ROOT / "fleet/v1") == []


def test_the_runtime_is_at_least_as_new_as_the_generator() -> None:
    """The lower bound of protobuf in pyproject.toml is the version that the generated code demands."""
    gencode = re.search(r"Protobuf Python Version: (\S+)", (ROOT / "fleet/v1/device_pb2.py").read_text())
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]

    assert gencode is not None
    assert f"protobuf>={gencode[1]}" in dependencies


@pytest.mark.parametrize("path", PROTOS, ids=lambda path: path.name)
def test_everything_is_explained(path: Path) -> None:
    """A comment stands above every message, enum, service, rpc, field and value."""
    lines = [line.strip() for line in path.read_text().splitlines()]
    declares = re.compile(r"(message|enum|service|rpc|oneof) \w+|.* = \d+;$")

    bare = [
        line
        for above, line in itertools.pairwise(lines)
        if declares.match(line) and not line.startswith("//") and not above.startswith("//")
    ]

    assert bare == []
