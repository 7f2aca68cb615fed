"""Lowers a model's operators to fused tensor programs: the passes in their order, each with its reason.

    lowered = lower(mod, parse_target('{"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2}'))

`main` of the result calls fused PrimFuncs only. Those that take weights say so in the attribute "fleet.constants"
(fleet.graph.marking). CPUs get channels last; the best layout of GPUs depends on their rules, so they keep the model's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tvm
from tvm import relax
from tvm.ir import IRModule

from cross.targets.integer_units import IntegerUnit, integer_unit
from cross.targets.target import Target, make_target
from fleet.graph.attention import ATTENTION
from fleet.graph.block_names import with_steady_names
from fleet.graph.bounds import BOUNDS
from fleet.graph.broadcasts import BROADCASTS
from fleet.graph.channels_last import CHANNELS_LAST
from fleet.graph.cleaning import CLEANING, FINISHING
from fleet.graph.columns import COLUMNS
from fleet.graph.folding import FOLDING
from fleet.graph.groups import GROUPS
from fleet.graph.integer_products import integer_product_rules
from fleet.graph.logarithms import LOGARITHMS
from fleet.graph.marking import mark_constants
from fleet.graph.norms import NORMS
from fleet.graph.outputs import own_outputs
from fleet.graph.pooling import POOLING
from fleet.graph.quantized import in_integers
from fleet.graph.rebuilding import rewrite
from fleet.graph.scaling import SCALING
from fleet.graph.shuffles import SHUFFLES
from fleet.graph.upsampling import UPSAMPLING
from fleet.graph.winograd import WINOGRAD


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One pass of the pipeline."""

    name: str
    reason: str
    """Why the model is faster, or can be tuned at all, with it."""

    run: Callable[[IRModule], IRModule]


def lower(mod: IRModule, target: Target) -> IRModule:
    """Return a model, a Relax module of operators, as calls of fused tensor programs for a target."""
    with make_target(target):
        for step in steps(target):
            mod = step.run(mod)
    return mod


def steps(target: Target) -> list[Step]:
    """Return the passes for a target, in order. Call it with that target as TVM's current one."""
    unit = integer_unit(target)
    quantized = [] if unit is None else [_compute_in_integers(unit)]
    padded = [] if unit is None else [_pad_integers(unit)]
    by_layout = [_CHANNELS_LAST, _LAYERS, _FINISH, *padded, _GROUP, _FILTER] if target.is_processor else [_FINISH]
    return [*quantized, _CLEAN, *by_layout, _LEGALIZE, _FUSE, _MARK]


def _compute_in_integers(unit: IntegerUnit) -> Step:
    reason = "in integers a vector holds up to four times as many numbers, and a quantized model's need no more memory"
    return Step(name="integers", reason=reason, run=lambda mod: in_integers(mod, unit))


def _pad_integers(unit: IntegerUnit) -> Step:
    reason = "an integer convolution pads its data as it reads it, in the type that the processor multiplies"
    return Step(name="pad integers", reason=reason, run=lambda mod: rewrite(mod, integer_product_rules(unit)))


def _clean(mod: IRModule) -> IRModule:
    return rewrite(mod, FOLDING, BROADCASTS, CLEANING, SCALING, BOUNDS, POOLING)


def _channels_last(mod: IRModule) -> IRModule:
    return rewrite(mod, FOLDING, CLEANING, UPSAMPLING, CHANNELS_LAST)


def _layers(mod: IRModule) -> IRModule:
    return rewrite(mod, FOLDING, ATTENTION, NORMS, LOGARITHMS, CLEANING)


def _finish(mod: IRModule) -> IRModule:
    return relax.transform.EliminateCommonSubexpr()(rewrite(mod, FOLDING, FINISHING, CLEANING))


def _group(mod: IRModule) -> IRModule:
    return rewrite(mod, FOLDING, SHUFFLES, GROUPS, COLUMNS, CLEANING)


def _filter(mod: IRModule) -> IRModule:
    return rewrite(mod, WINOGRAD)


def _legalize(mod: IRModule) -> IRModule:
    return relax.transform.LegalizeOps(enable_warning=False)(mod)


def _fuse(mod: IRModule) -> IRModule:
    passes = [
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FoldConstant(),
        relax.transform.CanonicalizeBindings(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
        relax.transform.DeadCodeElimination(),
    ]
    return with_steady_names(own_outputs(tvm.transform.Sequential(passes)(mod)))


_CLEAN = Step(
    name="clean",
    reason="fold dropout, batch norms and reshaped constants into the weights, so that no run computes them",
    run=_clean,
)
_CHANNELS_LAST = Step(
    name="channels last",
    reason="put channels innermost, so that convolutions read and write whole vectors",
    run=_channels_last,
)
_LAYERS = Step(
    name="layers",
    reason="compute attention and norms without intermediate tensors in memory or transposed heads",
    run=_layers,
)
_FINISH = Step(
    name="finish",
    reason="replace transposes of axes of size 1 by reshapes; eliminate common subexpressions",
    run=_finish,
)
_GROUP = Step(
    name="group",
    reason="turn channel shuffles into index arithmetic; read whole vectors instead of scalars",
    run=_group,
)
_FILTER = Step(
    name="filter",
    reason="use Winograd's algorithm for 3x3 convolutions: 36 multiplications for 16 results instead of 144",
    run=_filter,
)
_LEGALIZE = Step(name="legalize", reason="replace operators by tensor programs, which can be scheduled", run=_legalize)
_FUSE = Step(
    name="fuse",
    reason="fuse bias, activation and residual, so that they stay in registers",
    run=_fuse,
)
_MARK = Step(
    name="mark constants", reason="mark weights, which a schedule may pack; it may not pack inputs", run=mark_constants
)
