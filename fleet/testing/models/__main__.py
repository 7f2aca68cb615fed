"""Writes generated models: `python -m fleet.testing.models resnet18 bert --to models/`; without names, all of them.

One model may be given a name of its own: `python -m fleet.testing.models keyword_spotting --to model.onnx`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fleet.errors import FleetError
from fleet.testing.models import GENERATED, SUFFIX, write


def main() -> int:
    """Write the named models and print their paths."""
    parser = argparse.ArgumentParser(prog="python -m fleet.testing.models", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(GENERATED))
    where = "FOLDER|FILE.onnx"
    parser.add_argument("--to", type=Path, default=Path(), metavar=where, help="default: here, as NAME.onnx")
    options = parser.parse_args()
    names = options.names or GENERATED
    if options.to.suffix == SUFFIX and len(names) > 1:
        parser.error(f"--to {options.to} is one file, for one model; name a folder for {len(names)}")
    try:
        for name in names:
            sys.stdout.write(f"{write(name, options.to)}\n")
    except FleetError as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
