"""What the tests behind a TVM RPC server share: the artifacts that they measure there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def agent_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    builder = Path(__file__).parents[1] / "service" / "agent_models.py"
    subprocess.run([sys.executable, builder, folder], check=True, timeout=100)
    return folder


@pytest.fixture(scope="session")
def matmul(agent_models: Path) -> bytes:
    return (agent_models / "matmul.so").read_bytes()
