"""The engine of a model's format runs in a process of its own, and only during its turns."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cross.pool.build_pool import BuildPool
from cross.pool.confined import Confined
from fleet.confinement.process import AllowedFiles, missing_features
from fleet.errors import BuildError
from fleet.models.model import Model, load_model
from fleet.optimizer.comparing.engine import engine_ready

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pool() -> Iterator[BuildPool]:
    with BuildPool(1) as pool:
        yield pool


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    import onnx
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [64, 64]) for name in "xy")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "x"], ["y"])], "square", [x], [y])
    path = tmp_path_factory.mktemp("model") / "square.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return load_model(path)


X = np.ones((64, 64), "float32")


async def test_an_engine_runs_in_its_turn_and_cleans_up(pool: BuildPool, model: Model, tmp_path: Path) -> None:
    """Several turns run on the device's processors; afterwards the process takes other tasks, and no pipe is left."""
    async with engine_ready(pool, model, [[X]], folder=tmp_path, threads=1) as engine:
        assert engine is not None
        secs = [await engine.time(3, 0.001, cpus) for cpus in ((), (0,), ())]
        assert all(0 < sec < 1 for sec in secs)

    assert os.listdir(tmp_path) == []  # noqa: PTH208 - in an event loop
    assert pool.submit(len, "task").result(20) == 4


@pytest.mark.skipif(bool(missing_features()), reason=f"this machine has no {missing_features()}")
async def test_a_confined_engine_takes_turns_too(
    pool: BuildPool, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Formats that are code run in confinement; the pipes are the only writable files."""

    def confined(fn: Callable[..., Any], _: Model, *, writable: Path) -> Callable[..., Any]:
        return Confined(fn, AllowedFiles(writable=(str(writable),)))

    monkeypatch.setattr("fleet.optimizer.comparing.engine.having", confined)
    async with engine_ready(pool, model, [[X]], folder=tmp_path, threads=1) as engine:
        assert engine is not None
        assert 0 < await engine.time(1, 0.001, (0,)) < 1


async def test_an_engine_that_refuses_the_model_takes_no_turn(pool: BuildPool, model: Model, tmp_path: Path) -> None:
    """A refused model is handled like a missing engine."""
    async with engine_ready(pool, replace(model, stored=b"no"), [[X]], folder=tmp_path, threads=1) as engine:
        assert engine is None


async def test_an_ended_engine_process_is_an_error(pool: BuildPool, model: Model, tmp_path: Path) -> None:
    """The caller gets an error instead of waiting for its answer."""
    async with engine_ready(pool, model, [[X]], folder=tmp_path, threads=1) as engine:
        assert engine is not None
        assert await engine.time(1, 0.001, ()) > 0
        pool.shutdown(wait=False)
        with pytest.raises(BuildError, match="the engine's process ended"):
            await engine.time(1, 10.0, ())
