"""tracker.yaml: shares and quotas of accounts.

    half_life: 6h
    starvation: 12h
    classes:                # quotas of every account
      interactive: {leases: 2, longest: 2h}
      batch: {device_hours_per_day: 200}
    accounts:
      ci: {weight: 3, normal: {leases: 8}}
      team-a: {weight: 2}

A missing key keeps the value of the level above: an account has the quotas of `classes`, and those the defaults. The
word "unlimited" lifts a limit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from fleet.base.config import parse, parse_yaml, read_yaml, shown
from fleet.base.quantities import parse_duration
from fleet.base.source_locations import at, at_key
from fleet.domain.leases import LONGEST_SEC, LeaseClass
from fleet.errors import ConfigError
from fleet.tracker.core.share_policy import EVERY_ACCOUNT, NO_QUOTA, Quota, SharePolicy

UNLIMITED = "unlimited"

MOST_ACCOUNTS = 10_000
_MAX_NAME_CHARS = 200
_LEAST_HALF_LIFE_SEC, _MOST_HALF_LIFE_SEC = 60.0, 365 * 86_400.0
_MOST_GRACE_SEC = 3_600.0
_LEAST_WEIGHT, _MOST_WEIGHT = 0.001, 1_000_000.0
_MOST_LEASES = 1_000_000
_MOST_DEVICE_HOURS = 1_000_000.0
_HOUR_SEC = 3_600.0

_Time = str | float
_Quotas = Mapping[LeaseClass, Quota]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerKeys:
    """Keys of tracker.yaml."""

    half_life: Annotated[
        _Time | None, "Time after which used device seconds count half, such as 90m, 6h or 2d. Default: 6h."
    ] = None
    starvation: Annotated[
        _Time | None, "An account that was granted nothing suitable for this long is served next. Default: 12h."
    ] = None
    slice: Annotated[
        _Time | None, "A batch lease is left alone by other accounts' batch requests for this long. Default: 10m."
    ] = None
    yield_grace: Annotated[
        _Time | None, "A batch lease that was asked to give way ends after this time. Default: 15s."
    ] = None
    classes: Annotated[
        dict[str, object] | None,
        "Quotas of every account, by class: interactive, normal or batch. Default: interactive has 2 leases of 2h.",
    ] = None
    accounts: Annotated[
        dict[str, object] | None,
        "Accounts with a weight or quotas of their own, by the name that join tokens gave them, else by the key of a "
        "member as `fleet tracker members --json` shows it; without TLS by holder.",
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassKeys:
    """Quotas by class."""

    interactive: Annotated[dict[str, object] | None, "Quotas of interactive leases."] = None
    normal: Annotated[dict[str, object] | None, "Quotas of normal leases."] = None
    batch: Annotated[dict[str, object] | None, "Quotas of batch leases."] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountKeys(ClassKeys):
    """One account."""

    weight: Annotated[
        float, "Share of the boards: an account with weight 3 gets three times as much as one with 1, while both wait."
    ] = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaKeys:
    """Quotas of one account in one class; `unlimited` lifts one."""

    leases: Annotated[int | str | None, "Leases at once."] = None
    device_hours_per_day: Annotated[float | str | None, "Device hours from midnight to midnight, UTC."] = None
    longest: Annotated[_Time | None, "Longest lease, such as 30m or 2h."] = None


def parse_policy(text: str, *, where: str) -> SharePolicy:
    """Return the policy of a text.

    Args:
        where: name of the file, for messages.

    Raises:
        ConfigError: the text is not valid; the message names line and key, and the nearest key for an unknown one.
    """
    return _policy(*parse_yaml(text, where=where))


def read_policy(path: Path, *, is_required: bool) -> SharePolicy:
    """Return the policy of a file; the default one if the file is missing and not required.

    Raises:
        ConfigError: the file cannot be read, or is not valid.
    """
    if not is_required and not path.exists() and not path.is_symlink():
        return SharePolicy()
    return _policy(*read_yaml(path))


def _policy(values: Mapping[str, object], where: str) -> SharePolicy:
    keys, default = parse(TrackerKeys, values, where=where), SharePolicy()
    classes = at(where, "classes")
    common = _quotas(parse(ClassKeys, keys.classes or {}, where=classes), default.quotas(EVERY_ACCOUNT), classes)
    weights: dict[str, float] = {}
    class_quotas: dict[str, _Quotas] = {EVERY_ACCOUNT: common}
    accounts, place = keys.accounts or {}, at(where, "accounts")
    if len(accounts) > MOST_ACCOUNTS:
        raise ConfigError(f"{place}: expected at most {MOST_ACCOUNTS} accounts, found {len(accounts)}")
    for name, value in accounts.items():
        _check_name(name, place)
        account, own = _account(value, common, at(place, name))
        weights[name] = account.weight
        class_quotas[name] = {each: quota for each, quota in own.items() if quota != common.get(each)}
    times = {
        "half_life_sec": _time(keys.half_life, _LEAST_HALF_LIFE_SEC, _MOST_HALF_LIFE_SEC, where, "half_life"),
        "starvation_sec": _time(keys.starvation, 60.0, LONGEST_SEC, where, "starvation"),
        "slice_sec": _time(keys.slice, 0.0, LONGEST_SEC, where, "slice"),
        "yield_grace_sec": _time(keys.yield_grace, 1.0, _MOST_GRACE_SEC, where, "yield_grace"),
    }
    return SharePolicy(
        **{name: sec for name, sec in times.items() if sec is not None},
        weights={name: weight for name, weight in weights.items() if weight != 1.0},
        class_quotas={name: quotas for name, quotas in class_quotas.items() if quotas or name == EVERY_ACCOUNT},
    )


def _check_name(name: object, where: str) -> None:
    if not (isinstance(name, str) and 0 < len(name) <= _MAX_NAME_CHARS and name.isprintable()):
        expected = "expected the name of an account"
        raise ConfigError(f"{at_key(where, name)}: {expected}, found {shown(name)}; write numbers in quotes")


def _account(value: object, common: _Quotas, where: str) -> tuple[AccountKeys, _Quotas]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: expected a mapping such as {{weight: 2}}, found {shown(value)}")
    account = parse(AccountKeys, value, where=where)
    if not _LEAST_WEIGHT <= account.weight <= _MOST_WEIGHT:
        expected = f"expected a number from {_LEAST_WEIGHT:g} to {_MOST_WEIGHT:,.0f}"
        raise ConfigError(f"{at(where, 'weight')}: {expected}, found {shown(account.weight)}")
    return account, _quotas(account, common, where)


def _quotas(keys: ClassKeys, common: _Quotas, where: str) -> _Quotas:
    """Return quotas by class; missing keys have the common value."""
    found = {}
    for lease_class in LeaseClass:
        values: Mapping[str, object] = getattr(keys, lease_class) or {}
        quota = common.get(lease_class, NO_QUOTA)
        if values:
            quota = _quota(values, quota, at(where, str(lease_class)))
        if quota != NO_QUOTA or lease_class in common:
            found[lease_class] = quota
    return found


def _quota(values: Mapping[str, object], common: Quota, where: str) -> Quota:
    keys = parse(QuotaKeys, values, where=where)
    leases = _number(keys.leases, 1, _MOST_LEASES, where, "leases")
    hours = _number(keys.device_hours_per_day, 0.001, _MOST_DEVICE_HOURS, where, "device_hours_per_day")
    longest_sec = _time(keys.longest, 1.0, LONGEST_SEC, where, "longest", has_unlimited=True)
    return replace(
        common,
        leases=common.leases if leases is None else leases,
        device_sec_per_day=common.device_sec_per_day if hours is None else hours * _HOUR_SEC,
        longest_sec=common.longest_sec if longest_sec is None else longest_sec,
    )


def _number(value: float | str | None, least: float, most: float, where: str, key: str) -> float | None:
    if value is None or value == UNLIMITED:
        return None if value is None else math.inf
    if not isinstance(value, str) and least <= value <= most:
        return value
    expected = f"expected {least:g} to {most:,.0f}, or {UNLIMITED}"
    raise ConfigError(f"{at(where, key)}: {expected}, found {shown(value)}")


def _time(
    value: _Time | None, least_sec: float, most_sec: float, where: str, key: str, *, has_unlimited: bool = False
) -> float | None:
    if value is None or (has_unlimited and value == UNLIMITED):
        return None if value is None else math.inf
    sec = parse_duration(value) if isinstance(value, str) and value[-1:].isalpha() else None
    if sec is None:
        unlimited = f", or {UNLIMITED}" if has_unlimited else ""
        expected = f"expected a time with its unit, such as 90s, 10m, 2h or 1d{unlimited}"
        raise ConfigError(f"{at(where, key)}: {expected}, found {shown(value)}")
    if not least_sec <= sec <= most_sec:
        raise ConfigError(f"{at(where, key)}: expected {least_sec:g}s to {_time_text(most_sec)}, found {shown(value)}")
    return sec


def _time_text(sec: float) -> str:
    return f"{sec / 86_400:g}d" if sec >= 86_400 else f"{sec / _HOUR_SEC:g}h"
