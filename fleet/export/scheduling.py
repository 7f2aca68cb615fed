"""`fleet.schedule` and `fleet.design_space`: the static schedules of one function for users of TIR and TE.

    scheduled = fleet.schedule(mod, target)
    library = tvm.compile(scheduled, target, tir_pipeline=fleet.tir_pipeline(target))

TVM runs in the caller's process here, which has it loaded anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tvm
from tvm import te
from tvm.ir import IRModule
from tvm.te import Tensor
from tvm.tirx import PrimFunc

from cross.targets.intrinsics import load_intrinsics
from cross.targets.target import Target
from fleet.errors import InvalidRequest
from fleet.export.pipeline import target_in
from fleet.spaces.design_space import Space
from fleet.spaces.facts import ProcessorFacts, assume, facts_of
from fleet.spaces.space import finished, space_on


def schedule(
    mod: IRModule | PrimFunc | Sequence[Tensor],
    target: str | Mapping[str, object] | tvm.target.Target,
    **options: int | bool,
) -> IRModule:
    """Return a function with its static schedule: the most promising one, found without a trial.

    Args:
        mod: a module with one function, a function, or TE tensors: its arguments, inputs first.
        target: a board ("rpi4-64"), "host", a TVM target as JSON or dict, or a `tvm.target.Target`.
        options: facts of the processor to assume instead of the target's: `lanes` (float32 numbers in a vector
            register), `registers` (vector registers), `cores`, `l1_bytes`, `l2_bytes`, and the others of
            `fleet.spaces.facts.ProcessorFacts`. GPUs have TVM's default schedules, without options.

    Returns:
        A module for `tvm.compile`, with `fleet.tir_pipeline(target)` as its lowering.

    Raises:
        ConfigError: a target that cannot work.
        InvalidRequest: no single function, a function without a schedule, or an option that is no fact.
    """
    name, own, parsed = *_single_function(mod), target_in(target)
    load_intrinsics(parsed)
    space = _space(name, own, parsed, options)
    found = next(space.schedules_at(range(len(space.choices))), None)
    if found is None:
        raise _no_schedule(name)
    function = finished(found.mod, parsed)["main"].with_attrs({"global_symbol": name, "tirx.is_scheduled": True})
    return tvm.IRModule({name: function})


def design_space(
    mod: IRModule | PrimFunc | Sequence[Tensor],
    target: str | Mapping[str, object] | tvm.target.Target,
    **options: int | bool,
) -> Space:
    """Return the schedules that a function can have; printed, it lists the knobs and their options.

    On a GPU it is TVM's default schedule, unless an installed rule has others. The arguments are those of
    `fleet.schedule`.

    Raises:
        ConfigError: a target that cannot work.
        InvalidRequest: as `fleet.schedule`.
    """
    name, own, parsed = *_single_function(mod), target_in(target)
    load_intrinsics(parsed)
    return _space(name, own, parsed, options)


def _space(name: str, own: IRModule, target: Target, options: Mapping[str, int | bool]) -> Space:
    facts = facts_of(target)
    if options and not isinstance(facts, ProcessorFacts):
        raise InvalidRequest(f"{', '.join(options)}: facts of a processor, and {target.json} is none; leave them out")
    if isinstance(facts, ProcessorFacts):
        facts = assume(facts, options)
    space = None if facts is None else space_on(own, facts)
    if space is None:
        raise _no_schedule(name)
    return space


def _no_schedule(name: str) -> InvalidRequest:
    return InvalidRequest(
        f"the function {name!r} has no static schedule for this target: it is opaque, or has sizes that are not fixed; "
        "compile it as it is, or give its tensors fixed sizes"
    )


def _single_function(mod: IRModule | PrimFunc | Sequence[Tensor]) -> tuple[str, IRModule]:
    """Return the name of the only function, and a module in which it is called "main".

    Raises:
        InvalidRequest: there are several or none, or it is no TIR function.
    """
    if isinstance(mod, tvm.IRModule):
        functions = {variable.name_hint: function for variable, function in mod.functions.items()}
    elif isinstance(mod, PrimFunc):
        functions = {str((mod.attrs or {}).get("global_symbol", "main")): mod}
    elif isinstance(mod, (list, tuple)) and mod and all(isinstance(tensor, te.Tensor) for tensor in mod):
        functions = {"main": te.create_prim_func(list(mod))}
    else:
        raise InvalidRequest(f"{type(mod).__name__}: give an IRModule, a PrimFunc, or a list of TE tensors")
    if len(functions) != 1:
        raise InvalidRequest(
            f"the module has {len(functions)} functions ({', '.join(sorted(functions)) or 'none'}); give one: "
            "tvm.IRModule({name: mod[name]}), or use fleet.pipeline for a whole model"
        )
    [(name, function)] = functions.items()
    if not isinstance(function, PrimFunc):
        raise InvalidRequest(
            f"the function {name!r} is no TIR function, but {type(function).__name__}; use fleet.pipeline for a model"
        )
    return name, tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
