"""Generated code is fresh, no number on the wire changes its meaning, and every rpc and field is explained."""

from __future__ import annotations

import importlib.util
import itertools
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorSet

ROOT = Path(__file__).parents[2]
PROTOS = sorted((ROOT / "protos/fleet/v1").glob("*.proto"))


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "protos/generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def agreed(generate: ModuleType) -> FileDescriptorSet:
    """The protocol that peers in use may speak."""
    found: FileDescriptorSet = generate.read_descriptors(ROOT / generate.GOLDEN)
    return found


def test_generated_files_are_fresh(generate: ModuleType, tmp_path: Path) -> None:
    """Messages, stubs and the committed descriptors equal the output of protos/generate.py."""
    generate.generate(tmp_path)

    assert generate.stale_files(tmp_path, ROOT) == []


def test_no_number_changes_its_meaning(generate: ModuleType, agreed: FileDescriptorSet, tmp_path: Path) -> None:
    """A peer built from the committed descriptors reads messages of today's protos."""
    generate.generate(tmp_path)

    assert generate.broken_promises(agreed, generate.read_descriptors(tmp_path / generate.GOLDEN)) == []
    assert any(message.name == "Lease" for file in agreed.file for message in file.message_type)


def lease_of(descriptors: FileDescriptorSet) -> DescriptorProto:
    return next(m for file in descriptors.file for m in file.message_type if m.name == "Lease")


def retype(descriptors: FileDescriptorSet) -> None:
    lease_of(descriptors).field[2].type = FieldDescriptorProto.TYPE_STRING


def rename(descriptors: FileDescriptorSet) -> None:
    lease_of(descriptors).field[2].name = "era"


def drop_field(descriptors: FileDescriptorSet) -> None:
    del lease_of(descriptors).field[2]


def drop_message(descriptors: FileDescriptorSet) -> None:
    lease_of(descriptors).name = "Tenure"


def drop_enum_value(descriptors: FileDescriptorSet) -> None:
    del next(file for file in descriptors.file if file.name == "fleet/v1/job.proto").enum_type[0].value[1]


def drop_rpc(descriptors: FileDescriptorSet) -> None:
    del next(file for file in descriptors.file if file.service).service[0].method[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (retype, "Lease.epoch = 3 changed its name or type"),
        (rename, "Lease.epoch = 3 changed its name or type"),
        (drop_field, "Lease.epoch = 3 is gone, and its number is not reserved"),
        (drop_message, "message Lease is gone"),
        (drop_enum_value, "JOB_STATE_RUNNING = 1 of JobState is gone or means something else"),
        (drop_rpc, "rpc AgentService.Attach is gone or changed"),
    ],
)
def test_incompatible_changes_are_reported_by_field(
    generate: ModuleType, agreed: FileDescriptorSet, change: Callable[[FileDescriptorSet], None], said: str
) -> None:
    """Each incompatible change is refused with the name of the broken field."""
    changed = FileDescriptorSet.FromString(agreed.SerializeToString())
    change(changed)

    assert said in generate.broken_promises(agreed, changed)


def test_a_reserved_number_is_never_used_again(generate: ModuleType, agreed: FileDescriptorSet) -> None:
    """A field may be removed if its number is reserved; a later use of the number is refused."""
    without = FileDescriptorSet.FromString(agreed.SerializeToString())
    drop_field(without)
    lease_of(without).reserved_range.add(start=3, end=4)
    assert generate.broken_promises(agreed, without) == []

    assert generate.broken_promises(without, agreed) == ["Lease.epoch reuses the reserved number 3"]


def test_additions_are_compatible(generate: ModuleType, agreed: FileDescriptorSet) -> None:
    """A new field is no reason to refuse anything: older peers skip it."""
    grown = FileDescriptorSet.FromString(agreed.SerializeToString())
    lease_of(grown).field.add(name="colour", number=99, type=FieldDescriptorProto.TYPE_STRING)

    assert generate.broken_promises(agreed, grown) == []


def test_the_runtime_is_at_least_as_new_as_the_generator() -> None:
    """The lower bound of protobuf in pyproject.toml is the version that the generated code demands."""
    gencode = re.search(r"Protobuf Python Version: (\S+)", (ROOT / "fleet/v1/device_pb2.py").read_text())
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]

    assert gencode is not None
    assert f"protobuf>={gencode[1]}" in dependencies


@pytest.mark.parametrize("path", PROTOS, ids=lambda path: path.name)
def test_every_figure_is_explained(path: Path) -> None:
    """A comment stands above every message, enum, service, rpc, field and value."""
    lines = [line.strip() for line in path.read_text().splitlines()]
    declares = re.compile(r"(message|enum|service|rpc|oneof) \w+|.* = \d+;$")

    bare = [
        line
        for above, line in itertools.pairwise(lines)
        if declares.match(line) and not line.startswith("//") and not above.startswith("//")
    ]

    assert bare == []
