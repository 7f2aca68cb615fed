"""`make chaos`: runs a fleet under faults in private namespaces, and checks its logs.

python -m tests.chaos --minutes 60 --seed 1 [--json] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from tests.chaos.apart import run_apart
from tests.chaos.checker import Bounds, check
from tests.chaos.history import read
from tests.chaos.summary import shown, shown_finding, summarize

_KEPT_IN = Path("build/chaos")
_LAST_LINES = 15
_PACKAGES = {"ip": "iproute2", "unshare": "util-linux"}
"""Debian packages of the commands that make namespaces."""


def main() -> int:
    """Return 1 if a check failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="how long faults happen (default %(default)g)")
    parser.add_argument("--seed", type=int, help="of the schedule of faults; default: any")
    parser.add_argument(
        "--standby", action="store_true", help="with a standby that takes over, and cuts between any two"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--keep", type=Path, help="an empty folder for all logs, which stay there")
    given = parser.parse_args()
    if missing := [f"{name} (package {package})" for name, package in _PACKAGES.items() if shutil.which(name) is None]:
        parser.error(f"install {' and '.join(missing)}: the fleet runs in namespaces of its own")
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    with tempfile.TemporaryDirectory(prefix="fleet-chaos-") as temporary:
        folder = given.keep or Path(temporary)
        sys.stderr.write(f"{given.minutes:g} minutes of faults, seed {seed}; Ctrl-C ends them; logs in {folder}\n")
        is_well = False
        try:
            seconds = given.minutes * 60
            logs = run_apart(folder, seed=seed, seconds=seconds, bounds=Bounds(), tunes=True, standby=given.standby)
            history = read(sorted(logs.glob("*.jsonl")))
            findings = check(history)
            is_well = not findings
        finally:
            if not is_well:
                _tell_the_rest(folder, given.keep or _keep(folder))
    summary = summarize(seed, history, findings)
    print(json.dumps(asdict(summary), indent=2) if given.json else shown(summary))
    for finding in findings:
        print(shown_finding(seed, history, finding), file=sys.stderr)
    if findings:
        standby = " STANDBY=1" if given.standby else ""
        print(f"again: make chaos MINUTES={given.minutes:g} SEED={seed}{standby}", file=sys.stderr)
    return 1 if findings else 0


def _keep(folder: Path) -> Path:
    """Copy all logs, without keys, to a folder that outlives this run; return the folder."""
    shutil.rmtree(_KEPT_IN, ignore_errors=True)
    _KEPT_IN.mkdir(parents=True)
    for path in (*folder.glob("logs/*.jsonl"), *folder.glob("*.log")):
        shutil.copy(path, _KEPT_IN)
    return _KEPT_IN


def _tell_the_rest(folder: Path, kept: Path) -> None:
    """Print the end of each process's own log; its files may be lost with the machine."""
    for path in sorted(folder.glob("*.log")):
        lines = path.read_text(errors="replace").splitlines()[-_LAST_LINES:]
        print(f"--- {path.name}", *lines, sep="\n", file=sys.stderr)
    print(f"--- all of it: {kept}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
