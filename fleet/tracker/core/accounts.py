"""Recent use of the fleet by each account, and the quotas that bound it. Pure.

Use is counted in device seconds that lose half of their value in each half-life. Each charge has the weight of its
moment, 2^(time / half-life), instead of decaying all sums all the time (forward decay: Cormode, Shkapenyuk, Srivastava
and Xu, ICDE 2009). So only charges change the order of accounts, and a charge moves one account. The logarithm of each
sum is kept, since the sum itself would overflow within a year.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet.domain.leases import LeaseClass
from fleet.tracker.core.records import UseEntry
from fleet.tracker.core.share_policy import NO_QUOTA, Quota, SharePolicy

DAY_SEC = 86_400.0
_NONE = -math.inf
_NEWEST_SHARE = 0.2
"""Share of the latest lease in the expected length of the next one."""
_FIRST_EXPECTED_SEC = 600.0
"""Expected length of an account's first lease of a class [s]."""
_LEAST_EXPECTED_SEC = 1.0
"""However short the leases of an account are, each grant moves it behind its peers until it ends [s]."""
_NEGLIGIBLE_SEC = 1e-3


@dataclass(slots=True, eq=False)
class Account:
    """Use of the fleet by one account."""

    name: str
    weight: float = 1.0
    quotas: Mapping[LeaseClass, Quota] = field(default_factory=dict)
    level: float = _NONE
    """log2 of the weighted sum of charges over the account's weight: the smallest one is served first."""
    leases: Counter[LeaseClass] = field(default_factory=Counter)
    """Live leases."""
    day_sec: defaultdict[LeaseClass, float] = field(default_factory=lambda: defaultdict(float))
    """Charged device seconds of the current day [s]."""
    mean_sec: dict[LeaseClass, float] = field(default_factory=dict)
    """Moving average of the lengths of ended leases [s]."""

    def expected_sec(self, lease_class: LeaseClass) -> float:
        """Return the expected length of the next lease of a class [s]."""
        return max(self.mean_sec.get(lease_class, _FIRST_EXPECTED_SEC), _LEAST_EXPECTED_SEC)

    def observe(self, lease_class: LeaseClass, sec: float) -> None:
        """Take the length of an ended lease into the expectation."""
        mean_sec = self.mean_sec.get(lease_class, sec)
        self.mean_sec[lease_class] = mean_sec + _NEWEST_SHARE * (sec - mean_sec)

    def quota(self, lease_class: LeaseClass) -> Quota:
        """Return the account's quota in a class."""
        return self.quotas.get(lease_class, NO_QUOTA)

    def is_blocked(self, lease_class: LeaseClass, count: int = 1) -> bool:
        """Return True if a quota of the class leaves no room for `count` more leases."""
        quota = self.quotas.get(lease_class)
        return quota is not None and (
            self.leases[lease_class] + count > quota.leases or self.day_sec[lease_class] >= quota.device_sec_per_day
        )


class Accounts:
    """All accounts with recent use, live leases or waiting requests."""

    def __init__(self, policy: SharePolicy) -> None:
        self.policy = policy
        self.by_name: dict[str, Account] = {}
        self.day = 0
        """Current day, counted from 1970 in UTC."""

    def account(self, name: str) -> Account:
        """Return an account, made at its first use."""
        account = self.by_name.get(name)
        if account is None:
            account = self.by_name[name] = Account(name, self.policy.weight(name), self.policy.quotas(name))
        return account

    def quota(self, name: str, lease_class: LeaseClass) -> Quota:
        """Return the quota of an account in a class. Makes no account: the request may still be refused."""
        return self.policy.quotas(name).get(lease_class, NO_QUOTA)

    def charge(self, account: Account, lease_class: LeaseClass, sec: float, at_sec: float) -> None:
        """Add device seconds to an account's use; negative ones give back a part of an earlier charge.

        Args:
            at_sec: moment of the charge; of the earlier charge for negative seconds.
        """
        account.day_sec[lease_class] = max(account.day_sec[lease_class] + sec, 0.0)
        if not sec:
            return
        change = math.log2(abs(sec) / account.weight) + at_sec / self.policy.half_life_sec
        larger = max(account.level, change)
        ratio = math.exp2(account.level - larger) + math.copysign(math.exp2(change - larger), sec)
        account.level = larger + math.log2(ratio) if ratio > 0.0 else _NONE

    def used_sec(self, account: Account, now: float) -> float:
        """Return an account's decayed use at a moment [device seconds]."""
        return account.weight * math.exp2(min(account.level - now / self.policy.half_life_sec, 1000.0))

    def set_used_sec(self, account: Account, used_sec: float, at_sec: float) -> None:
        """Set an account's use as it was at a moment."""
        is_any = used_sec > _NEGLIGIBLE_SEC
        weighted = math.log2(used_sec / account.weight) if is_any else _NONE
        account.level = weighted + at_sec / self.policy.half_life_sec

    def use_of(self, account: Account, now: float) -> UseEntry | None:
        """Return an account's use at a moment; None if it is negligible."""
        used_sec = self.used_sec(account, now)
        if used_sec < _NEGLIGIBLE_SEC and not any(account.day_sec.values()):
            return None
        day_sec = {lease_class: sec for lease_class, sec in account.day_sec.items() if sec}
        return UseEntry(account=account.name, used_sec=used_sec, at_sec=now, day=self.day, day_sec=day_sec)

    def forget(self, account: Account) -> None:
        """Forget an account without use, leases and requests."""
        del self.by_name[account.name]

    def restore(self, use: UseEntry, now: float) -> Account:
        """Set an account's use from the journal, and return the account.

        A time after `now`, of a clock that was set back since, counts as now.
        """
        account = self.account(use.account)
        self.set_used_sec(account, use.used_sec, min(use.at_sec, now))
        if use.day == self.day:
            account.day_sec.update(use.day_sec)
        return account

    def set_policy(self, policy: SharePolicy, now: float) -> None:
        """Replace weights, quotas and the half-life, preserving the use of each account."""
        used = {name: self.used_sec(account, now) for name, account in self.by_name.items()}
        self.policy = policy
        for name, account in self.by_name.items():
            account.weight, account.quotas = policy.weight(name), policy.quotas(name)
            self.set_used_sec(account, used[name], now)

    def begin_day(self, now: float) -> bool:
        """Begin a new day's quotas; return False if it is still the same day."""
        day = int(now // DAY_SEC)
        if day == self.day:
            return False
        self.day = day
        for account in self.by_name.values():
            account.day_sec.clear()
        return True
