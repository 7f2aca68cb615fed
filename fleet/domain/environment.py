"""Environment of a measurement: software and settings of a device that may change its times."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from fleet.base.digests import digest_of
from fleet.domain.devices import Inventory

ENVIRONMENT = "environment"
"""Key of the environment in a measurement's provenance."""

SOFTWARE = ("kernel", "system", "firmware", "microcode", "driver")
"""Keys of an inventory's facts that belong to the environment. Others, as serial numbers, tell boards apart."""


def environment_of(inventory: Inventory, provenance: Mapping[str, object]) -> dict[str, object]:
    """Return the environment of a measurement, JSON-ready; unknown parts are missing."""
    before = provenance.get("before")
    found: dict[str, object] = {name: inventory.facts.get(name) for name in SOFTWARE}
    found["runtime"] = f"{inventory.runtime.value} {inventory.tvm_version}".strip()
    found["governor"] = before.get("governor") if isinstance(before, Mapping) else None
    found["owner"] = provenance.get("facts")
    return {name: value for name, value in found.items() if value}


def named_facts(environment: Mapping[str, object]) -> dict[str, str]:
    """Return the facts of an environment by name. The owner's cannot replace others."""
    own = environment.get("owner")
    found = {**(own if isinstance(own, Mapping) else {}), **environment}
    return {str(name): str(value) for name, value in found.items() if name != "owner"}


def has_facts(environment: Mapping[str, object], wanted: Iterable[tuple[str, str]]) -> bool:
    """Tell whether an environment has all these facts, given as names and shell patterns of values."""
    facts = named_facts(environment)
    return all(name in facts and fnmatchcase(facts[name], pattern) for name, pattern in wanted)


def environment_digest(environment: Mapping[str, object]) -> str:
    """Return "sha256:<hex>" of an environment."""
    return digest_of(json.dumps(environment, sort_keys=True).encode())
