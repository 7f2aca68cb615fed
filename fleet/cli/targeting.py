"""What `--target` means: a board, a target as JSON, or `host`, this machine as its own agent describes it."""

from __future__ import annotations

from cross.targets import resolve_target
from device_agents.host import read_host


def target_of(text: str) -> str:
    """Return the target, as JSON, that a user named.

    `host` is the very target that the driver `cpu` tells of this machine: what was tuned here is found by it.

    Raises:
        ConfigError: no such board, or no target that can work.
    """
    if text.strip() != "host":
        return resolve_target(text)
    host = read_host()
    return host.target_json(host.core_count)
