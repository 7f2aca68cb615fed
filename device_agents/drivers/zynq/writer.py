"""Writes one text to one kernel file and exits with the errno, 0 on success. Run as a standalone script.

A process of its own, because a write to the FPGA manager returns once the fabric runs, which a hung fabric never does,
and a thread that hangs in the kernel cannot be abandoned.
"""

from __future__ import annotations

import os
import sys


def main(path: str, text: str) -> int:
    """Write the text and return the errno."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        return min(error.errno or 255, 255)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
