"""Kernels that lie about their time are refused by a proof from outside, and honest ones are proven.

They run in namespaces of their own and in the jail, see tests/service/lying_site.py.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

_APART = ["--pid", "--fork", "--kill-child", "--mount-proc", "--ipc", "--net"]
_ENTER = 'mount -t tmpfs none /dev/shm; ip link set lo up && exec "$@"'
_TRUE_SEC = 0.02
_LIES = ("forge", "memo", "memo_by_content", "lazy", "slow_clocks")
_HONEST = ("honest_tiny", "honest_1us", "honest_100us", "honest_20ms")

Outcome = dict[str, Any]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """Claim and proof of each kernel."""
    folder = tmp_path_factory.mktemp("lies")
    source = Path(__file__).with_name("lying_kernels.c")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-pthread", source, "-o", folder / "kernels.so"], check=True)
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    site = [sys.executable, "-m", "tests.service.lying_site", folder, *_LIES, "forge_rows", *_HONEST]
    done = subprocess.run(
        ["unshare", *as_root, *_APART, "sh", "-c", _ENTER, "sh", *site],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    found: dict[str, Outcome] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", _LIES)
def test_a_lie_is_believed_by_a_trial_and_refused_by_a_proof(name: str, outcomes: dict[str, Outcome]) -> None:
    """Each kernel takes 20 ms and claims a thousandth of it at most.

    Clock, pipe and memory of the worker are under the kernel's control; the agent's clock and the reference's outputs
    are not.
    """
    if name == "slow_clocks" and platform.machine() != "x86_64":
        pytest.skip("the kernel's machine code is for x86_64")
    outcome = outcomes[name]

    assert outcome["kind"] == "UNSPECIFIED"
    assert outcome["claimed_sec"] < _TRUE_SEC / 500
    assert outcome["verdict"] == "REFUTED" or not outcome["are_right"], outcome


def test_forged_rows_are_refused_by_their_digests(outcomes: dict[str, Outcome]) -> None:
    """A thread answers each row at once with the right number of digests. No repeated call matches its digest."""
    assert outcomes["forge_rows"]["verdict"] == "REFUTED"


@pytest.mark.parametrize("name", _HONEST)
def test_an_honest_time_is_not_refused(name: str, outcomes: dict[str, Outcome]) -> None:
    """Honest kernels take 100 ns to 20 ms. On a busy machine a proof may be undecided, but not refuted."""
    outcome = outcomes[name]

    assert outcome["verdict"] in ("PROVEN", "UNDECIDED"), outcome
    assert outcome["are_right"]
    assert outcome["least_sec"] <= outcome["claimed_sec"] or outcome["verdict"] == "UNDECIDED"
