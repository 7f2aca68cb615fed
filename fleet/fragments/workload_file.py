"""Writes files of workloads: YAML with the operators, counts and fragments of one or several models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from cross.targets.target import Target
from fleet.domain.workload import Workload
from fleet.fragments.faithful import Origin
from fleet.fragments.fragment import Attribute, Call, Fragment, Operand, Shape, Tensor

FORMAT = 1
"""Incremented when older programs would misread a file."""

_WIDTH = 150


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A workload in a file."""

    operator: str
    """Readable name: "conv2d 3x3 64->64 56x56"."""

    name: str
    """TVM's name."""

    shash: str
    operations: float
    models: Mapping[str, int] = field(default_factory=dict)
    """Calls in one run of each model."""

    fragment: Fragment

    @property
    def calls(self) -> int:
        """Calls in one run of each of the models together; 1 for a workload without models."""
        return sum(self.models.values()) or 1

    @classmethod
    def of(cls, workload: Workload, fragment: Fragment) -> Entry:
        """Return the entry of a program without models."""
        return cls(
            operator=workload.operator,
            name=workload.name,
            shash=workload.shash,
            operations=workload.flop,
            fragment=fragment,
        )


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
    entries: dict[str, Entry] = {}
    for model, origins in origins_by_model.items():
        for origin in origins:
            if origin.fragment is not None:
                entry = Entry.of(origin.workload, origin.fragment)
                known = entries.get(entry.shash, entry)
                entries[entry.shash] = replace(known, models={**known.models, model: origin.workload.weight})
    return to_text(list(entries.values()), target)


def to_text(entries: Sequence[Entry], target: Target) -> str:
    """Return the text of a file."""
    content = {"format": FORMAT, "target": dict(target.options), "workloads": [_to_plain(one) for one in entries]}
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=_WIDTH)


def plain_fragment(fragment: Fragment) -> dict[str, object]:
    """Return a fragment as lists, mappings, texts and numbers."""
    return {
        "inputs": [_tensor(one) for one in fragment.inputs],
        "weights": [_tensor(one) for one in fragment.weights],
        "calls": [_call(one) for one in fragment.calls],
    }


class _Dumper(yaml.SafeDumper):
    """Writes equal values out each time: aliases are hard to read."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _to_plain(entry: Entry) -> dict[str, Any]:
    return {
        "operator": entry.operator,
        "name": entry.name,
        "hash": entry.shash,
        "operations": entry.operations,
        "models": dict(entry.models),
        "fragment": plain_fragment(entry.fragment),
    }


def _tensor(tensor: Tensor) -> dict[str, object]:
    values = {"values": list(tensor.values)} if tensor.values else {}
    return {"shape": list(tensor.shape), "dtype": tensor.dtype, **values}


def _call(call: Call) -> dict[str, object]:
    attributes = {key: _plain(value) for key, value in call.attributes.items()}
    shown = {"attributes": attributes} if attributes else {}
    return {"operator": call.operator, "operands": _plain(call.operands), **shown}


def _plain(value: Operand | Attribute) -> object:
    if isinstance(value, Shape):
        return {"shape": list(value.shape)}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
