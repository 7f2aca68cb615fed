"""An LSTM for emulated boards, with its static schedule and the expected outputs by the equations of ONNX."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cross.compile.library import build
from fleet.checking.index_inputs import inputs_of
from fleet.models.recurrent_layer import Cell, Recurrence
from fleet.models.recurrent_program import recurrence_program
from fleet.spaces.space import finished, static_schedule
from fleet.workloads.workload import module_of, workload_of

if TYPE_CHECKING:
    from cross.targets.target import Target

LAYER = Recurrence(
    cell=Cell.LSTM,
    steps=4,
    batch=1,
    hidden=128,
    is_reverse=(True,),
    activations=("Sigmoid", "Tanh", "Tanh"),
)
"""Large enough that the cores share each step and meet at a barrier."""


def build_lstm(target: Target, folder: Path) -> Path:
    """Build the layer for a target and write its expected outputs beside it; return its library."""
    import tvm

    workload = workload_of(
        tvm.IRModule({"main": recurrence_program(LAYER).with_attr("global_symbol", "main")}), name="lstm"
    )
    schedule = static_schedule(module_of(workload.mod_json), target)
    if schedule is None:
        raise ValueError(f"no schedule for {target}")
    built = build(finished(schedule.mod, target), target, folder, args=workload.args)
    given, weights = (np.asarray(each) for each in inputs_of(workload, 0)[:2])
    answers, hidden, cell = _by_equations(given, weights)
    np.savez(built.path.with_suffix(".npz"), given, weights, answers=answers, hidden=hidden, cell=cell)
    return built.path


@dataclasses.dataclass(frozen=True)
class Answers:
    """Inputs and expected outputs of the built layer."""

    inputs: list[np.ndarray]
    expected: list[np.ndarray]


def answers_of(path: Path) -> Answers:
    """Return the inputs and expected outputs of a built layer."""
    with np.load(path.with_suffix(".npz")) as stored:
        return Answers([stored["arr_0"], stored["arr_1"]], [stored[name] for name in ("answers", "hidden", "cell")])


def _by_equations(given: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    size = LAYER.hidden
    by_gate = weights[0].transpose(2, 1, 0, 3).reshape(LAYER.gates, size, size).astype(np.float64)
    hidden, cell = np.zeros(size), np.zeros(size)
    shown = np.zeros((LAYER.steps, 1, 1, size))
    for step in reversed(range(LAYER.steps)):
        put_in, put_out, forget, candidate = given[step, 0, 0] + np.einsum("k,gkj->gj", hidden, by_gate)
        cell = _sigmoid(forget) * cell + _sigmoid(put_in) * np.tanh(candidate)
        hidden = _sigmoid(put_out) * np.tanh(cell)
        shown[step, 0, 0] = hidden
    state = (1, 1, size)
    return shown.astype("f4"), hidden.reshape(state).astype("f4"), cell.reshape(state).astype("f4")


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-x)))
