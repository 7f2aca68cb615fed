"""Artifacts that the tests behind a TVM RPC server measure."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def matmul(agent_models: Path) -> bytes:
    return (agent_models / "matmul.so").read_bytes()
