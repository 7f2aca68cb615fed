"""Reference outputs of a model from the usual engine of its format. `fleet.models.engine_turns` times the engine."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fleet.models.importers import frontend_of
from fleet.models.importing.importer import Reference
from fleet.models.importing.value import Model, ModelFormat

logger = logging.getLogger(__name__)

_Outputs: TypeAlias = "tuple[NDArray[np.generic], ...]"
_Runner: TypeAlias = "Callable[[], _Outputs]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceRun:
    """Outputs of a model in the engine of its format."""

    by: str
    """The engine: "onnxruntime", "torch", "ai_edge_litert"."""

    outputs: _Outputs


def reference_outputs(model: Model, inputs: Sequence[NDArray[np.generic]], *, threads: int = 1) -> ReferenceRun | None:
    """Run a model in its engine. Return None if the engine is not installed or refuses the model.

    Args:
        inputs: one array per input of the model, in order.
        threads: cores that it may use.
    """
    ready = engine_ready(model, inputs, threads=threads)
    return ReferenceRun(by=engine_of(model.format), outputs=ready[1]) if ready is not None else None


def engine_ready(
    model: Model, inputs: Sequence[NDArray[np.generic]], *, threads: int
) -> tuple[_Runner, _Outputs] | None:
    """Return a function that runs a model in its engine, and the outputs of its first run.

    Return None if the engine is not installed or refuses the model.
    """
    reference = _installed(model)
    if reference is None:
        return None
    try:
        run = reference.prepare(model, inputs, threads)
        return run, run()
    except Exception as error:  # noqa: BLE001 - the engines' errors share no other base class
        logger.warning(
            "the reference refuses the model",
            extra={"engine": reference.engine, "model": model.title, "reason": str(error)},
        )
        return None


def engine_of(model_format: ModelFormat) -> str:
    """Return the name of a format's engine; empty if it has none."""
    reference = frontend_of(model_format).reference
    return reference.engine if reference else ""


def is_refused(model: Model, inputs: Sequence[NDArray[np.generic]]) -> bool:
    """Tell whether the engine of a model's format does not run it on some inputs; False if it is not installed."""
    reference = _installed(model)
    if reference is None:
        return False
    try:
        reference.prepare(model, inputs, 1)()
    except Exception as error:  # noqa: BLE001 - the engines' errors share no other base class
        logger.debug("refused", extra={"engine": reference.engine, "model": model.title, "reason": str(error)})
        return True
    return False


def _installed(model: Model) -> Reference | None:
    """Return the engine of a model's format, if it has one that is installed."""
    reference = frontend_of(model.format).reference
    return reference if reference and importlib.util.find_spec(reference.engine) else None
