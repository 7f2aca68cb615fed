"""Metrics of real processes, read by Prometheus's tools and by its Python parser."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from fleet.testing import eventually_sync
from tests.needs import is_absent
from tests.programs import environment
from tests.system.fleet_processes import FLEET, connect, run_fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MONITORING = Path(__file__).parents[2] / "examples/monitoring"
LABELS = {"class", "end", "kind", "le", "mark", "model", "result", "state", "version"}
"""Labels with few values, whatever users do."""

_URL = re.compile(r'"url": "(http://127\.0\.0\.1:\d+/metrics)"')
_NAME = re.compile(r"\b(?:fleet|process)_[a-z_]+\b")


@dataclass
class Served:
    """A command that serves metrics."""

    process: subprocess.Popen[str]
    log: Path

    @property
    def url(self) -> str:
        """Address of its page."""
        found = eventually_sync(lambda: _URL.search(self.log.read_text()), 120)
        return found[1]

    def page(self) -> str:
        """Return its metrics as text."""
        with urllib.request.urlopen(self.url, timeout=60) as answer:  # noqa: S310 - our own address
            content: bytes = answer.read()
            return content.decode()


@dataclass
class Site:
    """Every process with metrics, by its name, and the tracker's address."""

    tracker: str
    processes: dict[str, Served]

    def value(self, process: str, sample: str, **labels: str) -> float:
        """Return the value of one sample."""
        for family in text_string_to_metric_families(self.processes[process].page()):
            for found in family.samples:
                if (found.name, found.labels) == (sample, labels):
                    return found.value
        raise AssertionError(f"no sample {sample}{labels}")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    (folder / "agent.yaml").write_text(
        "devices: [{driver: simulated, name: sim-a}, {driver: simulated, name: sim-b}]\n"
    )
    started: dict[str, Served] = {}

    def start(name: str, *words: str) -> Served:
        log = folder / f"{name}.log"
        with log.open("w") as stderr:
            process = subprocess.Popen(
                [FLEET, name, "serve", "--metrics", "127.0.0.1:0", *words],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=environment(),
            )
        started[name] = Served(process, log)
        return started[name]

    try:
        tracker = start("tracker", "--port", "0", "--no-discovery", "--state-dir", str(folder / "tracker"))
        assert tracker.process.stdout is not None
        address = tracker.process.stdout.readline().split()[-1]
        start(
            "agent",
            *("--tracker", address, "--config", str(folder / "agent.yaml"), "--state-dir", str(folder / "agent")),
        )
        start("gateway", "--tracker", address, "--port", "0")
        start("relay", "--tracker", address, "--port", "0")
        start("optimizer", "--tracker", address, "--library", str(folder / "library.sqlite"), "--workers", "1")
        found = Site(address, started)
        eventually_sync(lambda: found.value("agent", "fleet_agent_attached"), 120)
        yield found
    finally:
        for served in started.values():
            served.process.terminate()
        for served in started.values():
            served.process.communicate(timeout=60)


def exported(site: Site) -> dict[str, set[str]]:
    """Return the labels of all samples by name. Totals without a value yet are known from their type."""
    found: dict[str, set[str]] = {}
    for served in site.processes.values():
        for family in text_string_to_metric_families(served.page()):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            found.setdefault(name, set())
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_every_process_exports_metrics_with_bounded_labels(site: Site) -> None:
    """Each has metrics under its own name, and its processor time and memory."""
    names = exported(site)

    for process in site.processes:
        assert any(name.startswith(f"fleet_{process}_") for name in names), process
        assert site.value(process, "process_cpu_seconds_total") > 0
    assert set().union(*names.values()) <= LABELS


@pytest.mark.skipif(is_absent("promtool"), reason="promtool is not installed")
def test_promtool_finds_nothing_to_complain_about(site: Site) -> None:
    """Names, units and help texts follow Prometheus's conventions."""
    for process, served in site.processes.items():
        text = served.page()
        done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout + done.stderr) == (0, ""), process


def test_a_lease_is_counted_and_names_nobody(site: Site) -> None:
    """Devices, leases, waits and ends follow a lease; neither its name nor its holder's is on any page."""
    with connect(site.tracker) as client:
        with client.acquire("simulated"):
            (lease,) = client.snapshot().leases
            assert site.value("tracker", "fleet_tracker_leases", **{"class": "normal"}) == 1
            assert site.value("tracker", "fleet_tracker_devices", model="simulated", state="leased") == 1
            assert site.value("tracker", "fleet_tracker_devices", model="simulated", state="available") == 1
        ended = {"class": "normal", "end": "released"}
        eventually_sync(lambda: site.value("tracker", "fleet_tracker_lease_ends_total", **ended) == 1)
    assert site.value("tracker", "fleet_tracker_grants_total", **{"class": "normal"}) == 1
    assert site.value("tracker", "fleet_tracker_wait_seconds_count", **{"class": "normal"}) == 1
    assert site.value("tracker", "fleet_tracker_waiting_requests", **{"class": "batch"}) == 0

    pages = "".join(served.page() for served in site.processes.values())
    assert lease.name.removeprefix("leases/") not in pages
    assert lease.holder not in pages
    assert "sim-a" not in pages


