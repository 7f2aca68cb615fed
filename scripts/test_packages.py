"""Installs the Debian packages that the tests need: `make test` runs it first, with the system's Python.

    python3 scripts/test_packages.py

Nothing happens when all are there. Missing packages are listed, and installed as root or by sudo without a password.
Without these rights it prints the command for an administrator, and fails.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys

PACKAGES = """
gcc                       kernels that do harm, native parts of fakes
g++                       TVM's OpenCL runtime as a plug-in, a tvm_rpc server
lld                       links ROCm code objects
^rocm-device-libs         ROCm code objects; with its version in the name since Debian 13
postgresql                the library in a shared database
chromium-driver           the page in a browser, with chromium
prometheus                scrapes the metrics, and checks the rules of alerts
tmux                      the start script of agents on boards without systemd
groff-base                the manual page, without a warning
systemd                   its verifier, for the tracker's unit
iproute2                  networks of their own: slow links, the commands of the README
iptables                  an address translator before one of them
avahi-daemon              another implementation of discovery by mDNS
avahi-utils               its commands
dbus                      the message bus between these
pocl-opencl-icd           an OpenCL device on the CPU
ocl-icd-libopencl1        OpenCL's loader
opencl-c-headers          OpenCL's headers
clinfo                    what `fleet doctor` asks about OpenCL
qemu-user-static          runs the programs of the emulated boards
adb                       phones
openssh-client            deploying agents over ssh
openssh-server            a board to deploy to
skopeo                    another reader of packs' OCI layouts
verilator                 simulates the fabric of the emulated Zynq from its RTL
xz-utils                  unpacks agents' bundles, as boards do
fuse3                     the emulated kernel files that program that fabric
debian-archive-keyring    the packages of the emulated boards, also on Ubuntu
"""
"""One package a line, with its users; behind "^" stands how its name begins, as apt writes that, too."""


def needed() -> list[str]:
    """Return the packages in the order of the list, first of all the part of Python that Debian keeps apart."""
    names = [line.split()[0] for line in PACKAGES.strip().splitlines()]
    return names if importlib.util.find_spec("ensurepip") else ["python3-venv", *names]


def installed() -> set[str]:
    """Return the names of all installed packages."""
    query = ["dpkg-query", "--show", "--showformat", "${db:Status-Abbrev} ${Package}\n"]
    listed = subprocess.run(query, stdout=subprocess.PIPE, check=True, text=True).stdout
    return {line.split()[-1] for line in listed.splitlines() if line.startswith("ii")}


def missing() -> list[str]:
    """Return the packages that have to be installed."""
    there = installed()
    return [name for name in needed() if not any(is_meant(package, name) for package in there)]


def is_meant(package: str, name: str) -> bool:
    """Tell whether the list's `name` means a package."""
    return package.startswith(name.removeprefix("^")) if name.startswith("^") else package == name


def way_to_root() -> list[str] | None:
    """Return the prefix of a command that needs root, or None if sudo needs a password."""
    if os.geteuid() == 0:
        return []
    sudo = shutil.which("sudo")
    if sudo and subprocess.run([sudo, "-n", "true"], capture_output=True, check=False).returncode == 0:
        return [sudo, "-n"]
    return None


def install_command(packages: list[str]) -> list[str]:
    """Return apt's command, which asks nothing."""
    return ["apt-get", "install", "--yes", "-qq", "--no-install-recommends", *packages]


def install(packages: list[str], root: list[str]) -> None:
    """Install packages without a question."""
    print(f"make test: installing the Debian packages {' '.join(packages)}", flush=True)
    subprocess.run([*root, "apt-get", "update", "-qq"], check=True)
    quiet = ["env", "DEBIAN_FRONTEND=noninteractive"]
    subprocess.run([*root, *quiet, *install_command(packages)], check=True, stdout=subprocess.DEVNULL)


def command_for_a_person(packages: list[str]) -> str:
    """Return the one command that installs the packages, for an administrator to type."""
    both = f"apt-get update -qq && {' '.join(install_command(packages))}"
    return f"sudo sh -c {shlex.quote(both)}" if shutil.which("sudo") else f"su -c {shlex.quote(both)}"


def main() -> int:
    if not (shutil.which("dpkg-query") and shutil.which("apt-get")):
        print(
            "make test installs what the tests need on Debian and Ubuntu only. Here, install the like of the following "
            f"yourself, then run .venv/bin/python -m pytest:\n{PACKAGES}",
            file=sys.stderr,
        )
        return 1
    packages = missing()
    if not packages:
        return 0
    root = way_to_root()
    if root is None:
        print(
            f"make test needs Debian packages that are not installed, and may not install them. Run\n\n"
            f"    {command_for_a_person(packages)}\n\nand then make test again.",
            file=sys.stderr,
        )
        return 1
    try:
        install(packages, root)
    except subprocess.CalledProcessError as error:
        print(f"make test: {shlex.join(error.cmd)} failed", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
