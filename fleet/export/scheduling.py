"""`fleet.schedule` and `fleet.design_space`: the static schedules of one function for users of TIR and TE.

    scheduled = fleet.schedule(mod, target)
    library = tvm.compile(scheduled, target, tir_pipeline=fleet.tir_pipeline(target))

TVM runs in the caller's process here, which has it loaded anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cross.targets.intrinsics import load_intrinsics
from cross.targets.target import Target
from fleet.errors import InvalidRequest
from fleet.export.pipeline import target_in
from fleet.spaces.design_space import Space
from fleet.spaces.facts import assume, processor_facts
from fleet.spaces.space import finished, space_on
from fleet.workloads.default_schedule import default_schedule

if TYPE_CHECKING:
    import tvm.target
    from tvm.ir import IRModule
    from tvm.te import Tensor
    from tvm.tirx import PrimFunc


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
    import tvm

    name, own, parsed = *_single_function(mod), target_in(target)
    load_intrinsics(parsed)
    if processor_facts(parsed) is None:
        _refuse_options(parsed, options)
        scheduled = default_schedule(own, parsed)
    else:
        space = _space(name, own, parsed, options)
        scheduled = finished(next(space.schedules_at(range(len(space.choices)))).mod, parsed)
    function = scheduled["main"].with_attrs({"global_symbol": name, "tirx.is_scheduled": True})
    return tvm.IRModule({name: function})


def design_space(
    mod: IRModule | PrimFunc | Sequence[Tensor],
    target: str | Mapping[str, object] | tvm.target.Target,
    **options: int | bool,
) -> Space:
    """Return the schedules that a function can have on a processor; printed, it lists the knobs and their options.

    Args:
        mod: as for `fleet.schedule`.
        target: as for `fleet.schedule`, but a processor.
        options: as for `fleet.schedule`.

    Raises:
        ConfigError: a target that cannot work.
        InvalidRequest: as `fleet.schedule`, or a GPU: its space is that of MetaSchedule's rules.
    """
    name, own, parsed = *_single_function(mod), target_in(target)
    load_intrinsics(parsed)
    return _space(name, own, parsed, options)


def _space(name: str, own: IRModule, target: Target, options: Mapping[str, int | bool]) -> Space:
    facts = processor_facts(target)
    if facts is None:
        raise InvalidRequest(f"no processor: {target.json}; `fleet tune` searches the space of MetaSchedule's rules")
    space = space_on(own, assume(facts, options))
    if space is None:
        raise InvalidRequest(
            f"the function {name!r} has no static schedule: it is opaque, or has sizes that are not fixed; "
            "compile it as it is, or give its tensors fixed sizes"
        )
    return space


def _refuse_options(target: Target, options: Mapping[str, int | bool]) -> None:
    if options:
        raise InvalidRequest(f"{', '.join(options)}: facts of a processor, and {target.json} is none; leave them out")


def _single_function(mod: IRModule | PrimFunc | Sequence[Tensor]) -> tuple[str, IRModule]:
    """Return the name of the only function, and a module in which it is called "main".

    Raises:
        InvalidRequest: there are several or none, or it is no TIR function.
    """
    import tvm
    from tvm import te
    from tvm.tirx import PrimFunc

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
