"""Quick compilation for tests of results, not of speed.

Half of the time that TVM takes for a small program goes into checks of its arguments, which become code of their own;
LLVM's optimizations are most of the rest.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from cross.targets.intrinsics import keep_package_light
from cross.targets.target import host_target, make_target, parse_target

if TYPE_CHECKING:
    from tvm.ir import IRModule


def compile_quickly(mod: IRModule, *, optimized: bool = False) -> Any:
    """Compile a module for this machine without checks of its arguments.

    With `optimized`, LLVM optimizes as it does for users, for tests of vectors and loops.
    """
    keep_package_light()
    import tvm

    target = dict(host_target().options) | ({} if optimized else {"opt-level": 0})
    with tvm.transform.PassContext(opt_level=3, config={"tirx.disable_assert": True}):
        return tvm.compile(mod, target=make_target(parse_target(json.dumps(target))))
