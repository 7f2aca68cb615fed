"""Artifacts are named by their contents, and refused on machines that cannot run them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fleet.artifacts.artifact import Artifact, check_architecture, check_complete, elf_machine
from fleet.domain.measuring import ModuleKind, TensorSpec
from fleet.errors import ArtifactRefused


def test_facts_survive_beside_the_file(tmp_path: Path) -> None:
    """Saved facts of an artifact are found again with its file."""
    path = tmp_path / "lib.so"
    path.write_bytes(b"content")
    args = (TensorSpec((2, 3), "float32"), TensorSpec((3,), "int8", is_output=True))
    artifact = Artifact.of_file(path, args=args, target_json="{}", module_kind=ModuleKind.RELAX_VM, linker="gcc")

    artifact.save_facts()

    assert artifact == Artifact.of_file(path)
    assert artifact.digest.startswith("sha256:ed7002b439e9ac84")


def test_the_machine_is_read_from_the_header() -> None:
    """This interpreter is an ELF file of this machine; a text has no machine."""
    assert elf_machine(Path(sys.executable).read_bytes()[:20]) in ("x86_64", "aarch64")
    assert elf_machine(b"#!/bin/sh and some more text") is None
    assert elf_machine(b"") is None


def test_an_artifact_for_another_machine_is_refused() -> None:
    """Both architectures are named."""
    header = bytearray(Path(sys.executable).read_bytes()[:20])
    header[18:20] = (40).to_bytes(2, "little")

    with pytest.raises(ArtifactRefused, match="built for armv7l, devices/pc is x86_64"):
        check_architecture(bytes(header), "x86_64", device_name="devices/pc")
    with pytest.raises(ArtifactRefused, match="no ELF shared library"):
        check_architecture(b"text, not a library at all", "x86_64", device_name="devices/pc")
    check_architecture(bytes(header), "armv7l", device_name="devices/pi")


def test_a_library_that_was_cut_short_is_refused() -> None:
    """The header has the positions of its tables. Before, loading a truncated library ended the process by SIGBUS."""
    content = Path(sys.executable).read_bytes()

    check_complete(content[:64], len(content))
    with pytest.raises(ArtifactRefused, match=rf"truncated: {len(content) // 2} of \d+ bytes"):
        check_complete(content[:64], len(content) // 2)
    check_complete(b"text", 4)
