"""Runs benchmarks in turn, each as a process of its own: `python -m benchmarks [--quick] [--json] [NAME...]`.

Options that are not its own go to the benchmark, when it is a single one: `python -m benchmarks models --models bert`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

from benchmarks.common import REPOSITORY, JsonObject, print_json, print_table, say

NAMES = (
    *("trial_overhead", "tune_matmul", "tracker_load", "recovery"),
    *("tracker_turns", "agent_footprint", "models", "adaptive", "device_share"),
)
LONG = (
    "curves",
    "prioritizer",
    "prioritizer_live",
    "cost_model",
    "warm_start",
    "first_batch",
    "scale",
    "soak",
    "search_cost",
    "library_rate",
    "library_scale",
    "library_refresh",
    "lab_week",
    "forecast",
    "gateway_overhead",
    "relay",
    "web_page",
    "takeover",
)
"""Run only when named: they take longer than all the others together."""


def main() -> int:
    """Run the named benchmarks, all by default; the exit code is 1 when one of them failed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="What we claim, measured beside the peer."
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"{', '.join(NAMES)} (default: these); {', '.join(LONG)}"
    )
    parser.add_argument("--quick", action="store_true", help="less work: shows that they run, not how fast")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on one line, by benchmark")
    arguments, further = _split(sys.argv[1:])
    options = parser.parse_args(arguments)
    names = options.names or list(NAMES)
    unknown = [name for name in names if name not in (*NAMES, *LONG)]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join((*NAMES, *LONG))}")
    if further and len(names) > 1:
        parser.error(f"{further[0]} is for a single benchmark: name one")
    figures = {name: _run(name, further, quick=options.quick) for name in names}
    print_table("all, each against its peer", ("", "unit", "peer", "ours", "ours is better by"), _rows(figures))
    print_json(figures, wanted=options.json)
    return 1 if None in figures.values() else 0


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Split into our options and, from the first unknown option on, those of a benchmark."""
    known = ("--quick", "--json", "--help", "-h")
    first = next((i for i, each in enumerate(arguments) if each.startswith("-") and each not in known), len(arguments))
    own = [each for each in arguments[first:] if each in known]
    return [*arguments[:first], *own], [each for each in arguments[first:] if each not in known]


def _run(name: str, further: list[str], *, quick: bool) -> JsonObject | None:
    """Run one benchmark, print its output and return its figures; None if it failed."""
    say(f"== {name}")
    command = [sys.executable, "-m", f"benchmarks.{name}", "--json", *(["--quick"] if quick else []), *further]
    done = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=False)
    lines = done.stdout.rstrip("\n").splitlines()
    if done.returncode != 0 or not lines:
        print(done.stdout, end="", flush=True)
        say(f"{name} failed with exit code {done.returncode}")
        return None
    print("\n".join(lines[:-1]), flush=True)
    figures: JsonObject = json.loads(lines[-1])
    return figures


def _rows(figures: dict[str, JsonObject | None]) -> list[tuple[str, ...]]:
    return [
        (name, str(found.get("unit", "")), *(_number(found.get(key)) for key in ("peer", "ours", "ratio")))
        if found
        else (name, "failed", "", "", "")
        for name, found in figures.items()
    ]


def _number(value: object) -> str:
    return f"{value:,.4g}" if isinstance(value, int | float) else "-"


if __name__ == "__main__":
    sys.exit(main())
