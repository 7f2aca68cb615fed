"""Build and measuring behind a record: facts that tell whether its time still holds for code that is built today."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from fleet.domain.measuring import Evaluator

_USUAL = asdict(Evaluator())


@dataclass(frozen=True, slots=True, kw_only=True)
class Making:
    """Code of a record, and how it was timed."""

    object_digest: str = ""
    """ "sha256:<hex>" of the object code before linking; empty: not known."""

    version: str = ""
    """Version of this package that built the code; empty: not known."""

    evaluator: Mapping[str, object] = field(default_factory=dict)
    """Parameters of its timing that differ from the defaults of `Evaluator`, JSON-ready."""


def evaluator_facts(evaluator: Evaluator) -> dict[str, object]:
    """Return the parameters that differ from the defaults."""
    return {name: value for name, value in asdict(evaluator).items() if value != _USUAL[name]}
