"""Content of a profile: the operators of a model, each in its place and alone, and the whole model beside ONNX Runtime.

Pure: times and workloads in, values out. An operator that takes clearly longer in the model than alone comes first,
the largest loss first: tuning it alone does not help, its weights are cold there or its neighbours have the caches.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from fleet.domain.measuring import OperatorCall
from fleet.domain.roofline import Roofline, share_of
from fleet.domain.workload import Workload
from fleet.models.reference_profile import ReferenceProfile
from fleet.workloads.slices import program_of

VM_PREFIX = "vm.builtin."
"""Prefix of the Relax VM's own functions, which allocate and check."""

SLOWER_IN_PLACE = 1.15
"""From this ratio on, an operator counts as slower in the model than alone: two timings of one differ by up to this."""

CALL_SEC = 4e-6
"""Overhead of a call in the VM: 2.7 us, and the instrument on a processor."""


class OperatorGroup(enum.StrEnum):
    """Group of operators, common to two engines, each of which cuts a model into operators of its own."""

    CONVOLUTION = "convolutions"
    PRODUCT = "matrix products"
    REDUCTION = "pooling, norms, softmax"
    OTHER = "element-wise and moves"


_GROUPS = {
    OperatorGroup.CONVOLUTION: re.compile(r"conv(?!ert)", re.IGNORECASE),
    OperatorGroup.PRODUCT: re.compile(r"matmul|dense|gemm|attention", re.IGNORECASE),
    OperatorGroup.REDUCTION: re.compile(
        r"pool|softmax|norm|reduce|^(?:fused_)?(?:arg)?(?:max|min|mean|sum|prod|std|variance)(?:\d|_|\b)", re.IGNORECASE
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledOperator:
    """One function of the model, over all its calls in one run."""

    name: str
    """Its function in the model."""

    operator: str
    """A name for people."""

    group: OperatorGroup
    count: int
    """Calls in one run."""

    in_place_sec: float
    """All calls together, the median of each [s]."""

    in_place_min_sec: float
    alone_sec: float | None
    """Median time of as many calls alone, with warm caches [s]; None: not measured, or it failed."""

    alone_min_sec: float | None

    flop: float
    """Operations of all calls; 0 if it only moves data, or is unknown."""

    size_bytes: int
    """Size of all arguments of all calls; 0: not known."""

    call_sec: float
    """Overhead of all calls in the VM [s]: a difference below it is no loss."""

    least_sec: float | None
    """Limit of the device's roofline [s]."""

    is_memory_bound: bool

    @property
    def ratio(self) -> float | None:
        """Time in place over time alone, of the shortest runs: others on the machine disturb these least."""
        return self.in_place_min_sec / self.alone_min_sec if self.alone_min_sec else None

    @property
    def lost_sec(self) -> float:
        """Gain of a run if it took as long as alone [s]; 0 where it is not clearly slower."""
        return self.in_place_min_sec - self.alone_min_sec if self.alone_min_sec and self.is_slower_in_place else 0.0

    @property
    def is_slower_in_place(self) -> bool:
        """True if it takes clearly longer in the model."""
        if self.alone_min_sec is None:
            return False
        return self.in_place_min_sec > max(SLOWER_IN_PLACE * self.alone_min_sec, self.alone_min_sec + self.call_sec)

    @property
    def gflops(self) -> float | None:
        """Billions of operations per second, in place."""
        return self.flop / self.in_place_sec / 1e9 if self.flop and self.in_place_sec else None

    @property
    def roofline_share(self) -> float | None:
        """Share of the device's roofline that it reaches in place."""
        return share_of(self.least_sec, self.in_place_sec)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """A model on a device."""

    title: str
    device: str
    device_model: str
    tuned: int
    """Workloads that run with a schedule of the library."""

    total_sec: float
    """Median of whole runs, without the instrument [s]."""

    instrumented_sec: float
    """Median of whole runs with the instrument [s]."""

    operators: tuple[ProfiledOperator, ...]
    """Slower in place first, then the costliest."""

    vm_sec: float
    """The VM's own functions [s]."""

    vm_calls: int
    roofline: Roofline
    reference: ReferenceProfile | None
    """ONNX Runtime, where the device is this machine."""

    notes: tuple[str, ...] = ()
    """Notes on the figures: disturbances, operators that could not be measured alone."""

    @property
    def operators_sec(self) -> float:
        """All operators in their places [s]."""
        return sum(item.in_place_sec for item in self.operators)

    @property
    def rest_sec(self) -> float:
        """Time outside of operators and functions of the VM: the VM's loop, and the error of the parts [s]."""
        return self.total_sec - self.operators_sec - self.vm_sec

    def to_json(self) -> dict[str, object]:
        """Return plain values."""
        reference = self.reference
        return {
            "model": self.title,
            "device": self.device,
            "device_model": self.device_model,
            "tuned": self.tuned,
            "total_ms": self.total_sec * 1e3,
            "instrumented_ms": self.instrumented_sec * 1e3,
            "operators_ms": self.operators_sec * 1e3,
            "vm_ms": self.vm_sec * 1e3,
            "vm_calls": self.vm_calls,
            "rest_ms": self.rest_sec * 1e3,
            "operators": [_operator_json(item) for item in self.operators],
            "groups": [
                {"group": group.value, "ours_ms": ours * 1e3, "onnxruntime_ms": theirs * 1e3 if reference else None}
                for group, ours, theirs in by_group(self)
            ],
            "onnxruntime": None if reference is None else _reference_json(reference),
            "roofline": asdict(self.roofline),
            "notes": list(self.notes),
        }


def group_of(operator: str) -> OperatorGroup:
    """Return the group of an operator by its name: TVM's, one for people, or ONNX Runtime's."""
    for group, pattern in _GROUPS.items():
        if pattern.search(operator):
            return group
    return OperatorGroup.OTHER


def join(
    calls: Iterable[OperatorCall],
    workloads: Sequence[Workload],
    alone: Mapping[str, OperatorCall],
    roofline: Roofline,
    *,
    call_sec: float = CALL_SEC,
) -> tuple[ProfiledOperator, ...]:
    """Return the operators of a model, sorted so that operators slower in the model than alone come first.

    Args:
        calls: all calls of a run; the VM's own are left out.
        alone: one call alone, by structural hash of the workload.
        call_sec: overhead of one call in the VM.
    """
    by_name = {workload.name: workload for workload in workloads}
    calls_by_name: dict[str, list[OperatorCall]] = {}
    for call in calls:
        if not call.function.startswith(VM_PREFIX):
            calls_by_name.setdefault(program_of(call.function), []).append(call)
    found = [
        _operator(name, own, by_name.get(name), alone, roofline, call_sec)
        for name, own in sorted(calls_by_name.items())
    ]
    return tuple(sorted(found, key=lambda item: (-item.lost_sec, -item.in_place_sec)))


def by_group(profile: ModelProfile) -> list[tuple[OperatorGroup, float, float]]:
    """Return each group with our time and ONNX Runtime's (0 without it) [s]; groups that neither has are left out."""
    ours, theirs = dict.fromkeys(OperatorGroup, 0.0), dict.fromkeys(OperatorGroup, 0.0)
    for item in profile.operators:
        ours[item.group] += item.in_place_sec
    for node in profile.reference.nodes if profile.reference is not None else ():
        theirs[group_of(node.op_type)] += node.median_sec
    return [(group, ours[group], theirs[group]) for group in OperatorGroup if ours[group] or theirs[group]]


def _operator(
    name: str,
    calls: Sequence[OperatorCall],
    workload: Workload | None,
    alone: Mapping[str, OperatorCall],
    roofline: Roofline,
    call_sec: float,
) -> ProfiledOperator:
    count = len(calls)
    flop = workload.flop if workload is not None else 0.0
    size_bytes = sum(spec.size_bytes for spec in workload.args) if workload is not None else 0
    single = alone.get(workload.shash) if workload is not None else None
    least_sec = roofline.least_sec(flop, size_bytes)
    operator = workload.operator if workload is not None else name
    return ProfiledOperator(
        name=name,
        operator=operator,
        group=group_of(operator),
        count=count,
        in_place_sec=sum(call.median_sec for call in calls),
        in_place_min_sec=sum(call.min_sec for call in calls),
        alone_sec=single.median_sec * count if single is not None else None,
        alone_min_sec=single.min_sec * count if single is not None else None,
        call_sec=call_sec * count,
        flop=flop * count,
        size_bytes=size_bytes * count,
        least_sec=least_sec * count if least_sec is not None else None,
        is_memory_bound=roofline.is_memory_bound(flop, size_bytes),
    )


def _operator_json(item: ProfiledOperator) -> dict[str, object]:
    alone, alone_min, least = item.alone_sec, item.alone_min_sec, item.least_sec
    return {
        "name": item.name,
        "operator": item.operator,
        "group": item.group.value,
        "count": item.count,
        "in_place_us": item.in_place_sec * 1e6,
        "in_place_min_us": item.in_place_min_sec * 1e6,
        "alone_us": alone * 1e6 if alone is not None else None,
        "alone_min_us": alone_min * 1e6 if alone_min is not None else None,
        "ratio": item.ratio,
        "is_slower_in_place": item.is_slower_in_place,
        "flop": item.flop,
        "bytes": item.size_bytes,
        "gflops": item.gflops,
        "roofline_us": least * 1e6 if least is not None else None,
        "roofline_share": item.roofline_share,
        "is_memory_bound": item.is_memory_bound,
    }


def _reference_json(reference: ReferenceProfile) -> dict[str, object]:
    secs: dict[str, list[float]] = {}
    for node in reference.nodes:
        secs.setdefault(node.op_type, []).append(node.median_sec)
    return {
        "total_ms": reference.median_sec * 1e3,
        "nodes_ms": sum(node.median_sec for node in reference.nodes) * 1e3,
        "threads": reference.threads,
        "by_op_type": [
            {"op_type": op_type, "count": len(own), "time_us": sum(own) * 1e6}
            for op_type, own in sorted(secs.items(), key=lambda item: -sum(item[1]))
        ],
    }
