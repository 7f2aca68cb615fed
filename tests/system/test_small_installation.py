"""Tracker, client, dashboard and agent do without the packages that only tuning needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fleet.testing import eventually_sync
from tests.programs import environment

pytestmark = pytest.mark.slow

TUNING = ("tvm", "tvm_ffi", "numpy", "sqlalchemy", "xgboost", "onnx", "onnxruntime", "scipy")
FOR_PEOPLE = ("typer", "rich", "sortedcontainers", "zeroconf")


def without(missing: tuple[str, ...], module: str, *words: str) -> list[str]:
    """A command that runs a module as if these packages were not installed."""
    code = (
        "import sys, runpy\n"
        f"sys.modules.update(dict.fromkeys({missing!r}))\n"  # None makes an import fail, as a missing package does
        f"sys.argv = [{module!r}, *{list(words)!r}]\n"
        f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)\n"
    )
    return [sys.executable, "-c", code]


def test_a_fleet_without_the_packages_of_tuning(tmp_path: Path) -> None:
    """The bare package is a tracker, an agent of simulated devices, a client and the dashboard.

    `fleet status --once` needs no package of the dashboard, and an agent needs none of the packages in FOR_PEOPLE.
    """
    config = tmp_path / "agent.yaml"
    config.write_text("devices: [{driver: simulated, name: sim}]\n")
    words = ("--port", "0", "--state-dir", str(tmp_path / "tracker"), "--no-discovery")
    tracker = subprocess.Popen(without(TUNING, "fleet.tracker", *words), stdout=subprocess.PIPE, text=True)
    assert tracker.stdout is not None
    address = tracker.stdout.readline().split()[-1]
    words = ("--tracker", address, "--config", str(config), "--state-dir", str(tmp_path / "agent"))
    agent = subprocess.Popen(without(TUNING + FOR_PEOPLE, "device_agents", *words), stdout=subprocess.PIPE, text=True)

    def status() -> str:
        command = without((*TUNING, "textual"), "fleet.cli.main", "status", "--once", "--tracker", address)
        return subprocess.run(command, capture_output=True, text=True, env=environment(), check=True).stdout

    try:
        eventually_sync(lambda: "sim" in status())
        command = without(TUNING, "fleet.cli.main", "acquire", "simulated", "--tracker", address, "--", "echo", "held")
        held = subprocess.run(command, capture_output=True, text=True, env=environment(), check=True)
    finally:
        for process in (agent, tracker):
            process.terminate()
            process.communicate(timeout=60)

    assert "held" in held.stdout


def test_an_agent_finds_its_tracker_by_itself(tmp_path: Path) -> None:
    """In a network of their own, an agent without any address attaches to the tracker that advertises itself."""
    script = tmp_path / "script.sh"
    script.write_text(
        "ip link set lo up multicast on && ip route add 224.0.0.0/4 dev lo\n"
        f"{sys.executable} -m fleet.tracker --port 9777 --state-dir tracker > tracker.log &\n"
        "until grep -q listening tracker.log; do sleep 0.1; done\n"
        "timeout 100 fleet agent serve > agent.log 2> agent.err &\n"
        "until grep -q serving agent.log || ! kill -0 $!; do sleep 0.1; done\n"
        "fleet devices --tracker 127.0.0.1:9777; cat agent.err; kill %1 %2; wait\n"
    )
    new_network = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--net"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    done = subprocess.run(
        [*new_network, "bash", script],
        cwd=tmp_path,
        env={**environment(), "PATH": path, "FLEET_DATA_DIR": str(tmp_path / "data")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert "found a tracker at 127.0.0.1:9777" in done.stdout, done.stdout + done.stderr
    assert "-cpu" in done.stdout
