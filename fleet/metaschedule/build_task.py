"""Task of the build pool's workers for `FleetBuilder`."""

from __future__ import annotations

from pathlib import Path

from cross.compile.library import build
from cross.targets.target import parse_target


def build_module(mod_json: str, target_json: str, out_dir: str) -> str:
    """Build a scheduled module in the same way as MetaSchedule's builder; return the path of the shared library.

    Raises:
        BuildError: it did not compile or link.
        ConfigError: no linker for the target.
    """
    import tvm
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    mod = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(tvm.ir.load_json(mod_json))
    artifact = build(mod, parse_target(target_json), Path(out_dir))
    return str(artifact.path)
