"""Builds the sdist and the wheel, installs the wheel in an empty environment, and tunes a model there.

    python scripts/package_check.py      # `make test` ends with it

The wheel is built from the sdist, and dependencies come from pip's package index. The new environment runs
`fleet doctor`, a tracker with an agent (`fleet up`), `fleet tune` on both, and the Python API, outside of the checkout.
Needs a git checkout: its files are compared with the contents of both packages.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("fleet", "device_agents", "cross")
ADDED_BY_BUILD = re.compile(r"[\w.-]+\.(dist-info|egg-info)/|PKG-INFO$|setup\.cfg$")
BESIDE_PACKAGES = {"CHANGELOG.md", "LICENSE", "MANIFEST.in", "README.md", "pyproject.toml"}
"""Files of the sdist in the root; it has `protos` as well."""

LISTENING = re.compile(r"tracker on (\S+),")

_USE_THE_RESULT = """
import sys
import fleet

assert fleet.__file__.startswith(sys.prefix), fleet.__file__
print(repr(fleet.report(library="records.sqlite")))
compiled = fleet.compile("model.onnx", library="records.sqlite")
problem = compiled.loaded.check().problem
assert not problem, problem
"""


def build(folder: Path) -> tuple[Path, Path]:
    """Build both packages as `python -m build` does, and return sdist and wheel."""
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT, shows=False)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


def check_contents(sdist: Path, wheel: Path) -> None:
    """Compare the packed files with the checkout's.

    Raises:
        SystemExit: files are missing, or should not be packed.
    """
    code = sources(*PACKAGES)
    with tarfile.open(sdist) as archive:
        in_sdist = {entry.name.partition("/")[2] for entry in archive if entry.isfile()}
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = set(archive.namelist())
    for path, found, expected in (
        (sdist, in_sdist, code | sources("protos") | BESIDE_PACKAGES),
        (wheel, in_wheel, code),
    ):
        packed = {name for name in found if not ADDED_BY_BUILD.match(name)}
        if packed != expected:
            missing, unexpected = sorted(expected - packed), sorted(packed - expected)
            raise SystemExit(f"{path.name}: missing {missing}, unexpected {unexpected}")


def sources(*folders: str) -> set[str]:
    """Return the files in these folders that are in git, or may be added to it."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *folders]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return {name for name in listed.stdout.splitlines() if (ROOT / name).exists()}


def install(wheel: Path, environment: Path) -> None:
    """Install the wheel in a new environment, with the dependencies of tuning and a linker if the machine has none."""
    run(sys.executable, "-m", "venv", environment)
    extras = "tune" if any(map(shutil.which, ("cc", "ld.lld", "lld", "clang"))) else "tune,cross"
    pinned = ["--quiet", "--disable-pip-version-check", "--constraint", ROOT / "constraints.txt"]
    run(environment / "bin/python", "-m", "pip", "install", *pinned, f"{wheel}[{extras}]")


def use(programs: Path, folder: Path) -> None:
    """Run the programs of the new environment as a user does."""
    run(programs / "fleet", "doctor", "--quick", cwd=folder)
    run(programs / "python", "-m", "fleet.testing.models", "tabular", "--to", "model.onnx", cwd=folder)
    with fleet_of_this_machine(programs, folder) as tracker:
        tune = [programs / "fleet", "tune", "model.onnx", "--trials", "2", "--library", "records.sqlite"]
        run(*tune, "--tracker", tracker, cwd=folder)
    run(programs / "python", "-c", _USE_THE_RESULT, cwd=folder)


@contextmanager
def fleet_of_this_machine(programs: Path, folder: Path) -> Iterator[str]:
    """Serve this machine's processor until the block ends; yield the tracker's address."""
    command = [programs / "fleet", "up", "--port", "0", "--state-dir", folder / "state"]
    with subprocess.Popen(
        command, cwd=folder, env=settings(folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            found = LISTENING.search(next(iter(process.stdout or ()), ""))
            if not found:
                raise SystemExit("`fleet up` has printed no address")
            yield found[1]
        finally:
            process.terminate()


def run(*command: str | Path, cwd: Path | None = None, shows: bool = True) -> None:
    """Run a program to its end; its output is shown, or only if it fails."""
    print("$", *(Path(command[0]).name, *command[1:]), flush=True)
    environment, output = settings(cwd) if cwd else None, None if shows else subprocess.PIPE
    done = subprocess.run(command, cwd=cwd, env=environment, stdout=output, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(f"{done.stdout or ''}{command[0]} ended with {done.returncode}")


def settings(folder: Path) -> dict[str, str]:
    """Return the environment without the developer's settings, with credentials and caches in `folder`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FLEET_", "PYTHONPATH"))}
    homes = {
        "XDG_STATE_HOME": "state",
        "XDG_CONFIG_HOME": "config",
        "XDG_DATA_HOME": "data",
        "FLEET_CACHE_DIR": "cache",
    }
    return {**kept, **{name: str(folder / path) for name, path in homes.items()}}


def main() -> None:
    """Build, compare, install and use."""
    with tempfile.TemporaryDirectory(prefix="fleet-package-") as directory:
        folder = Path(directory)
        sdist, wheel = build(folder)
        check_contents(sdist, wheel)
        install(wheel, folder / "venv")
        use(folder / "venv/bin", folder)
        print(f"{sdist.name} and {wheel.name} work in an empty environment")


if __name__ == "__main__":
    main()
