"""Entry point of the command `fleet` and of `python -m fleet`: sets signal handlers before most imports."""

# ruff: noqa: E402 - the first statement guards the imports

from __future__ import annotations

import _signal  # type: ignore[import-not-found]

_signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # before the next imports, which take 20 ms: Ctrl-C ends it quietly

import errno
import os
import signal
import sys
from types import FrameType

_HUNG_UP_EXIT_CODE = 129
_INTERRUPTED_EXIT_CODE = 130
_TERMINATED_EXIT_CODE = 143
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EPIPE)

_STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def main() -> None:
    """Import and run the command line.

    Ctrl-C always exits with code 130 and no traceback. While the command runs, it raises KeyboardInterrupt. During
    imports and after the command it exits at once, because nothing is left to clean up. SIGTERM and SIGHUP raise
    SystemExit, so that temporary files are removed.
    """
    _open_closed_streams()
    signal.signal(signal.SIGINT, _leave_at_once)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # keep SIGHUP ignored under nohup
            signal.signal(number, _leave_orderly)
    if not os.environ.get("COLUMNS", "1").isdigit() or os.environ.get("COLUMNS") == "0":
        del os.environ["COLUMNS"]  # a width of 0 makes help texts empty
    code: int | str | None
    try:
        code = _run()
    except KeyboardInterrupt:
        code = _INTERRUPTED_EXIT_CODE
    except SystemExit as error:
        code = error.code
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        code = f"error: stdout: {error.strerror}"
    except MemoryError:
        code = "error: out of memory; is it limited (ulimit -v)?"
    except ImportError as error:
        code = f"error: cannot load {error.name}: {error}; is memory limited (ulimit -v), or a package damaged?"
    signal.signal(signal.SIGINT, _leave_at_once)
    sys.exit(_flushed(code))


def _run() -> int | str | None:
    if "_FLEET_COMPLETE" in os.environ:
        from fleet.cli.completion import answer_shell

        answer_shell()
    from fleet.cli.early_pools import start_pools

    start_pools(sys.argv[1:])
    from fleet.cli.main import main as run

    signal.signal(signal.SIGINT, signal.default_int_handler)
    run()
    return None


def _flushed(code: int | str | None) -> int | str | None:
    """Flush stdout and return the exit code. A full disk is a one-line error; a closed pipe is silent."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        failed: int | str = 1
    except OSError as error:
        failed = f"error: stdout: {error.strerror}"
    else:
        return code
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code or failed


def _leave_at_once(_number: int, _frame: FrameType | None) -> None:
    os._exit(_INTERRUPTED_EXIT_CODE)


def _leave_orderly(number: int, _frame: FrameType | None) -> None:
    sys.exit(_HUNG_UP_EXIT_CODE if number == signal.SIGHUP else _TERMINATED_EXIT_CODE)


def _open_closed_streams() -> None:
    """Open /dev/null for standard streams that the caller closed, so that later files do not get their numbers."""
    for number, (name, mode) in enumerate(_STREAMS):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 - it stays open


if __name__ == "__main__":
    main()
