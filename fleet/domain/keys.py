"""The keys by which records are looked up: digests of traces and canonical targets, computed without TVM.

TVM writes back a target with more keys than the user gave (`tag`, `keys`, `feature.*`, some defaults). All of these
follow from the others, so two targets are the same if they agree on the rest. The host of an accelerator does not
change a kernel's time.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from fleet.base.digests import digest_of
from fleet.domain.trace_text import Spelling, compact
from fleet.errors import InvalidRequest

NO_TRACE = ""
"""Stands for a trace if the unscheduled program is the fastest known one."""

_DERIVED_KEYS = frozenset({"tag", "keys", "host"})
_DEFAULTS_BY_KIND: Mapping[str, Mapping[str, object]] = {
    "cuda": {"max_num_threads": 1024, "thread_warp_size": 32},
    "rocm": {"max_num_threads": 256, "thread_warp_size": 64, "max_threads_per_block": 256},
    "metal": {"max_num_threads": 256, "thread_warp_size": 16},
    "opencl": {"max_num_threads": 256, "thread_warp_size": 1},
}
"""Defaults that TVM 0.27 fills in by itself."""

_RESPELLED = (list, bool, float)


@functools.lru_cache(maxsize=256)
def canonical_target(target_json: str) -> str:
    """Return one spelling for all targets that mean the same hardware; "" for none.

    Raises:
        InvalidRequest: it is neither a JSON object nor a plain kind.
    """
    text = target_json.strip()
    if not text:
        return ""
    if text.replace("_", "").isalnum():
        return json.dumps({"kind": text})
    try:
        target = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"target {text!r} is no JSON: {error}") from error
    if not isinstance(target, dict) or not isinstance(target.get("kind"), str):
        raise InvalidRequest(f'target {text!r} is no JSON object with a "kind"')
    defaults = _DEFAULTS_BY_KIND.get(target["kind"], {})
    kept = {key: value for key, value in target.items() if not _is_derived(key) and defaults.get(key) != value}
    return json.dumps(kept, sort_keys=True)


def trace_digest(trace_json: str) -> str:
    """Return "sha256:<hex>" of a trace, regardless of white space and how numbers are spelled; "" for no trace.

    Raises:
        InvalidRequest: the trace is not JSON.
    """
    if not trace_json:
        return ""
    try:
        canonical = _CANONICAL.of(trace_json)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"a trace is no JSON: {error}") from error
    return digest_of(canonical.encode())


def _plain(value: Any) -> Any:
    """Normalise numbers: TVM passes true and 1.0 to Python, but writes 1 to its files."""
    if isinstance(value, list):
        return [_plain(item) if type(item) in _RESPELLED else item for item in value]
    if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    return value


def _is_derived(key: str) -> bool:
    return key in _DERIVED_KEYS or key.startswith("feature.")


_CANONICAL = Spelling(lambda value: compact(_plain(value)))
