"""Writes generated models: `python -m fleet.testing.models resnet18 bert --to models/`; without names, all of them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fleet.errors import FleetError
from fleet.testing.models import GENERATED, write


def main() -> int:
    """Write the named models and print their paths."""
    parser = argparse.ArgumentParser(prog="python -m fleet.testing.models", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(GENERATED))
    parser.add_argument("--to", type=Path, default=Path(), metavar="FOLDER", help="default: this one")
    options = parser.parse_args()
    try:
        for name in options.names or GENERATED:
            sys.stdout.write(f"{write(name, options.to)}\n")
    except FleetError as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
