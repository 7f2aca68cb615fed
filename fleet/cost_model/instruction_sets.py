"""Which instructions a target's code may use, in a word or two: what device models of one kind share in the cost model.

Only what changes which schedules are fast is told apart: how wide vectors are, and whether there are dot products of
8-bit integers.
"""

from __future__ import annotations

import functools

from cross.targets.target import architecture, parse_target
from fleet.artifacts.fit import needed_features
from fleet.errors import ConfigError

_WIDEST_FIRST = {
    "x86_64": {
        "avx512_vnni": "avx512 vnni",
        "avx512f": "avx512",
        "avx_vnni": "avx2 vnni",
        "avx2": "avx2",
        "sse4_2": "sse4",
    },
    "aarch64": {"sve2": "sve2", "sve": "sve", "asimddp": "neon dotprod", "asimd": "neon"},
}
"""By architecture: a feature, and the name of the instruction set that has it, but none of those before it."""


@functools.lru_cache(maxsize=256)
def instruction_set_of(target_json: str) -> str:
    """Return a name such as "avx512 vnni", "neon dotprod" or "cuda sm_86"; "" for what is no target."""
    try:
        target = parse_target(target_json)
        arch = architecture(target_json)
    except ConfigError:
        return ""
    if target["kind"] != "llvm":
        return f"{target['kind']} {target.get('arch') or target.get('mcpu') or ''}".strip()
    features = needed_features(target, arch)
    return next((name for feature, name in _WIDEST_FIRST.get(arch, {}).items() if feature in features), arch)
