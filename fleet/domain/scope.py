"""What makes two records comparable: the target, the hardware and the compiler behind a time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeFilter:
    """Which scopes a query covers; None leaves a part open."""

    target_json: str | None = None
    """TVM target as JSON, in any spelling that `fleet.domain.keys.canonical_target` accepts."""

    device_model: str | None = None
    tvm_version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordScope(ScopeFilter):
    """Where a record was made. Times from two scopes never compete; as a filter it leaves nothing open."""

    target_json: str
    device_model: str
    """The hardware: all devices of one model count as equally fast."""

    tvm_version: str
    """What the program was built with; "" if that is not known."""


ANY_SCOPE = ScopeFilter()
