"""The plain runtime with a fabric beside it: device_agents.runtimes.fabric without TVM's runtime."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from device_agents.runtimes.evaluating import TimeRepeats
from device_agents.runtimes.fabric_calls import PREFIX, FabricCalls
from device_agents.runtimes.plain.arguments import PackedArguments
from device_agents.runtimes.plain.runtime import PlainRuntime
from device_agents.runtimes.proving import NotProvable, ProofParts
from fleet.domain.measuring import Call, Evaluator, Measurement, Tensor, Trial
from fleet.domain.proving import ProofOrder


class PlainFabricRuntime(PlainRuntime):
    """Runs candidates on a board's 32-bit CPU, beside its fabric."""

    def __init__(self, *, registers_yaml: str, root: str = "/") -> None:
        """Register the functions. Arguments and errors are those of FabricCalls."""
        super().__init__()
        self._calls = FabricCalls(registers_yaml, Path(root))
        for name in self._calls.names:
            self.register(f"{PREFIX}{name}", partial(self._calls.call, name))

    def measure(self, trial: Trial, path: str) -> Measurement:
        measure = super().measure
        return self._calls.measure(trial, lambda plain: measure(plain, path))

    def prepare_proof(self, order: ProofOrder) -> ProofParts:
        raise NotProvable("its times are cycles of the fabric, which no other clock counts")

    def call(self, call: Call, path: str) -> list[Tensor]:
        run = super().call
        return self._calls.explain(lambda: run(call, path))

    def _make_time_repeats(self, function: int, arguments: PackedArguments, evaluator: Evaluator) -> TimeRepeats:
        by_host = super()._make_time_repeats(function, arguments, evaluator)
        return self._calls.count_repeats(partial(self._run, function, arguments), by_host)
