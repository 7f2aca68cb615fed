"""Archives of object files that stock clients upload."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from device_agents.runtimes.rpc_session import unpack_objects


def add(archive: tarfile.TarFile, name: str, content: bytes = b"", **facts: object) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    for key, value in facts.items():
        setattr(member, key, value)
    archive.addfile(member, io.BytesIO(content))


def test_only_object_files_are_unpacked_and_none_leaves_its_folder(tmp_path: Path) -> None:
    """Links, devices and other files are left out; a second upload of the same name replaces the first."""
    path = tmp_path / "program.tar"
    with tarfile.open(path, "w") as archive:
        add(archive, "lib0.o", b"first")
        add(archive, "../outside.o", b"second")
        add(archive, str(tmp_path / "absolute.o"), b"third")
        add(archive, "link.o", type=tarfile.SYMTYPE, linkname="/etc/passwd")
        add(archive, "pipe.o", type=tarfile.FIFOTYPE)
        add(archive, "notes.txt", b"no object")

    for _ in range(2):
        found = unpack_objects(path, tmp_path / "objects")
        assert [one.read_bytes() for one in found] == [b"first", b"second", b"third"]
        assert sorted(tmp_path.rglob("*.*")) == sorted([path, *found])
