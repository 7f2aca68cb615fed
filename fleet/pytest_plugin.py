"""pytest plugin: tests that run on devices of a fleet.

    pytest --fleet-tracker 10.0.0.5:9290 --fleet-on kind=raspberry_pi --fleet-on kind=cpu

gives every test that takes `fleet_device` a leased device, once for each selector; device and lease stand in the
report. With --fleet-scope=session all tests of a run share one lease for each selector. Without a device that is free
in time tests are skipped, or fail with --fleet-required.

pytest loads it by itself where this package is installed; without `fleet_device` it costs nothing.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Literal, NoReturn

import pytest

if TYPE_CHECKING:
    from fleet.client.sync import Device, Fleet

_DEFAULT_WAIT_SEC = 60.0
_DEVICE = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, and the keys of pytest's configuration with the same meaning."""
    group = parser.getgroup("fleet", "devices of a fleet")
    group.addoption(
        "--fleet-tracker", metavar="HOST:PORT", help="Tracker to ask. Default: that of 'fleet config show'."
    )
    group.addoption(
        "--fleet-on",
        action="append",
        metavar="SELECTOR",
        help="Which device fleet_device is: 'kind=cpu,arch=aarch64'. Default: that of 'fleet config show', else cpu. "
        "Repeated: each test runs on each.",
    )
    group.addoption(
        "--fleet-scope",
        choices=("function", "session"),
        help="How long a device is kept: for one test (default), or for the whole run.",
    )
    group.addoption(
        "--fleet-wait",
        type=float,
        metavar="SEC",
        help=f"How long to wait for a device. Default: {_DEFAULT_WAIT_SEC:g}.",
    )
    group.addoption(
        "--fleet-required", action="store_true", help="Fail where no device is to be had; default: skip the test."
    )
    parser.addini("fleet_tracker", "Tracker to ask, as --fleet-tracker.", default="")
    parser.addini("fleet_on", "Selectors, one on a line, as --fleet-on.", type="linelist", default=[])


def pytest_configure(config: pytest.Config) -> None:
    """Refuse an invalid selector: tests that are skipped because of a typo look like successes."""
    named = config.getoption("--fleet-on") or config.getini("fleet_on")
    if named:
        from fleet.domain.selectors import parse_selector
        from fleet.errors import InvalidRequest

        try:
            for selector in named:
                parse_selector(selector)
        except InvalidRequest as error:
            raise pytest.UsageError(f"--fleet-on: {error}") from error


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Have each test run once on each kind of device."""
    selectors = _selectors(metafunc.config)
    if "fleet_device" in metafunc.fixturenames and len(selectors) > 1:
        metafunc.parametrize("fleet_device", selectors, indirect=True, scope=_scope("fleet_device", metafunc.config))


def pytest_report_header(config: pytest.Config) -> str | None:
    """Report the devices that a run was asked to use."""
    if not config.getoption("--fleet-tracker") and not config.getoption("--fleet-on"):
        return None
    return f"fleet: {' and '.join(_selectors(config))} of {_tracker(config) or 'the default tracker'}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the device to a test's report, to help explain a failure."""
    report = yield
    if _DEVICE in item.stash and call.when == "call":
        report.sections.append(("fleet device", item.stash[_DEVICE]))
    return report


@pytest.fixture(scope="session")
def fleet_client(pytestconfig: pytest.Config) -> Iterator[Fleet]:
    """A connected `fleet.connect` client."""
    import fleet
    from fleet.errors import FleetError

    try:
        client = fleet.connect(_tracker(pytestconfig) or None)
    except FleetError as error:
        _give_up(pytestconfig, error)
    with client:
        yield client


def _scope(fixture_name: str, config: pytest.Config) -> Literal["function", "session"]:
    named: Literal["function", "session"] | None = config.getoption("--fleet-scope")
    return named or "function"


@pytest.fixture(scope=_scope)
def fleet_device(request: pytest.FixtureRequest, fleet_client: Fleet) -> Iterator[Device]:
    """A leased device, see `fleet.client.sync.Device`; given back after the test, or after the run."""
    from fleet.errors import LeaseError

    config = request.config
    selector = getattr(request, "param", None) or _selectors(config)[0]
    wait_sec = config.getoption("--fleet-wait")
    try:
        device = fleet_client.acquire_device(
            selector,
            wait_timeout_sec=_DEFAULT_WAIT_SEC if wait_sec is None else wait_sec,
            purpose=f"pytest {request.node.nodeid or config.rootpath.name}"[:200],
        )
    except LeaseError as error:
        _give_up(config, error)
    try:
        yield device
    finally:
        device.release()


@pytest.fixture(autouse=True)
def _fleet_device_in_report(request: pytest.FixtureRequest) -> None:
    """Note the device that a test runs on; junit's XML gets it as properties."""
    if "fleet_device" not in request.fixturenames:
        return
    device: Device = request.getfixturevalue("fleet_device")
    request.node.stash[_DEVICE] = f"{device.name} ({device.inventory.device_model}), {device.lease.name}"
    request.node.user_properties += [("fleet_device", device.name), ("fleet_lease", device.lease.name)]


def _give_up(config: pytest.Config, error: Exception) -> NoReturn:
    if config.getoption("--fleet-required"):
        pytest.fail(str(error), pytrace=False)
    pytest.skip(str(error))


def _tracker(config: pytest.Config) -> str:
    from fleet.base.settings import look_up

    named = config.getoption("--fleet-tracker") or config.getini("fleet_tracker")
    return str(named or look_up("tracker").asked or "")


def _selectors(config: pytest.Config) -> list[str]:
    from fleet.base.settings import look_up

    return list(config.getoption("--fleet-on") or config.getini("fleet_on") or [look_up("selector").value])
