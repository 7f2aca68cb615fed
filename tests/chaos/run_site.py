"""Runs a site's storms and calms: started by `tests.chaos` in namespaces of its own.

unshare ... python -m tests.chaos.run_site FOLDER --seed 1 --seconds 120 --patience 60 [--standby]
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from tests.chaos.pair import PairSite
from tests.chaos.site import Site

OVER = "over"
_STORM_SEC = 20.0


async def run(site: Site, seconds: float) -> None:
    """Run storms for this total time, each followed by a calm phase: a seed gives the same faults on any machine. A
    file "over" in the site's folder makes the present storm the last.
    """
    await site.open()
    await site.calm()
    lengths_sec = [*[_STORM_SEC] * int(seconds // _STORM_SEC), seconds % _STORM_SEC]
    for number, length_sec in enumerate(filter(None, lengths_sec)):
        await site.storm(number, length_sec)
        await site.calm()
        if (site.folder / OVER).exists():
            break
    await site.close()


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.run_site")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--patience", type=float, required=True)
    parser.add_argument("--tunes", action="store_true")
    parser.add_argument("--standby", action="store_true")
    given = parser.parse_args()
    make_site = PairSite if given.standby else Site
    asyncio.run(run(make_site(given.folder, given.seed, given.patience, tunes=given.tunes), given.seconds))


if __name__ == "__main__":
    main()
