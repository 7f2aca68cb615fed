"""Parts of the explanation why a request waits. Long ones are generators that yield between portions."""

from __future__ import annotations

from collections.abc import Generator
from itertools import islice

from fleet.domain.explanation import Omission
from fleet.domain.selectors import parse_selector
from fleet.domain.waits import QuotaUse
from fleet.tracker.core.records import DeviceEntry, RequestEntry
from fleet.tracker.core.share_policy import NO_QUOTA
from fleet.tracker.core.standing import quota_use
from fleet.tracker.core.tables import Tables

_PORTION = 256
"""Number of device kinds, or accounts, examined in one portion: under 1 ms."""
SHOWN_DEVICES = 50


def shares(tables: Tables, name: str) -> Generator[None, None, tuple[float, float, float]]:
    """Return the recent use of an account [s], its share in the use of all, and the share that is due to it.

    An account is due the share of its weight among the accounts that wait or hold leases.
    """
    accounts, total_sec, weights = tables.accounts, 0.0, 0.0
    own, now = accounts.account(name), tables.now_sec
    for count, account in enumerate(list(accounts.by_name.values()), 1):
        total_sec += accounts.used_sec(account, now)
        if account is own or account.leases.total() or account.name in tables.waiting_by_account:
            weights += account.weight
        if count % _PORTION == 0:
            yield
    used_sec = accounts.used_sec(own, now)
    return used_sec, used_sec / total_sec if total_sec else 0.0, own.weight / weights


def quota_of(tables: Tables, request: RequestEntry) -> QuotaUse | None:
    """Return the use of a request's quota; None if it has none."""
    account = tables.accounts.account(request.account)
    lease_class = request.terms.lease_class
    return None if account.quota(lease_class) == NO_QUOTA else quota_use(account, lease_class)


def candidates(tables: Tables, request: RequestEntry) -> list[DeviceEntry]:
    """Return the first matching devices."""
    names = islice(tables.matching.group(request.terms.selector).devices, SHOWN_DEVICES)
    return [tables.devices[name] for name in names]


def omissions(tables: Tables, request: RequestEntry) -> Generator[None, None, list[Omission]]:
    """Return the devices that match the selector of a request without each of its clauses."""
    clauses = parse_selector(request.terms.selector).conditions
    counts, free = [0] * len(clauses), [0] * len(clauses)
    for count, kind in enumerate(tables.matching.kinds(by_name=any(clause.key == "name" for clause in clauses)), 1):
        failing = [index for index, clause in enumerate(clauses) if not clause.holds(kind.labels)]
        if len(failing) <= 1:
            for index in failing or range(len(clauses)):
                counts[index] += kind.device_count
                free[index] += kind.free_count
        if count % _PORTION == 0:
            yield
    return [Omission(clause.text, *found) for clause, *found in zip(clauses, counts, free, strict=True)]
