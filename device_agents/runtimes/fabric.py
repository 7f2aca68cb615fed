"""Runs TVM modules with inner loops that call the fabric, and measures them in the fabric's clock cycles.

Each function of the description becomes the packed function "fabric.<name>" of this process. A module's extern call of
it (`T.call_packed("fabric.gemm_i8", ...)`) finds it by that name; device_agents.fabric.reader explains the description,
device_agents.runtimes.fabric_calls the meaning of a time.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from device_agents.runtimes.evaluating import TimeRepeats
from device_agents.runtimes.fabric_calls import PREFIX, FabricCalls
from device_agents.runtimes.proving import NotProvable, ProofParts
from device_agents.runtimes.tvm import TvmRuntime, preload
from fleet.domain.measuring import Call, Evaluator, Measurement, Tensor, Trial
from fleet.domain.proving import ProofOrder

if TYPE_CHECKING:
    import tvm_ffi

    from device_agents.runtimes.tvm import PackedArgument

__all__ = ["FabricRuntime", "preload"]


class FabricRuntime(TvmRuntime):
    """Runs candidates on a board's CPU, beside its fabric."""

    def __init__(self, *, registers_yaml: str = "", root: str = "/") -> None:
        """Register the functions. Arguments and errors are those of FabricCalls."""
        super().__init__()
        self._calls = FabricCalls(registers_yaml, Path(root))
        for name in self._calls.names:
            function = partial(self._calls.call, name)
            self._ffi.register_global_func(f"{PREFIX}{name}", lambda *v, f=function: f(*v), override=True)

    def measure(self, trial: Trial, path: str) -> Measurement:
        measure = super().measure
        return self._calls.measure(trial, lambda plain: measure(plain, path))

    def prepare_proof(self, order: ProofOrder) -> ProofParts:
        raise NotProvable("its times are cycles of the fabric, which no other clock counts")

    def call(self, call: Call, path: str) -> list[Tensor]:
        run = super().call
        return self._calls.explain(lambda: run(call, path))

    def _make_time_repeats(
        self, module: tvm_ffi.Module, function: str, arguments: list[PackedArgument], evaluator: Evaluator
    ) -> TimeRepeats:
        by_host = super()._make_time_repeats(module, function, arguments, evaluator)
        return self._calls.count_repeats(partial(module.get_function(function), *arguments), by_host)
