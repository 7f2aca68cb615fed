"""What `make demo` runs: `fleet tune` on the SqueezeNet graph that the `onnx` package ships, on this machine.

The graph's weights are constant, so that outputs would agree even when a kernel is wrong: they are replaced by seeded
random ones. Run it again and it goes on from its records.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx

MODEL = Path(onnx.__file__).parent / "backend/test/data/light/light_squeezenet.onnx"
TUNE = ("tune", str(MODEL), "--random-weights", "--top", "18", "--trials", "288")


def main() -> int:
    """Show the command, run it, and return its exit code."""
    print("$ fleet", " ".join(TUNE).replace(str(MODEL), MODEL.name), flush=True)
    return subprocess.run((Path(sys.executable).with_name("fleet"), *TUNE, *sys.argv[1:]), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
