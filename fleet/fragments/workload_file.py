"""Writes files of workloads: YAML with the operators, counts and fragments of one or several models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from cross.targets.target import Target
from fleet.base.plain import to_object
from fleet.fragments.faithful import Origin
from fleet.fragments.fragment import Call, Fragment, Tensor

FORMAT = 1
"""Incremented when older programs would misread a file."""

_WIDTH = 150


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Share of a model that its faithful fragments cover."""

    model: str
    programs: int
    faithful: int
    operations: float
    """Share of the model's operations, from 0 to 1; 1 for a model without any."""

    @classmethod
    def of(cls, model: str, origins: Sequence[Origin]) -> Coverage:
        """Count the programs of a model."""
        kept = [one.workload for one in origins if one.fragment is not None]
        total = sum(one.workload.flop * one.workload.weight for one in origins)
        covered = sum(one.flop * one.weight for one in kept)
        return cls(model=model, programs=len(origins), faithful=len(kept), operations=covered / total if total else 1.0)


def workload_file(origins_by_model: Mapping[str, Sequence[Origin]], target: Target) -> str:
    """Return a file of the workloads with faithful fragments, each once, in the order of the models."""
    entries: dict[str, dict[str, Any]] = {}
    for model, origins in origins_by_model.items():
        for origin in origins:
            if origin.fragment is not None:
                entry = entries.setdefault(origin.workload.shash, _entry(origin, origin.fragment))
                entry["models"][model] = origin.workload.weight
    content = {"format": FORMAT, "target": dict(target.options), "workloads": list(entries.values())}
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=_WIDTH)


class _Dumper(yaml.SafeDumper):
    """Writes equal values out each time: aliases are hard to read."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _entry(origin: Origin, fragment: Fragment) -> dict[str, Any]:
    return {
        "operator": origin.workload.operator,
        "name": origin.workload.name,
        "hash": origin.workload.shash,
        "operations": origin.workload.flop,
        "models": {},
        "fragment": {
            "inputs": [_tensor(one) for one in fragment.inputs],
            "weights": [_tensor(one) for one in fragment.weights],
            "calls": [_call(one) for one in fragment.calls],
        },
    }


def _tensor(tensor: Tensor) -> dict[str, object]:
    return {key: value for key, value in to_object(tensor).items() if key != "values" or value}


def _call(call: Call) -> dict[str, object]:
    return {key: value for key, value in to_object(call).items() if key != "attributes" or value}
