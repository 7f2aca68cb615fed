"""Resolves targets as users name them: a board, a target as JSON, or `host`, this machine as its own agent
describes it.
"""

from __future__ import annotations

from cross.targets.target import Target, parse_target, resolve_target
from device_agents.machine.host import read_host


def target_of(text: str) -> Target:
    """Return the target that a user named.

    `host` is the very target that the driver `cpu` reports for this machine, so it finds records of this machine.

    Raises:
        ConfigError: there is no such board, or the target cannot work.
    """
    if text.strip() != "host":
        return resolve_target(text)
    host = read_host()
    return parse_target(host.target_json(host.core_count))
