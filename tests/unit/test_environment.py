"""Environment variables of child processes."""

from __future__ import annotations

import os

import pytest

from cross.pool.build_pool import BuildPool
from fleet.base.environment import for_kernels, without_secrets

SECRETS = {
    "FLEET_LIBRARY": "postgresql://fleet:s3cret@db/fleet",
    "SECRET_OF_OPERATOR": "s3cret",
    "NVIDIA_API_KEY": "s3cret",
    "TVM_MIRROR": "https://me:s3cret@mirror/",
}
NEEDED = {"PATH": "/bin", "TVM_NUM_THREADS": "2", "LC_ALL": "C", "CUDA_VISIBLE_DEVICES": "0", "PYTHONPATH": "/x"}


def test_kernels_get_only_allowed_variables() -> None:
    """Unknown variables are left out, since they may contain anything."""
    assert for_kernels({**SECRETS, **NEEDED, "OPERATORS_OWN": "1"}) == NEEDED


def test_builds_see_all_but_secrets() -> None:
    """A user's own builder may read the user's variables."""
    assert without_secrets({**SECRETS, **NEEDED, "OPERATORS_OWN": "1"}) == {**NEEDED, "OPERATORS_OWN": "1"}


def environment_of_a_build() -> str:
    """Return the environments of the build process and its parent."""
    with open(f"/proc/{os.getppid()}/environ") as file:  # noqa: PTH123 - one read
        return file.read() + repr(dict(os.environ))


@pytest.mark.slow
def test_a_build_process_has_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the build process nor its fork server has the secrets; the starting process keeps its own."""
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    with BuildPool(1) as pool:
        assert "s3cret" not in pool.submit(environment_of_a_build).result()
    assert os.environ["FLEET_LIBRARY"] == SECRETS["FLEET_LIBRARY"]
