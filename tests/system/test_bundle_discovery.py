"""A bundle started without a tracker's address finds the tracker by zeroconf, in a network of the test's own.

On this machine's own CPU: qemu-user 7 does not know the socket option that multicast senders need.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.emulated.bundles import bundle_for
from tests.programs import environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

_NETWORK = "ip link set lo up multicast on && ip route add 224.0.0.0/4 dev lo && echo up && exec sleep 180"


@pytest.fixture
def network() -> Iterator[list[str]]:
    """An empty network; yields a prefix that runs a command in it."""
    words = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", _NETWORK]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "up\n", "needs user namespaces, and the package iproute2"
        yield ["nsenter", "--target", str(holder.pid), "--user", "--net", "--preserve-credentials"]
        holder.kill()


def test_a_bundle_finds_the_tracker_of_its_network(network: list[str], tmp_path: Path) -> None:
    """Unpacking and `run` are enough; no address is typed."""
    subprocess.run(["tar", "-xf", bundle_for("x86_64").path, "-C", tmp_path], check=True)
    python = str(Path(sys.base_prefix, f"bin/python3.{sys.version_info.minor}"))
    alone = {**environment(), "FLEET_PYTHON": python}
    tracker = _start([*network, sys.executable, "-m", "fleet.tracker", "--port", "0"], environment(), tmp_path)
    agent = None
    try:
        address = _wait(tracker, r"tracker listening on (\S+)", tmp_path)
        agent = _start([*network, str(tmp_path / "fleet-agent/run")], alone, tmp_path)
        _wait(agent, r"agent listening on (\S+), serving devices/", tmp_path)
    finally:
        for process in (agent, tracker):
            if process is not None:
                process.terminate()
                process.communicate(timeout=30)

    assert f"found a tracker at {address}" in (tmp_path / "log").read_text()


def _start(words: list[str], given: dict[str, str], folder: Path) -> subprocess.Popen[str]:
    given = {**given, "FLEET_DATA_DIR": str(folder / f"data-{Path(words[-1]).name}")}
    with (folder / "log").open("a") as log:
        return subprocess.Popen(words, env=given, stdout=subprocess.PIPE, stderr=log, text=True)


def _wait(process: subprocess.Popen[str], pattern: str, folder: Path) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.match(pattern, line):
            return found[1].rstrip(",")
    raise AssertionError((folder / "log").read_text())
