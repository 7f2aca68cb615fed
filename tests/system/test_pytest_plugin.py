"""The pytest plugin, with real runs of pytest on a real fleet."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.system.fleet_processes import Fleet, running_fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

_EXAMPLE = Path(__file__).parents[2] / "examples/pytest_devices"
_LEASES = """
def test_first(fleet_device, record_property):
    record_property("lease", fleet_device.lease.name)

def test_second(fleet_device, record_property):
    record_property("lease", fleet_device.lease.name)

def test_without():
    pass
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("fleet")) as found:
        yield found


def run_pytest(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    plugin = ("-p", "fleet.pytest_plugin", "-p", "no:fleet", "-p", "no:cacheprovider")
    command = [sys.executable, "-m", "pytest", *plugin, "--rootdir", str(folder), *words, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)


def leases(xml: Path) -> dict[str, dict[str, str]]:
    """Return the properties of each test by its name."""
    cases = ET.parse(xml).getroot().iter("testcase")  # noqa: S314 - pytest wrote it a moment ago
    return {
        case.attrib["name"]: {one.attrib["name"]: one.attrib["value"] for one in case.iter("property")}
        for case in cases
    }


@pytest.fixture
def tests_of_leases(tmp_path: Path) -> Path:
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "test_leases.py").write_text(_LEASES)
    return folder


def test_the_example_passes_on_a_device(fleet: Fleet) -> None:
    """A kernel is built for the device that the run got, runs there, and is right."""
    ended = run_pytest(_EXAMPLE, "--fleet-tracker", fleet.address)

    assert ended.returncode == 0, ended.stdout
    assert "2 passed" in ended.stdout


def test_each_test_runs_on_each_kind_and_the_report_names_the_kind(
    fleet: Fleet, tests_of_leases: Path, tmp_path: Path
) -> None:
    """Two selectors, two runs of a test, each with a lease of its own; a test without a device runs once."""
    xml = tmp_path / "report.xml"
    words = (
        "--fleet-tracker",
        fleet.address,
        "--fleet-on",
        "cpu",
        "--fleet-on",
        "kind=cpu,arch=*",
        f"--junitxml={xml}",
    )

    ended = run_pytest(tests_of_leases, *words)

    found = leases(xml)
    own = [properties["fleet_lease"] for properties in found.values() if properties]
    assert ended.returncode == 0, ended.stdout
    assert len(found) == 5
    assert len(set(own)) == len(own) == 4
    assert found["test_without"] == {}
    assert {p["fleet_device"] for p in found.values() if p} == {str(fleet.snapshot()["devices"][0]["name"])}  # type: ignore[index]


def test_a_run_may_keep_one_device(fleet: Fleet, tests_of_leases: Path, tmp_path: Path) -> None:
    """All tests share one lease, released at the end."""
    xml = tmp_path / "report.xml"

    ended = run_pytest(
        tests_of_leases, "--fleet-tracker", fleet.address, "--fleet-scope", "session", f"--junitxml={xml}"
    )

    assert ended.returncode == 0, ended.stdout
    assert len({found["lease"] for found in leases(xml).values() if found}) == 1
    assert fleet.snapshot()["leases"] == []


def test_a_selector_that_cannot_be_read_ends_the_run(tests_of_leases: Path) -> None:
    """Skipped for a typo, tests would look as if they were well."""
    ended = run_pytest(tests_of_leases, "--fleet-on", "=!")

    assert ended.returncode == pytest.ExitCode.USAGE_ERROR
    assert "'=!', character 1" in ended.stderr


def test_without_a_device_tests_are_skipped_unless_required(fleet: Fleet, tests_of_leases: Path) -> None:
    """A laptop without boards runs the other tests; CI can require a device."""
    words = ("--fleet-tracker", fleet.address, "--fleet-on", "kind=nothing", "-rs")

    relaxed = run_pytest(tests_of_leases, *words)
    strict = run_pytest(tests_of_leases, *words, "--fleet-required")

    assert (relaxed.returncode, strict.returncode) == (0, 1), relaxed.stdout
    assert "1 passed, 2 skipped" in relaxed.stdout
    assert "1 passed, 2 errors" in strict.stdout


def test_without_a_tracker_tests_are_skipped(tests_of_leases: Path) -> None:
    """The reason names the tracker."""
    ended = run_pytest(tests_of_leases, "--fleet-tracker", "127.0.0.1:1", "-rs")

    assert "1 passed, 2 skipped" in ended.stdout
    assert "127.0.0.1:1" in ended.stdout
