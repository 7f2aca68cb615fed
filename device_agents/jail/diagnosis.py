"""Report of `fleet doctor` on the jail of workers on this machine."""

from __future__ import annotations

import json
import subprocess
import sys

from device_agents.jail.layers import ISOLATING, Jail, Layer
from fleet.base.findings import Finding, State
from fleet.base.plain import from_plain

_TIMEOUT_SEC = 20.0
_ADVICE = {
    Layer.PID: "allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, or the container's security profile)",
    Layer.MOUNT: "allow user namespaces, and /proc to be mounted in them",
    Layer.IPC: "allow user namespaces",
    Layer.NO_NEW_PRIVILEGES: "run a kernel of Linux 3.5 or newer, not an emulator",
    Layer.SECCOMP: "run a kernel with CONFIG_SECCOMP_FILTER",
}


def diagnose() -> list[Finding]:
    """Try each layer in child processes."""
    done = subprocess.run(
        [sys.executable, "-m", "device_agents.jail.probe"],
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_SEC,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return [Finding(name="jail", state=State.WARNING, seen=f"cannot be tried: {last}")]
    return [finding_of(from_plain(Jail, json.loads(done.stdout)))]


def finding_of(jail: Jail) -> Finding:
    """List the layers, the reasons why others are not used, and remedies for those that isolate."""
    reasons = [f"{layer}: {reason}" for layer, reason in jail.missing.items()]
    seen = f"workers get {jail}" + (f"; not {'; '.join(reasons)}" if reasons else "")
    lacking = [layer for layer in ISOLATING if not jail.has(layer)]
    if not lacking:
        return Finding(name="jail", seen=seen)
    advice = "; ".join(dict.fromkeys(_ADVICE[layer] for layer in lacking))
    return Finding(name="jail", state=State.WARNING, seen=seen, advice=advice)