def test_dashboard_and_alerts_name_exported_metrics_only(site: Site) -> None:
    """A renamed metric would leave an empty panel, and an alert that never fires."""
    known = exported(site)
    dashboard = json.loads((MONITORING / "fleet_dashboard.json").read_text())
    alerts = yaml.safe_load((MONITORING / "fleet_alerts.yml").read_text())
    shown = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    watched = [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]

    assert len(shown) > 20
    assert len(watched) > 5
    names = {name for expression in (*shown, *watched) for name in _NAME.findall(expression)}
    assert names - known.keys() == set()
    own = {name for name in known if name.startswith("fleet_") and not name.endswith(("_sum", "_count", "_created"))}
    assert {name for name in own if name not in names} <= {"fleet_build_info", "fleet_tracker_wait_seconds"} | {
        name for name in own if name.endswith("_seconds_total")
    }


@pytest.mark.skipif(is_absent("prometheus"), reason="Prometheus is not installed")
def test_prometheus_scrapes_every_process_and_evaluates_the_rules(site: Site, tmp_path: Path) -> None:
    """The configuration in the repository works but for its ports: all targets are up, and no rule has an error."""
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    jobs = [job["job_name"].removeprefix("fleet-") for job in config["scrape_configs"]]
    assert sorted(jobs) == sorted(site.processes)
    for job, name in zip(config["scrape_configs"], jobs, strict=True):
        job["static_configs"] = [{"targets": [site.processes[name].url.split("/")[2]]}]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    shutil.copy(MONITORING / "fleet_alerts.yml", tmp_path)
    log = tmp_path / "log"
    with log.open("w") as stderr:
        server = subprocess.Popen(
            [
                *("prometheus", "--config.file", str(tmp_path / "prometheus.yml")),
                *("--storage.tsdb.path", str(tmp_path / "data"), "--web.listen-address", "127.0.0.1:0"),
            ],
            stderr=stderr,
        )
    try:
        listening = eventually_sync(lambda: re.search(r'"Listening on" address=(\S+)', log.read_text()), 60)

        def api(path: str) -> Any:
            with urllib.request.urlopen(f"http://{listening[1]}/api/v1/{path}", timeout=60) as answer:
                return json.load(answer)["data"]

        def is_ready() -> bool:
            with contextlib.suppress(urllib.error.HTTPError):  # while it reads its own database
                return bool(api("status/buildinfo"))
            return False

        def up() -> set[str]:
            found = api(f"query?query={quote('up == 1')}")["result"]
            return {one["metric"]["job"].removeprefix("fleet-") for one in found}

        eventually_sync(is_ready, 60)
        eventually_sync(lambda: up() == set(jobs), 60)
        devices = api(f"query?query={quote('sum(fleet_tracker_devices)')}")["result"]
        assert [one["value"][1] for one in devices] == ["2"]

        def health() -> list[str]:
            return [rule["health"] for group in api("rules")["groups"] for rule in group["rules"]]

        eventually_sync(lambda: "unknown" not in health(), 60)
        assert set(health()) == {"ok"}
    finally:
        server.terminate()
        server.wait(60)


@pytest.mark.parametrize(
    "words",
    [
        ("tracker", "serve"),
        ("agent", "serve", "--tracker", "127.0.0.1:1"),
        ("gateway", "serve", "--tracker", "127.0.0.1:1"),
        ("optimizer", "serve", "--tracker", "127.0.0.1:1"),
    ],
)
def test_a_bad_address_ends_the_start(words: Sequence[str]) -> None:
    """One sentence names it, and the exit code is 2."""
    done = run_fleet(*words, "--metrics", "localhost")

    assert (done.returncode, done.stdout) == (2, "")
    assert "the address of --metrics 'localhost'" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_without_the_package_the_extra_is_named(tmp_path: Path) -> None:
    """A tracker without prometheus_client starts, but not with --metrics."""
    code = (
        "import sys, runpy\n"
        "sys.modules['prometheus_client'] = None\n"
        f"sys.argv = ['tracker', '--port', '0', '--metrics', '127.0.0.1:0', '--state-dir', {str(tmp_path)!r}]\n"
        "runpy.run_module('fleet.tracker', run_name='__main__', alter_sys=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert "pip install 'tvm-fleet[metrics]'" in done.stderr
