"""Generate the message classes in fleet/v1 from protos/fleet/v1, or check that they are fresh.

    python protos/generate.py            write fleet/v1
    python protos/generate.py --check    exit 1 when fleet/v1 differs from what the protos say

Because the proto package is the Python package, the generated imports need no patching. Stubs and handlers are not
generated: fleet.rpc builds them from the service descriptors, so that boards bound to an older grpcio can serve.
"""

from __future__ import annotations

import argparse
import filecmp
import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent


def generate(out: Path) -> None:
    """Write *_pb2.py and *_pb2.pyi of all protos below `out`."""
    protos = sorted(str(path) for path in (ROOT / "protos/fleet/v1").glob("*.proto"))
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    code = protoc.main(
        ["protoc", f"-I{ROOT / 'protos'}", f"-I{well_known}", f"--python_out={out}", f"--pyi_out={out}", *protos]
    )
    if code != 0:
        raise SystemExit(f"protoc failed with exit code {code}")


def stale_files(fresh: Path, committed: Path) -> list[str]:
    """Name the generated files that differ, are missing, or belong to no proto."""
    names = {path.name for folder in (fresh, committed) for path in folder.glob("*_pb2.py*")}
    _, differing, missing = filecmp.cmpfiles(fresh, committed, sorted(names), shallow=False)
    return sorted(differing + missing)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 when stale")
    if not parser.parse_args().check:
        generate(ROOT)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        stale = stale_files(Path(folder) / "fleet/v1", ROOT / "fleet/v1")
    if stale:
        print(f"stale: {', '.join(stale)}; run: python protos/generate.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
