"""The command `fleet`, also as `python -m fleet`: light, so that Ctrl-C while the rest is imported is no traceback."""

from __future__ import annotations

import os
import signal
import sys

_INTERRUPTED_EXIT_CODE = 130


def main() -> None:
    """Import the command line, and run it. What is started before that ends with this process: leaving is enough."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(_INTERRUPTED_EXIT_CODE))
    if "_FLEET_COMPLETE" in os.environ:
        from fleet.cli.completion import answer_shell

        answer_shell()
    from fleet.cli.ahead import start_ahead

    start_ahead(sys.argv[1:])
    from fleet.cli.main import main as run

    signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
