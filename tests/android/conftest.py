"""What the tests behind a TVM RPC server share: the artifacts that they measure there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs import run_module


@pytest.fixture(scope="session")
def agent_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    run_module("tests.service.agent_models", folder)
    return folder


@pytest.fixture(scope="session")
def matmul(agent_models: Path) -> bytes:
    return (agent_models / "matmul.so").read_bytes()
