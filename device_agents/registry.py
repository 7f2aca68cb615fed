"""Finds drivers by name: entry points of the group "fleet.drivers", loaded only when configured."""

from __future__ import annotations

import logging
from importlib.metadata import entry_points
from pathlib import Path

from device_agents.driver import Driver
from fleet.base.config import nearest
from fleet.base.findings import Finding
from fleet.errors import ConfigError

logger = logging.getLogger(__name__)

GROUP = "fleet.drivers"
BUILT_IN = {
    "android": "device_agents.drivers.android.driver:AndroidDriver",
    "cpu": "device_agents.drivers.cpu:CpuDriver",
    "cuda": "device_agents.drivers.cuda.driver:CudaDriver",
    "opencl": "device_agents.drivers.opencl.driver:OpenClDriver",
    "raspberry_pi": "device_agents.drivers.raspberry_pi.driver:RaspberryPiDriver",
    "rocm": "device_agents.drivers.rocm.driver:RocmDriver",
    "simulated": "device_agents.drivers.simulated:SimulatedDriver",
    "tvm_registered": "device_agents.drivers.tvm_registered.driver:TvmRegisteredDriver",
    "tvm_rpc": "device_agents.drivers.tvm_rpc:TvmRpcDriver",
    "zynq": "device_agents.drivers.zynq.driver:ZynqDriver",
}
"""Known even where the package's metadata is missing, as in a plain copy on a board."""


def known_drivers() -> list[str]:
    """Return the names of all drivers that are installed."""
    return sorted({entry.name for entry in entry_points(group=GROUP)} | set(BUILT_IN))


def find_devices(root: Path = Path("/"), *, only_finders: bool = False) -> list[dict[str, object]]:
    """Return one entry of agent.yaml for each device that the installed drivers find on this machine.

    With `only_finders`: of drivers with devices that come and go while the agent runs.
    A driver that fails to look is skipped with a warning: a broken vendor library must not keep the CPU from serving.
    """
    found: dict[str, list[dict[str, object]]] = {}
    superfluous: set[str] = set()
    for name in known_drivers():
        try:
            driver = load_driver(name, where="devices")
            entries = [] if only_finders and not driver.has_finder else driver.find(root)
        except Exception as error:  # noqa: BLE001 - optional libraries fail in any way they like
            logger.warning("driver skipped", extra={"driver": name, "error": str(error)})
            continue
        if entries:
            found[name] = [{"driver": name, **entry} for entry in entries]
            superfluous.update(driver.replaces)
    return [entry for name, entries in found.items() if name not in superfluous for entry in entries]


def diagnose() -> list[Finding]:
    """Return the installed drivers."""
    return [Finding(name="drivers", seen=", ".join(known_drivers()))]


def diagnose_driver(name: str) -> list[Finding]:
    """Return a driver's findings about its hardware on this machine.

    Raises:
        ConfigError: as `load_driver`.
    """
    return load_driver(name, where="diagnosis").diagnose()


def load_driver(name: str, *, where: str) -> type[Driver]:
    """Return the driver class registered as `name`.

    Raises:
        ConfigError: there is none of that name, or its module cannot be imported here.
    """
    found = {entry.name: entry.value for entry in entry_points(group=GROUP)}
    value = found.get(name, BUILT_IN.get(name))
    if value is None:
        close = nearest(name, known_drivers())
        hint = f"; did you mean {close!r}?" if close else ""
        raise ConfigError(f"{where}: unknown driver {name!r}{hint} (known: {', '.join(known_drivers())})")
    module_name, _, class_name = value.partition(":")
    try:
        module = __import__(module_name, fromlist=[class_name])
    except ImportError as error:
        raise ConfigError(f"{where}: the driver {name!r} cannot be loaded: {error}") from error
    driver: type[Driver] = getattr(module, class_name)
    return driver
