"""Fuzzes one target, or all, one process each: `python -m tests.fuzz NAME --inputs 1000000`."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import io
import logging
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_KEPT_IN = Path("build/fuzz")


def main() -> int:
    """Return 0 if there is no finding."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("names", nargs="*", help="targets; none: all")
    parser.add_argument("--inputs", type=int, default=1_000_000, help="how many for each target")
    parser.add_argument("--cpu-sec", type=float, default=3600.0, help="end after this time of the processor")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--by-mutation", action="store_true", help="do not look at coverage")
    parser.add_argument("--replay", type=Path, help="run one file as the input, and show what is raised")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # each invalid input is logged, and there are millions
    if options.here:
        is_guided = not options.by_mutation and not options.replay and importlib.util.find_spec("atheris") is not None
        return _one(options, is_guided=is_guided)
    from tests.fuzz.registry import TARGETS

    names = options.names or list(TARGETS)
    failed = [name for name in names if _in_a_process_of_its_own(name, options)]
    if failed:
        print(f"something was found in: {', '.join(failed)}")
    return 1 if failed else 0


def _in_a_process_of_its_own(name: str, options: argparse.Namespace) -> int:
    """Fuzz one target in a child process and remove its files and credentials afterwards, even after a crash;
    return its exit status.
    """
    command = [sys.executable, "-m", "tests.fuzz", "--here", name, "--inputs", str(options.inputs)]
    command += ["--seed", str(options.seed), "--cpu-sec", str(options.cpu_sec)]
    command += ["--by-mutation"] if options.by_mutation else []
    command += ["--replay", str(options.replay)] if options.replay else []
    with tempfile.TemporaryDirectory(prefix="fleet-fuzz-") as folder:
        environment = {**os.environ, "TMPDIR": folder, "XDG_STATE_HOME": folder}
        return subprocess.run(command, env=environment, check=False).returncode


def _one(options: argparse.Namespace, *, is_guided: bool) -> int:
    if is_guided:
        import atheris

        # Instruments our modules as they are imported, so none of them may be imported earlier.
        with (
            contextlib.redirect_stderr(io.StringIO()),  # it lists every module
            atheris.instrument_imports(include=["fleet", "device_agents", "cross"]),
        ):
            importlib.import_module("tests.fuzz.registry")
    from tests.fuzz import engine
    from tests.fuzz.registry import TARGETS
    from tests.fuzz.watch import STRICT, check

    target = TARGETS[options.names[0]]
    if options.replay:
        check(target, options.replay.read_bytes(), STRICT)
        return 0
    (_KEPT_IN / target.name).mkdir(parents=True, exist_ok=True)
    run = engine.Run(target=target, limits=STRICT, kept_in=_KEPT_IN / target.name)
    if is_guided:
        engine.explore_guided(run, options.inputs, options.seed, most_cpu_sec=options.cpu_sec)
        return 1 if run.findings else 0
    started, growth = time.monotonic(), engine.Growth()
    for content in engine.inputs_of(target, options.inputs, options.seed):
        run.take(content)
        growth.note()
        if time.process_time() > options.cpu_sec:
            break
    engine.report(run, time.monotonic() - started, growth)
    return 1 if run.findings else 0


if __name__ == "__main__":
    sys.exit(main())
