"""Flags of a C compiler for a program with an exported model.

    cc app.c $(python -m fleet.runtime.c_flags) -o app

It prints our own source, `fleet/runtime/c/fleet_runtime.c`, and where TVM's headers and libraries are installed. For a
board without Python, copy these files there and name their folders instead.
"""

from __future__ import annotations

import importlib.util
import shlex
import sys
from pathlib import Path

from fleet.errors import ConfigError, FleetError
from fleet.runtime.tvm_library import EXTRA, library_folder


def c_flags() -> list[str]:
    """Return the compiler's arguments.

    Raises:
        ConfigError: TVM or tvm_ffi is not installed here.
    """
    own = Path(__file__).with_name("c")
    spec = importlib.util.find_spec("tvm_ffi")
    ffi = next(map(Path, (spec.submodule_search_locations or ()) if spec else ()), None)
    if ffi is None:
        raise ConfigError("tvm_ffi is not installed here: pip install apache-tvm-ffi")
    folders = [library_folder(), ffi / "lib"]
    return [
        *(f"-I{folder}" for folder in (own, ffi / "include")),
        str(own / "fleet_runtime.c"),
        *(f"-L{folder}" for folder in folders),
        *(f"-Wl,-rpath,{folder}" for folder in folders),
        "-Wl,--no-as-needed",  # the runtime registers its functions when it is loaded; no symbol of it is referenced
        *(["-ltvm_runtime_extra"] if (folders[0] / EXTRA).exists() else []),
        "-ltvm_runtime",
        "-ltvm_ffi",
    ]


def main() -> int:
    """Print the flags; return the exit code."""
    try:
        print(shlex.join(c_flags()))  # noqa: T201 - its output is what it is for
    except FleetError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
