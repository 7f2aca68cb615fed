"""Runs `fleet tune` for `make demo`, on the SqueezeNet graph that the `onnx` package ships, on this machine.

The graph's weights are constant, so that outputs would agree even when a kernel is wrong: they are replaced by seeded
random ones. Run it again and it goes on from its records.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

import onnx

MODEL = Path(onnx.__file__).parent / "backend/test/data/light/light_squeezenet.onnx"
TUNE = ("tune", str(MODEL), "--random-weights", "--top", "18", "--trials", "288")


def main() -> NoReturn:
    """Show the command, and become it: Ctrl-C is its business alone."""
    print("$ fleet", " ".join(TUNE).replace(str(MODEL), MODEL.name), flush=True)
    command = str(Path(sys.executable).with_name("fleet"))
    os.execv(command, [command, *TUNE, *sys.argv[1:]])  # noqa: S606 - no shell, and nothing of a stranger


if __name__ == "__main__":
    main()
