"""Reads tracker.yaml again and puts its rules in force."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from fleet.domain.shares import Reload
from fleet.tracker.core import events as ev
from fleet.tracker.core.share_policy import EVERY_ACCOUNT, SharePolicy
from fleet.tracker.engine import Engine
from fleet.tracker.policy_file import read_policy

logger = logging.getLogger(__name__)


class Reloader:
    """Applies the rules of one file to an engine."""

    def __init__(self, engine: Engine, path: Path, *, is_required: bool) -> None:
        self._engine = engine
        self._path = path
        self._is_required = is_required
        self._lock = asyncio.Lock()
        """Without it a reload that read the file earlier could be applied later."""

    async def reload(self) -> Reload:
        """Read the file and apply its rules.

        Raises:
            ConfigError: the file cannot be read or is not valid. The former rules hold.
        """
        async with self._lock:
            policy = await asyncio.to_thread(read_policy, self._path, is_required=self._is_required)
            former = self._engine.queries.policy
            if policy != former:
                await self._engine.ask(ev.PolicyChanged(policy))
        found = compare(former, policy, path=str(self._path))
        logger.info("rules read", extra={"path": found.path, "is_changed": found.is_changed})
        return found


def compare(former: SharePolicy, policy: SharePolicy, *, path: str) -> Reload:
    """Return the extent of a change of rules. Pure."""
    named = _named(policy)
    changed = [name for name in named | _named(former) if _rules(former, name) != _rules(policy, name)]
    return Reload(
        path=path,
        account_count=len(named),
        changed_account_count=len(changed),
        class_count=len(policy.class_quotas[EVERY_ACCOUNT]),
        half_life_sec=policy.half_life_sec,
        starvation_sec=policy.starvation_sec,
        is_changed=policy != former,
    )


def _named(policy: SharePolicy) -> set[str]:
    return (policy.weights.keys() | policy.class_quotas.keys()) - {EVERY_ACCOUNT}


def _rules(policy: SharePolicy, account: str) -> tuple[float, object]:
    return policy.weight(account), policy.quotas(account)
