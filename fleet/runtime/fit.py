"""Checks that an exported model can run here before its library is loaded: a wrong library would crash."""

from __future__ import annotations

from pathlib import Path

from fleet.base.machine import architecture
from fleet.errors import ArtifactRefused
from fleet.runtime.manifest import Manifest


def check_here(manifest: Manifest, *, tvm_version: str, flags: frozenset[str] | None = None) -> None:
    """Refuse a model that this machine cannot run.

    Args:
        tvm_version: of the runtime library here; empty where it is not known.
        flags: features of this CPU, if not those of /proc/cpuinfo.

    Raises:
        ArtifactRefused: the message names the missing part and the remedy.
    """
    here = architecture()
    if manifest.machine != here:
        raise ArtifactRefused(
            f"{manifest.title} is exported for {manifest.machine}, this machine is {here}; "
            "export it with --target for this machine ('fleet targets' lists them)"
        )
    found = cpu_flags() if flags is None else flags
    missing = [feature for feature in manifest.cpu_features if found and feature not in found]
    if missing:
        raise ArtifactRefused(
            f"{manifest.title} may use CPU features that this machine lacks: {', '.join(missing)}; "
            'export it for a target without them, like \'{"kind": "llvm"}\''
        )
    if tvm_version and manifest.tvm_version != tvm_version:
        raise ArtifactRefused(
            f"{manifest.title} is exported with TVM {manifest.tvm_version}, the runtime here is of {tvm_version}, and "
            f"TVM's interfaces hold within one release: pip install apache-tvm=={manifest.tvm_version}, or export it "
            "again with the version here"
        )


def cpu_flags(path: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Return the features of this CPU; empty if Linux does not report them."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return frozenset()
    flags = (line.partition(":")[2] for line in lines if line.startswith(("flags", "Features")))
    return frozenset(next(flags, "").split())
