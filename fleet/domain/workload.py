"""A workload: one tensor program to optimize, as text that any process can read back."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from fleet.base.text import sanitize
from fleet.domain.measuring import TensorSpec
from fleet.domain.operators import describe_workload, workload_kind

_FEWEST_TERMS = 4096
"""Minimum terms of a model: its other operators besides sums, norms and activations round as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadOutline:
    """A workload without its program, which takes most of the time to read."""

    shash: str
    """Structural hash in decimal, as in MetaSchedule's database_workload.json."""

    name: str
    args: tuple[TensorSpec, ...] = ()
    """Arguments in order, outputs marked; empty when unknown."""

    @property
    def kind(self) -> str:
        """Kind of operator, as the library knows it of its records: "conv2d 3x3"; empty if it is unknown."""
        return workload_kind(self.name, self.args)

    @property
    def operator(self) -> str:
        """A name for people: "conv2d 3x3 64->128 56x56"; TVM's own if that is unknown without the program."""
        return describe_workload(self.name, self.args)

    @property
    def names(self) -> tuple[str, str]:
        """Names that a pattern may match: TVM's and the one for people."""
        return self.name, self.operator


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWorkload(WorkloadOutline):
    """A workload as the library keeps it."""

    mod_json: str
    """The program, as tvm.ir.save_json writes it."""

    flop: float = 0.0
    """Floating-point operations of one run; 0 = unknown."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.shash}: {sanitize(self.operator)}>"

    @property
    def operator(self) -> str:
        """A name for people: "conv2d 3x3 64->128 56x56"."""
        return describe_workload(self.name, self.args, self.mod_json)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Workload(StoredWorkload):
    """One tensor program of a model, with all that is needed to tune it. Its name is unique within the model."""

    weight: int
    """Number of its calls in one run of the model."""

    largest_index: int | None = None
    """Largest valid value of integer inputs that are used as indices; None: there are none."""

    input_scales: tuple[tuple[int, float], ...] = ()
    """Scale factors for random inputs, by argument index. With larger numbers, rounding errors dominate the outputs."""

    @property
    def terms(self) -> int | None:
        """Number of terms added for one element of the output, from the operations; None if unknown."""
        outputs = sum(math.prod(spec.shape) for spec in self.args if spec.is_output)
        return max(1, round(self.flop / 2 / outputs)) if self.flop and outputs else None


def terms_of_model(workloads: Iterable[Workload]) -> int:
    """Return the number of terms behind an output of a model: consecutive sums, each with its own rounding."""
    return max(_FEWEST_TERMS, sum((workload.terms or 0) * workload.weight for workload in workloads))
