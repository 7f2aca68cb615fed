"""Kernels that attack the agent, the next holder and the machine: attacks that were seen to succeed, and do no more.

They run in namespaces of their own, see tests/service/hostile_site.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.service.agent_bench import admit

pytestmark = pytest.mark.slow

_MOST_AGENT_MIB = 64

Outcome = dict[str, Any]


_APART = ["--pid", "--fork", "--kill-child", "--mount-proc", "--ipc", "--net"]
_ENTER = 'mount -t tmpfs none /dev/shm; ip link set lo up && exec "$@"'


_FEW_LAYERS = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
"""Without capabilities root makes no namespace: as in a container, Landlock and the filter of system calls are left."""


def run_attacks(folder: Path, jail: str, around: Sequence[str] = ()) -> dict[str, Outcome]:
    source = Path(__file__).with_name("hostile_kernels.c")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-pthread", source, "-o", folder / "kernels.so"], check=True)
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    site = [sys.executable, "-m", "tests.service.hostile_site", folder, jail]
    done = subprocess.run(
        ["unshare", *as_root, *_APART, "sh", "-c", _ENTER, "sh", *around, *site],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    outcomes: dict[str, Outcome] = json.loads(done.stdout.splitlines()[-1])
    return outcomes


@pytest.fixture(scope="module")
def jailed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    return run_attacks(tmp_path_factory.mktemp("jailed"), "auto")


@pytest.fixture(scope="module")
def ruled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    return run_attacks(tmp_path_factory.mktemp("ruled"), "auto", _FEW_LAYERS)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    return run_attacks(tmp_path_factory.mktemp("bare"), "none")


@pytest.fixture(params=["jailed", "ruled", "bare"])
def outcomes(request: pytest.FixtureRequest) -> dict[str, Outcome]:
    """Outcomes with all layers of the jail, with the layers that need no namespace, and without any."""
    outcomes: dict[str, Outcome] = request.getfixturevalue(request.param)
    return outcomes


def test_a_daemon_that_killed_its_keeper_and_the_warm_process_is_dead(outcomes: dict[str, Outcome]) -> None:
    """It forked twice, without environment and descriptors: its session has no process left, and the next is served."""
    assert outcomes["outlive"]["survivors"] == []
    assert outcomes["outlive"]["served"]


def test_a_kernel_that_stopped_all_processes_ends_with_its_lease(outcomes: dict[str, Outcome]) -> None:
    """The agent kills it without help from stopped processes, replaces the warm process, and the device recovers."""
    assert outcomes["stop_all"] == {"served": True, "survivors": []}


def test_a_kernel_that_killed_the_agent_is_dead_before_the_next_runs(outcomes: dict[str, Outcome]) -> None:
    """The agent finds it by its own records, if nothing else ended it."""
    assert outcomes["stop_all_and_kill_agent"] == {"served": True, "survivors": []}


@pytest.mark.parametrize(("site", "opened"), [("jailed", 0), ("ruled", 0), ("bare", 6)])
def test_keys_and_epochs_are_not_to_be_opened(site: str, opened: int, request: pytest.FixtureRequest) -> None:
    """Workers can neither read nor write the keys of agent and tracker, due to another user, another file system or
    rules for files. Without these a worker has its agent's rights.
    """
    outcome = request.getfixturevalue(site)["open_secrets"]
    assert outcome == {"kind": "UNSPECIFIED", "opened": opened, "there": 3}


def test_a_kernel_reaches_only_its_own_files_and_processes(
    jailed: dict[str, Outcome], bare: dict[str, Outcome]
) -> None:
    """No process, network, namespace or directory; without a jail all of these."""
    assert jailed["look_around"] == {"kind": "UNSPECIFIED", "found": 0}
    assert bare["look_around"]["found"] & ~64 == 63


@pytest.mark.parametrize(("site", "seen"), [("jailed", 15), ("ruled", 15), ("bare", 7)])
def test_the_agents_environment_is_not_to_be_read(site: str, seen: int, request: pytest.FixtureRequest) -> None:
    """Neither variables nor /proc of worker and keeper reveal it; without a jail, root reads the agent's own."""
    outcome = request.getfixturevalue(site)["find_secrets"]
    assert outcome["kind"] == "UNSPECIFIED"
    assert outcome["found"] & seen == 0


@pytest.mark.parametrize("site", ["jailed", "ruled"])
def test_shared_memory_is_gone_with_its_worker(site: str, request: pytest.FixtureRequest) -> None:
    """Files in /dev/shm and System V segments once stayed for ever; now they are private, or cannot be made."""
    assert request.getfixturevalue(site)["leave_shared_memory"] == {"kind": "UNSPECIFIED", "left": []}


def test_forged_times_of_the_reference_kernel_reach_no_history(outcomes: dict[str, Outcome]) -> None:
    """Forged times reach neither the history nor the next holder's measurements.

    Before, 80 trials in half a second reported one microsecond. The next holder's honest trials were then marked for
    ten minutes as disturbed, at 150 times the usual time. A busy machine alone reaches a factor of 17.
    """
    usurped = outcomes["usurp"]
    assert usurped["forged"] == 80
    assert usurped["shortest_reference_sec"] > 1e-5
    assert usurped["longest_drift"] < 100


def test_an_overwritten_artifact_runs_for_no_other_holder(outcomes: dict[str, Outcome]) -> None:
    """Either it could not be written, or it is missed and put again."""
    attack = outcomes["overwrite"]
    assert attack["is_refused"] == bool(attack["changed"])


def test_millions_of_outputs_leave_the_agent_as_small_as_it_was(outcomes: dict[str, Outcome]) -> None:
    """24 MiB of empty outputs took it to 780 MiB; they are refused by their length."""
    assert outcomes["large_answer"]["kind"] == "CRASHED"
    assert outcomes["large_answer"]["grown_mib"] < _MOST_AGENT_MIB


@pytest.mark.parametrize("attack", ["grow_later", "fill_disk_later"])
def test_limits_hold_after_the_answer_too(outcomes: dict[str, Outcome], attack: str) -> None:
    """A thread that takes memory, or fills unnamed files, after its candidate's answer costs its worker."""
    assert outcomes[attack] == {"kind": "UNSPECIFIED", "served": True}


def test_an_agent_that_has_to_isolate_does_not_start_where_it_cannot(tmp_path: Path) -> None:
    """It names each layer that it lacks, and why."""
    admit(tmp_path / "state")
    (tmp_path / "agent.yaml").write_text("devices: [{driver: simulated}]\njail: required\n")
    as_root = [] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user"]
    agent = [sys.executable, "-m", "device_agents", "--tracker", "127.0.0.1:1", "--config", tmp_path / "agent.yaml"]

    done = subprocess.run(
        [*as_root, *_FEW_LAYERS, *agent, "--state-dir", tmp_path / "state"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 2
    assert "the jail of workers would lack: pid (" in done.stderr
