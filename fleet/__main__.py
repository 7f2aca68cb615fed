"""The command `fleet`, also as `python -m fleet`: light, so that Ctrl-C while the rest is imported is no traceback."""

from __future__ import annotations

import os
import signal
import sys

_INTERRUPTED_EXIT_CODE = 130


_STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def main() -> None:
    """Import the command line, and run it. What is started before that ends with this process: leaving is enough."""
    _open_closed_streams()
    signal.signal(signal.SIGINT, lambda *_: os._exit(_INTERRUPTED_EXIT_CODE))
    if "_FLEET_COMPLETE" in os.environ:
        from fleet.cli.completion import answer_shell

        answer_shell()
    from fleet.cli.ahead import start_ahead

    start_ahead(sys.argv[1:])
    from fleet.cli.main import main as run

    signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def _open_closed_streams() -> None:
    """Have streams that our caller closed lead nowhere: what is opened next would get their numbers."""
    for number, (name, mode) in enumerate(_STREAMS):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 - it stays open


if __name__ == "__main__":
    main()
