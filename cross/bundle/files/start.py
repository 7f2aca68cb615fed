"""Checks that this machine fits the bundle, then runs the agent in this process.

Nothing here needs a newer Python than 3.6, so that a machine with an old one gets a sentence instead of a traceback.
"""

import importlib.util
import json
import os
import platform
import re
import runpy
import struct
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIBRARY = str(HERE / "lib")


def main() -> int:
    """Run the agent with the options given; return its exit code."""
    bundle = json.loads((HERE / "bundle.json").read_text())
    problem = find_problem(bundle)
    if problem:
        sys.stderr.write(f"error: {problem}\n")
        return 2
    options = sys.argv[1:]
    if options == ["--check"]:
        sys.stdout.write(f"this machine can run the bundle for {bundle['board']}\n")
        return 0
    sys.path[0] = LIBRARY
    # The agent's child processes read this variable.
    os.environ["PYTHONPATH"] = LIBRARY
    if not {"--tracker", "--config", "-h", "--help"}.intersection(options):
        options += discovered()
    # Set by the script that deploys the bundle. Older bundles ignore it, so that they can be started again.
    ready_file = os.environ.pop("AGENT_READY_FILE", None)
    if ready_file:
        options += ["--ready-file", ready_file]
    sys.argv = ["fleet-agent", *options]
    runpy.run_module("device_agents", run_name="__main__", alter_sys=True)
    return 0


def find_problem(bundle: dict) -> str:  # type: ignore[type-arg]
    """Return why this machine cannot run the bundle, in a sentence; empty when it can."""
    machine = userland()
    if machine != bundle["machine"]:
        return (
            f"this bundle is for {bundle['machine']} ({bundle['board']}), and this is {machine}; "
            f"make one with: fleet agent bundle --board {machine}"
        )
    here = "{}.{}".format(*sys.version_info[:2])
    if here != bundle["python"]:
        return (
            f"this bundle is for Python {bundle['python']}, and {sys.executable} is {here}; name another one in "
            f"FLEET_PYTHON, or make the bundle with: fleet agent bundle --python {here}"
        )
    name, version = libc()
    if name != "glibc" or numbers(version) < numbers(bundle["libc"]):
        return (
            f"this bundle needs glibc {bundle['libc']} or newer, and this system has {name} {version}; "
            f"make one with: fleet agent bundle --libc {version}"
        )
    missing = sorted(package for module, package in bundle["from_system"].items() if not is_there(module))
    if missing:
        return f"packages are missing that this board takes from its system: apt install {' '.join(missing)}"
    return ""


def userland() -> str:
    """Return the architecture of programs here: a 64-bit kernel often runs a 32-bit system."""
    machine = platform.machine()
    if struct.calcsize("P") == 4:
        return {"aarch64": "armv7l", "armv8l": "armv7l", "x86_64": "i686"}.get(machine, machine)
    return machine


def libc() -> "tuple[str, str]":
    """Return the C library's name and version."""
    try:
        words = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
    except (AttributeError, ValueError, OSError):
        words = []
    return (words[0], words[1]) if len(words) == 2 else ("another C library", "")


def numbers(version: str) -> "list[int]":
    """Return the first two numbers of a version."""
    return [int(part) for part in re.findall(r"\d+", version)[:2]]


def is_there(module: str) -> bool:
    """Tell whether a module can be imported, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


def discovered() -> "list[str]":
    """Return the options that name a tracker which advertises itself on this network."""
    sys.path.insert(0, LIBRARY)
    try:
        import asyncio

        from fleet.wire.discovery import find_tracker

        sys.stderr.write("looking for a tracker on this network\n")
        address = asyncio.run(find_tracker())
    except ImportError:
        # Boards that bring their packages with their system may have no zeroconf.
        return []
    if address is None:
        return []
    sys.stderr.write(f"found a tracker at {address}\n")
    return ["--tracker", address, "--no-approval"]  # anybody can advertise a tracker


if __name__ == "__main__":
    sys.exit(main())
