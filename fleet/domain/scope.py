"""Conditions for comparing two records: the target, the hardware and the compiler behind a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypedDict

from fleet.domain.measuring import Evaluator


class ScopeParts(TypedDict):
    """A scope as keyword arguments, and as JSON."""

    target_json: str
    device_model: str
    tvm_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeFilter:
    """Records that a query covers; None leaves a part open."""

    target_json: str | None = None
    """TVM target as JSON, in any spelling that `fleet.domain.keys.canonical_target` accepts."""

    device_model: str | None = None
    tvm_version: str | None = None
    measured_since: datetime | None = None
    """Only records of this time or later. Aware."""

    facts: tuple[tuple[str, str], ...] = ()
    """Only records of environments with all these facts: pairs of a name and a shell pattern of values."""

    def of(self, scope: RecordScope) -> ScopeFilter:
        """Return the part of this filter in one scope."""
        return ScopeFilter(measured_since=self.measured_since, facts=self.facts, **scope.parts)

    def for_build(self, target_json: str, tvm_version: str | None) -> ScopeFilter:
        """Return the part that a build for a target can use: a trace is valid only for the TVM that wrote it.

        A named device model counts, whatever its exact target.
        """
        return replace(self, target_json=None if self.device_model else target_json, tvm_version=tvm_version)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordScope(ScopeFilter):
    """Target, hardware and compiler of a record. Times from two scopes never compete; as a filter it covers all records
    of this scope."""

    target_json: str
    device_model: str
    """Hardware model; its devices count as equally fast. Includes non-default measuring conditions, such as flushed
    caches, see `measured_model`.
    """

    tvm_version: str
    """Compiler of the program; "" if unknown."""

    @property
    def parts(self) -> ScopeParts:
        """Its parts by name."""
        return {
            "target_json": self.target_json,
            "device_model": self.device_model,
            "tvm_version": self.tvm_version,
        }


def measured_model(device_model: str, evaluator: Evaluator) -> str:
    """Return the hardware of a scope with its measuring conditions: "AMD EPYC x2 (caches flushed)"."""
    conditions = [
        *(["caches flushed"] if evaluator.flush_cache else []),
        *([f"{evaluator.flush_bytes} bytes flushed"] if evaluator.flush_bytes else []),
        *([f"rests {evaluator.cooldown_interval_ms} ms"] if evaluator.cooldown_interval_ms else []),
        *([f"cooled below {evaluator.cool_below_c:g} C"] if evaluator.cool_below_c else []),
    ]
    return f"{device_model} ({', '.join(conditions)})" if conditions else device_model


ANY_SCOPE = ScopeFilter()
