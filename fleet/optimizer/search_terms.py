"""Schedules of other workloads or devices that a search begins with."""

from __future__ import annotations

from dataclasses import dataclass

from fleet.domain.origin import Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """A schedule that was good for another workload, or for this one on another device."""

    mod_json: str
    """Program that it was made for."""

    trace_json: str
    origin: Origin
