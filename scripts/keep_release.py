"""Archives a release, for the test that it still works with today's tracker and agents.

    python scripts/keep_release.py v0.1.0      # a tag or a commit of this repository

It writes `tests/golden/releases/NAME.tar.xz`: the agent as that commit's own bundle has it, and the client with the
tracker that it can start, without their dependencies, which are the test's. NAME is the tag, or date and commit. Run it
at each release and commit the file; `tests/system/test_older_releases.py` takes all that are there. The same commit
gives the same bytes.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RELEASES = ROOT / "tests/golden/releases"
_PACKAGES = ("artifacts", "base", "client", "domain", "identity", "local", "tracker", "tracker/*", "v1", "wire")
_CLIENT = ("fleet/*.py", *(f"fleet/{package}/*.py" for package in _PACKAGES))
_LIST_AGENT = "from cross.bundle.code import code_files; print(*code_files(), sep='\\n')"


def main() -> None:
    """Write the archive of one commit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="tag or commit")
    commit = parser.parse_args().commit
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory)
        with tarfile.open(fileobj=io.BytesIO(_git("archive", commit, "fleet", "device_agents", "cross"))) as content:
            content.extractall(tree)  # noqa: S202 what git itself packed; Debian 12 has a Python without `filter`
        target = RELEASES / f"{_name(commit)}.tar.xz"
        target.parent.mkdir(exist_ok=True)
        _pack(tree, _files(tree), target)
    print(f"{target.relative_to(ROOT)}: {target.stat().st_size} bytes")


def _files(tree: Path) -> list[str]:
    """Return the files to keep, by that commit's own list of an agent's files."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    listed = subprocess.run(
        [sys.executable, "-c", _LIST_AGENT], cwd=tree, env=environment, capture_output=True, text=True, check=True
    )
    client = [path.relative_to(tree).as_posix() for pattern in _CLIENT for path in tree.glob(pattern)]
    return sorted({*listed.stdout.split(), *client})


def _pack(tree: Path, names: list[str], target: Path) -> None:
    with tarfile.open(target, "w:xz", preset=9) as archive:
        for name in names:
            content = (tree / name).read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))


def _name(commit: str) -> str:
    exact = subprocess.run(
        ["git", "describe", "--exact-match", "--tags", commit], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if exact.returncode == 0:
        return exact.stdout.strip()
    return _git("log", "-1", "--format=%cd-%h", "--date=format:%Y%m%d", "--abbrev=8", commit).decode().strip()


def _git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=True).stdout


if __name__ == "__main__":
    main()
