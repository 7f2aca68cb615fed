"""Serves one session of TVM's RPC protocol with TVM's own server loop, without the package `tvm`.

The loop is in the runtime library. It lacks two functions that TVM's Python server defines: one that places uploaded
files, and one that loads them. The files are in the worker's directory, which its jail keeps it in.
"""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tvm_ffi

_LINK_SEC = 60.0
_LINKED = (".o", ".tar")
"""Suffixes of uploads that a compiler links first, as MetaSchedule's builder exports them by default."""


def serve(connection_fd: int) -> None:
    """Serve one session on a connected socket, after its greeting, and close it. Return when the client does."""
    import tvm_ffi

    tvm_ffi.register_global_func("tvm.rpc.server.workpath", _path, override=True)
    tvm_ffi.register_global_func("tvm.rpc.server.load_module", _load, override=True)
    tvm_ffi.get_global_func("rpc.ServerLoop")(connection_fd)


def _path(name: str) -> str:
    return str(Path.cwd() / name)


def _load(name: str) -> tvm_ffi.Module:
    """Load an uploaded file.

    Raises:
        RuntimeError: it has to be linked, and that failed.
    """
    import tvm_ffi

    path = Path(_path(name))
    return tvm_ffi.load_module(str(_link(path) if path.suffix in _LINKED else path))


def _link(path: Path) -> Path:
    """Link an object file, or those in an archive, to a shared library beside it."""
    objects, library = [path], path.with_name(f"{path.name}.so")
    if path.suffix == ".tar":
        objects = unpack_objects(path, path.with_name(f"{path.name}.objects"))
    command = ["cc", "-shared", "-fPIC", "-o", str(library), *map(str, objects)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_LINK_SEC)
    except FileNotFoundError:
        raise RuntimeError(f"{path.name} has to be linked, and this board has no C compiler; upload a .so") from None
    except subprocess.CalledProcessError as error:
        raise RuntimeError(f"cannot link {path.name}: {error.stderr.strip()}") from None
    return library


def unpack_objects(archive: Path, folder: Path) -> list[Path]:
    """Write the object files of an archive to a folder, and return them.

    They are named by number: their names in the archive may lead out of the folder.
    """
    folder.mkdir(exist_ok=True)
    found: list[Path] = []
    with tarfile.open(archive) as opened:
        for member in opened:
            content = opened.extractfile(member) if member.isfile() and member.name.endswith(".o") else None
            if content is not None:
                found.append(folder / f"{len(found)}.o")
                with found[-1].open("wb") as file:
                    shutil.copyfileobj(content, file)
    return found
