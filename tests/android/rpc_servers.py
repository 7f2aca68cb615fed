"""TVM RPC servers as real processes: ours in C++, built once, and the one of TVM's Python package."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from tests.emulated.cache import cache_dir, locked

_SOURCE = Path(__file__).with_name("tvm_rpc_server.cc")
_START_SEC = 30.0


@dataclass
class RpcServer:
    """One server process."""

    process: subprocess.Popen[bytes]
    address: str
    log: Path


def library_folders() -> list[Path]:
    """Folders of libtvm_ffi and libtvm_runtime in the wheels."""
    return [Path(find_spec(name).submodule_search_locations[0]) / "lib" for name in ("tvm_ffi", "tvm")]  # type: ignore[union-attr,index]


def build_server() -> Path:
    """Return the program `tvm_rpc` for this machine, built if it is missing."""
    compiler = shutil.which("g++")
    assert compiler, "g++ is missing: apt-get install g++"
    key = hashlib.sha256(_SOURCE.read_bytes() + version("apache-tvm").encode() + version("apache-tvm-ffi").encode())
    folder = cache_dir() / f"tvm-rpc-{key.hexdigest()[:12]}"
    program = folder / "tvm_rpc"
    with locked("tvm-rpc"):
        if not program.exists():
            folder.mkdir(exist_ok=True)
            ffi, runtime = library_folders()
            fresh = folder / f"tvm_rpc.{os.getpid()}"
            subprocess.run(
                [
                    *(compiler, "-std=c++17", "-O1", "-o", str(fresh), str(_SOURCE), f"-I{ffi.parent / 'include'}"),
                    *(f"-L{ffi}", f"-L{runtime}", "-Wl,--no-as-needed"),
                    *("-ltvm_ffi", "-ltvm_runtime", "-ltvm_runtime_extra", "-ldl", "-lpthread"),
                ],
                check=True,
                timeout=100,
            )
            fresh.rename(program)
    return program


def library_path() -> str:
    """The LD_LIBRARY_PATH that `tvm_rpc` needs to start."""
    return ":".join(str(folder) for folder in library_folders())


@contextmanager
def serve_rpc(kind: str, folder: Path, *, key: str = "board", port: int = 0, tracker: str = "") -> Iterator[RpcServer]:
    """Run a server of a kind, "cpp" or "python", until the end of the block.

    Args:
        tracker: address where it registers; empty: nowhere.
    """
    folder.mkdir(parents=True, exist_ok=True)
    first = port or 20000 + os.getpid() % 20000
    ports = ("--host=127.0.0.1", f"--port={first}", f"--port-end={first + (1 if port else 200)}")
    program = [str(build_server()), "server"] if kind == "cpp" else [sys.executable, "-m", "tvm.exec.rpc_server"]
    log = folder / f"{kind}.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*program, *ports, f"--key={key}", *((f"--tracker={tracker}",) if tracker else ())],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "LD_LIBRARY_PATH": library_path()},
            start_new_session=True,
        )
    try:
        yield RpcServer(process, f"127.0.0.1:{_bound_port(process, log)}", log)
    finally:
        kill_group(process)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """End a server and the sessions that it forked."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    process.wait(10)


def _bound_port(process: subprocess.Popen[bytes], log: Path) -> int:
    deadline = time.monotonic() + _START_SEC
    while time.monotonic() < deadline:
        if found := re.findall(r"bind to 127\.0\.0\.1:(\d+)", log.read_text(errors="replace"), re.IGNORECASE):
            return int(found[-1])
        assert process.poll() is None, log.read_text(errors="replace")
        time.sleep(0.02)
    raise AssertionError(f"the server did not start: {log.read_text(errors='replace')}")
