"""A scheduler and a builder run no code of other machines or accounts without the cluster's key."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fleet.building.cluster.address import CA, CERT, KEY
from fleet.building.cluster.certs import make_certs
from fleet.cli.main import app
from tests.programs import here
from tests.system.builder_processes import running_cluster
from tests.system.networks import joined_networks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

_NOBODY = 65534


@pytest.fixture(autouse=True)
def own_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give this test's account an empty credentials folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("FLEET_CREDENTIALS_DIR", raising=False)
    return tmp_path / "state/tvm-fleet/credentials/builders"


def attack(folder: Path, places: Sequence[str], *, uid: int = 0, around: Sequence[str] = ()) -> list[str]:
    """Return the results of an attack on scheduler and builder with certificates of another authority."""
    make_certs(folder / "forged")
    words = [sys.executable, "-m", "tests.system.builder_stranger", str(uid), str(folder / "forged"), *places]
    done = subprocess.run([*around, *words], env=here(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def place(address: str) -> str:
    return address.rpartition("/")[2]


@pytest.mark.skipif(os.getuid() != 0, reason="becoming another account takes root")
def test_another_account_of_the_machine_runs_no_code(tmp_path: Path, own_credentials: Path) -> None:
    """The cluster runs with defaults: on the loopback, with certificates that the scheduler made for its account."""
    with running_cluster(tmp_path, hosts=["127.0.0.1"] * 2, arounds=[()] * 2, has_own_certs=True) as cluster:
        addresses = [cluster.scheduler.address, cluster.builders[0].address]
        listed = CliRunner().invoke(app, ["builder", "list", "--dask", addresses[0], "--json"])
        found = attack(tmp_path, [place(address) for address in addresses], uid=_NOBODY)

    assert found == []
    assert [one["address"] for one in json.loads(listed.stdout)["builders"]] == [addresses[1]], listed.output
    assert [address.partition("://")[0] for address in addresses] == ["tls", "tls"]
    assert own_credentials.stat().st_mode & 0o777 == 0o700
    assert {path.name: path.stat().st_mode & 0o777 for path in own_credentials.iterdir()} == dict.fromkeys(
        [CA, CERT, KEY], 0o600
    )


def test_another_machine_runs_no_code(tmp_path: Path) -> None:
    """The attack fails with scheduler and builder on the loopback, and with both listening on the network."""
    with joined_networks(2) as (hub, stranger):
        for name, host in (("loopback", "127.0.0.1"), ("network", hub.address)):
            (tmp_path / name).mkdir()
            with running_cluster(
                tmp_path / name, hosts=[host, ""], arounds=[hub.command()] * 2, has_own_certs=True
            ) as cluster:
                ports = [one.address.rpartition(":")[2] for one in (cluster.scheduler, cluster.builders[0])]
                places = [f"{hub.address}:{port}" for port in ports]
                found = attack(tmp_path / name, places, around=stranger.command())

            assert cluster.builders[0].address.startswith(f"tls://{host}:"), "listens where it was asked to only"
            assert found == []
