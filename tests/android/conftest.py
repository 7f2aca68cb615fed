"""What the tests behind a TVM RPC server share: the artifacts that they measure there."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def matmul(agent_models: Path) -> bytes:
    return (agent_models / "matmul.so").read_bytes()
