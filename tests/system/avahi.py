"""Avahi, with a message bus of its own, on a machine that a network namespace stands for."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from fleet.testing import eventually_sync
from tests.needs import is_promised
from tests.system.networks import Network

PROGRAMS = ("avahi-daemon", "avahi-browse", "avahi-publish", "dbus-daemon")

_BUS = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <listen>unix:path={folder}/bus</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/> <allow own="*"/> <allow send_destination="*"/> <allow receive_sender="*"/>
  </policy>
</busconfig>
"""

_SETTINGS = "[publish]\npublish-hinfo=no\npublish-workstation=no\n"

_START = """
mount -t tmpfs none /run
printf 'root:x:0:0::/:/bin/sh\\navahi:x:0:0::/:/bin/sh\\n' > /run/passwd
printf 'root:x:0:\\navahi:x:0:\\nnetdev:x:0:\\n' > /run/group
mount --bind /run/passwd /etc/passwd
mount --bind /run/group /etc/group
dbus-daemon --config-file="$1/bus.conf" --nofork --nopidfile &
until [ -S "$1/bus" ]; do sleep 0.05; done
exec avahi-daemon --no-drop-root --no-rlimits --no-chroot --file "$1/avahi.conf"
"""
"""The daemon's account is root, the only one of the namespace."""


@dataclass(frozen=True, slots=True)
class Avahi:
    """A running daemon."""

    network: Network
    folder: Path

    def browse(self, service_type: str) -> list[list[str]]:
        """Return the resolved services: interface, protocol, name, type, domain, host, address, port and TXT."""
        words = self.network.command("avahi-browse", "-rptk", service_type)
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True, timeout=60, check=True)
        return [line.split(";", 9)[1:] for line in done.stdout.splitlines() if line.startswith("=")]

    @contextmanager
    def published(self, name: str, service_type: str, port: int, facts: Sequence[str | bytes]) -> Iterator[None]:
        """Publish a service during the block."""
        words = self.network.command("avahi-publish", "--service", name, service_type, str(port))
        with subprocess.Popen([*words, *facts], env=self.environment, stderr=subprocess.DEVNULL) as process:
            try:
                yield
            finally:
                process.terminate()

    def is_there(self) -> bool:
        """Tell whether the daemon answers on its bus."""
        words = self.network.command("avahi-browse", "--all", "--terminate")
        return subprocess.run(words, env=self.environment, capture_output=True, timeout=60, check=False).returncode == 0

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "DBUS_SYSTEM_BUS_ADDRESS": f"unix:path={self.folder}/bus", "LC_ALL": "C.UTF-8"}


def is_installed() -> bool:
    """Tell whether the packages are there, or this run promises them."""
    return is_promised("avahi-daemon") or all(map(shutil.which, PROGRAMS))


@contextmanager
def running_avahi(network: Network, folder: Path) -> Iterator[Avahi]:
    """Run a daemon in a network during the block."""
    folder.mkdir()
    (folder / "bus.conf").write_text(_BUS.format(folder=folder))
    (folder / "avahi.conf").write_text(_SETTINGS)
    avahi = Avahi(network, folder)
    inside = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", _START, "sh", str(folder)]
    with ExitStack() as stack:
        log = stack.enter_context((folder / "log").open("w"))
        process = subprocess.Popen(network.command(*inside), env=avahi.environment, stdout=log, stderr=log)
        stack.callback(process.wait, 60)
        stack.callback(process.kill)
        assert eventually_sync(avahi.is_there, 60), (folder / "log").read_text()
        yield avahi
