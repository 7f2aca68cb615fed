"""Labels that follow from a device's inventory: memory, cores, TVM's version, and the attributes of its target.

    mem=7808MiB                  memory, rounded down by at most a 64th: equal boards differ by some pages
    cores=4                      cores that kernels run on
    tvm=0.27.0.post1             version of the runtime that loads artifacts
    mcpu=cortex-a72              target attributes that are a text, a number or true
    sm=sm_90                     of an NVIDIA GPU, from its target's "arch"

A label that the agent set goes before one of these.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping

from fleet.domain.devices import Inventory
from fleet.domain.labels import FIXED_LABELS, size_fault
from fleet.domain.quantities import size_text

_KEY = re.compile(r"[a-z][a-z0-9_.-]*")
_VALUE = re.compile(r"[^,=!<>|*?\[\]\s]+")
_MAX_ATTRIBUTES = 32
_MEMORY_STEPS = 64
_NO_LABELS = FIXED_LABELS | {"device", "host", "keys", "libs", "model", "tag"}
"""Target attributes without a label: its key has another meaning."""


def automatic_labels(inventory: Inventory) -> dict[str, str]:
    """Return the labels of an inventory: the automatic ones and the agent's."""
    found = {
        "mem": size_text(_rounded_down(inventory.memory_bytes)) if inventory.memory_bytes else "",
        "cores": str(inventory.core_count or ""),
        "tvm": inventory.tvm_version if _VALUE.fullmatch(inventory.tvm_version) else "",
    }
    known = {key: value for key, value in found.items() if value and not size_fault({key: value})}
    return {**_target_labels(inventory.target_json), **known, **inventory.labels}


def _rounded_down(size_bytes: int) -> int:
    step = max(1, (1 << (size_bytes.bit_length() - 1)) // _MEMORY_STEPS)
    return size_bytes // step * step


@functools.lru_cache(maxsize=256)
def _target_labels(target_json: str) -> Mapping[str, str]:
    try:
        target = json.loads(target_json or "{}")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(target, dict):
        return {}
    texts = {key: _text(value) for key, value in target.items() if _KEY.fullmatch(key) and key not in _NO_LABELS}
    found = {key: text for key, text in texts.items() if _VALUE.fullmatch(text) and not size_fault({key: text})}
    sm = {"sm": found["arch"]} if found.get("arch", "").startswith("sm_") else {}
    return dict(list({**sm, **found}.items())[:_MAX_ATTRIBUTES])


def _text(value: object) -> str:
    """Return an attribute as a label's text; empty for lists, objects and null."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, str | int | float) else ""
