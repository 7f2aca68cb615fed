"""`fleet leases logs` after kill -9 of the agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.artifacts.artifact import Artifact
from fleet.domain.measuring import Evaluator, Trial
from tests.system.fleet_processes import connect, run_fleet, running_fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
CONFIG = "devices: [{driver: simulated, name: sim, time_scale: 0}]\n"


def test_the_log_of_a_killed_agents_lease_is_read(tmp_path: Path) -> None:
    """The agent that starts again has the output, and the command prints it; so it does for an ended lease."""
    path = tmp_path / "candidate"
    path.write_text("say:the last words")
    artifact = Artifact.of_file(path)
    with running_fleet(tmp_path, CONFIG) as site, connect(site.address) as client:
        with client.acquire("simulated") as device:
            (lease,) = client.snapshot().leases
            device.ensure([artifact])
            trial = Trial(candidate_id="c", artifact_digest=artifact.digest, evaluator=Evaluator(number=1, repeat=1))
            assert len(list(device.measure([trial]))) == 1
            site.agent.kill()
        site.agent.start()

        short = lease.name.removeprefix("leases/")
        done = run_fleet("leases", "logs", short, "--follow", "--tracker", site.address)
        assert (done.returncode, done.stdout) == (0, "the last words\n")
        missing = run_fleet("leases", "logs", "none", "--tracker", site.address)
        assert (missing.returncode, missing.stdout) == (1, "")
        assert "no agent keeps output of leases/none" in " ".join(missing.stderr.split())
