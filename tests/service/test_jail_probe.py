"""The jail layers of a machine, probed as an agent does: in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="takes root and setpriv"),
]


@pytest.mark.parametrize("lacking", ["chown", "dac_override"])
def test_a_root_that_cannot_keep_house_for_others_has_no_users_for_workers(lacking: str) -> None:
    """As in a container without that capability: its agent started each worker with "Operation not permitted"."""
    command = [
        "setpriv",
        f"--bounding-set=-{lacking},-dac_read_search",
        sys.executable,
        "-m",
        "device_agents.jail.probe",
    ]

    done = subprocess.run(command, capture_output=True, text=True, check=True)

    jail = json.loads(done.stdout)
    assert "uid" not in jail["layers"]
    assert jail["missing"]["uid"]
