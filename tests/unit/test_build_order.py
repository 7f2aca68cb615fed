"""Refusals of `fleet build` that come before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from cross.targets.target import host_target
from fleet.cli import build
from fleet.errors import ImportFailed


@pytest.mark.parametrize("workload", ["missing.onnx", "missing.onnx:conv2d*"])
def test_a_missing_model_starts_no_worker(workload: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    monkeypatch.setattr(build, "one_worker", started.append)
    monkeypatch.chdir(tmp_path)
    order = build.BuildOrder(workload=workload, target=host_target(), output=tmp_path / "built.so", shapes=())

    with pytest.raises(ImportFailed, match=r"missing\.onnx"):
        build.run_build(order)

    assert started == []
