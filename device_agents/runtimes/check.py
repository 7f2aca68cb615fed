"""Checks whether a GPU's runtime library loads, in a child process: the agent itself never loads it.

    python -m device_agents.runtimes.check LIBRARY ...

loads TVM's runtime and then these; it prints why it cannot and exits with 1.
"""

from __future__ import annotations

import asyncio
import ctypes
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from device_agents.machine.terminate import end

_TIMEOUT_SEC = 20.0


def tvm_library_folder() -> Path | None:
    """Return the folder of the installed TVM's libraries."""
    spec = find_spec("tvm")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / "lib"


async def why_not(libraries: Sequence[str], remedies: Mapping[str, str]) -> str:
    """Return why these libraries do not load, with a remedy; empty if they do.

    Args:
        remedies: by a part of a missing library's name.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__, *libraries),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        # Not wait_for: up to Python 3.11 it loses a cancellation that arrives together with the answer.
        async with asyncio.timeout(_TIMEOUT_SEC):
            output, _ = await process.communicate()
    except TimeoutError:
        return f"loading {', '.join(libraries)} took longer than {_TIMEOUT_SEC:g} s; look at the driver's log (dmesg)"
    finally:
        await end(process)
    if process.returncode == 0:
        return ""
    return explain(output.decode(errors="replace").strip(), remedies)


def explain(complaint: str, remedies: Mapping[str, str]) -> str:
    """Return a loader's error message with the remedy."""
    last = complaint.splitlines()[-1] if complaint else "it ended without a word"
    advice = next((text for part, text in remedies.items() if part in last), "")
    return f"TVM's runtime for it does not load: {last}" + (f"; {advice}" if advice else "")


def main(libraries: Sequence[str]) -> int:
    """Load the libraries in the same way as a worker."""
    from device_agents.runtimes.tvm import preload

    try:
        preload()
        for library in libraries:
            ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
    except (OSError, RuntimeError) as error:
        sys.stdout.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
