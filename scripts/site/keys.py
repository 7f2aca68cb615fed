"""The keys of config.yaml, agent.yaml and tracker.yaml, from the dataclasses that check them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from words import plain

from device_agents.config import AgentConfig, known_keys
from device_agents.hooks import HookKeys
from device_agents.owner_labels import OwnerLabels
from fleet.base.config import Key, keys_of
from fleet.base.settings import ClientFile
from fleet.tracker.policy_file import AccountKeys, QuotaKeys, TrackerKeys


def as_markdown() -> str:
    """Return a section for the file itself and for the entries of each driver."""
    lines = ["## agent.yaml", "", *_definitions(keys_of(AgentConfig))]
    lines += ["## every driver", "", *_definitions(keys_of(OwnerLabels))]
    lines += ["### a hook", "", *_definitions(keys_of(HookKeys))]
    for driver, keys in known_keys().items():
        lines += [f"## driver: {driver}", "", *_definitions(keys)]
    return "\n".join(lines)


def of_clients() -> str:
    """Return the keys of config.yaml."""
    return "\n".join(_definitions(keys_of(ClientFile)))


def of_trackers() -> str:
    """Return the keys of tracker.yaml, of an account in it, and of a class."""
    lines = list(_definitions(keys_of(TrackerKeys)))
    lines += ["### an account", "", *_definitions(keys_of(AccountKeys))]
    lines += ["### a class", "", *_definitions(keys_of(QuotaKeys))]
    return "\n".join(lines)


def _definitions(keys: Iterable[Key]) -> Iterator[str]:
    for key in keys:
        facts = f"{key.expects}{', required' if key.is_required else ''}"
        is_said = key.default in (None, "") or "default" in key.doc.lower()
        default = "" if is_said else f" Default: `{_yaml(key.default)}`."
        yield from (f"`{key.name}` ({facts})", f":   {plain(key.doc)}{default}", "")


def _yaml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
