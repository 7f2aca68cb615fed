"""A measured candidate, as searches and the cost model use it. The first one loads numpy."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fleet.domain.origin import Origin

Features: TypeAlias = "NDArray[np.float32]"
"""float32, shape [n_stores, n_features], as MetaSchedule's PerStoreFeature has them: mostly log2(x + 1)."""


@functools.cache
def no_features() -> Features:
    """Return the features of a candidate for which they are not known."""
    import numpy as np

    return np.zeros((0, 0), np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One measured candidate."""

    workload: str
    """Hash of the workload. Times are compared within one workload on one device model only."""

    run_sec: float
    """Infinite if it failed: then it is neither proposed again nor used as a parent."""

    trace_json: str = ""
    """Empty if only its features count."""

    mod_json: str = ""
    """Program of the workload, if the schedule is to be tried on another one; else empty."""

    features: Features = field(default_factory=no_features, compare=False, repr=False)
    stores: bytes = field(default=b"", compare=False, repr=False)
    """Its features as the library packs them; empty once they are unpacked."""

    origin: Origin | None = None
    """None: it does not matter."""

    program: int | None = None
    """Hash of its scheduled program; None: not known, so its trace is replayed, which takes 12 to 33 ms."""

    is_disturbed: bool = False
    """Something else ran meanwhile: its time counts a quarter."""

    flop: float = 0.0
    """Operations of the workload. This, its kind and the device count only where observations of several jobs are
    learnt from.
    """

    kind: str = ""
    """Kind of operator: see `fleet.domain.operators.workload_kind`."""

    target_key: str = ""
    """TVM target of the measurement."""

    device_model: str = ""
    instruction_set: str = ""
    """Shared by device models: "avx512 vnni", "neon"; see `cross.targets.target.Target`."""

    record_id: int = 0
    """Id of its record in the library; 0: not stored."""

    @property
    def is_of_rules(self) -> bool:
        """True if it is known to come from MetaSchedule's rules."""
        return self.origin is not None and self.origin.is_of_rules

    @property
    def has_features(self) -> bool:
        """True if the model can learn from it: its features are known, and its program stores something."""
        return len(self.features) > 0
