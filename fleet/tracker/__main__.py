"""`python -m fleet.tracker`: one tracker until SIGTERM or SIGINT. Prints one line to stdout once it is listening."""

from __future__ import annotations

import sys

from fleet.errors import FleetError
from fleet.tracker.run import parse_options, run_tracker

if __name__ == "__main__":
    try:
        sys.exit(run_tracker(parse_options(sys.argv[1:])))
    except FleetError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)
