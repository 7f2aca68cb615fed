"""Imports of the build pool's fork server, so that every worker starts warm.

Importing TVM takes 0.6 s; a worker forked from here is ready within milliseconds.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import types

from cross.pool.fork_server import MAIN_NAME_VARIABLE, MAIN_PATH_VARIABLE, MODULES_VARIABLE, TARGET_VARIABLE
from cross.targets.intrinsics import keep_package_light, load_intrinsics
from cross.targets.target import parse_target
from fleet.base.imports import no_collection


def _claim_main() -> None:
    """Make workers believe that the parent's main program is loaded; else each would import it again, and a script
    without a guard would run again. Tasks are functions of importable modules, so nothing in it is needed.
    """
    main = sys.modules["__main__"]
    path, name = os.environ.pop(MAIN_PATH_VARIABLE, ""), os.environ.pop(MAIN_NAME_VARIABLE, "")
    if path:
        main.__file__ = path
    if name:
        main.__spec__ = types.SimpleNamespace(name=name)  # type: ignore[assignment]


_claim_main()
keep_package_light()

with no_collection():
    import numpy  # noqa: F401
    import tvm
    import tvm.relax
    import tvm.s_tir.meta_schedule  # noqa: F401

    if target := os.environ.pop(TARGET_VARIABLE, ""):
        load_intrinsics(parse_target(target))

    for module in filter(None, os.environ.pop(MODULES_VARIABLE, "").split(",")):
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
