"""tracker.yaml: its format, and a sentence with line and remedy for each invalid file."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fleet.domain.leases import LeaseClass
from fleet.errors import ConfigError
from fleet.tracker.core.share_policy import EVERY_ACCOUNT, NO_QUOTA, Quota, SharePolicy
from fleet.tracker.policy_file import MOST_ACCOUNTS, parse_policy, read_policy
from fleet.tracker.reloading import compare
from tests.unit.alias_bomb import LISTS, MERGES, alias_bomb

BATCH, NORMAL, INTERACTIVE = LeaseClass.BATCH, LeaseClass.NORMAL, LeaseClass.INTERACTIVE
HOUR_SEC = 3_600.0
EXAMPLE = """\
half_life: 90m
starvation: 1.5d
classes:
  interactive: {leases: 3}
  batch: {device_hours_per_day: 200}
accounts:
  ci: {weight: 3, normal: {leases: 8}, interactive: {longest: 8h}}
  team-a:
    weight: 2
  boss:
    interactive: {leases: unlimited, longest: unlimited}
"""


def policy(text: str) -> SharePolicy:
    return parse_policy(text, where="tracker.yaml")


def test_an_example_gives_weights_and_quotas() -> None:
    found = policy(EXAMPLE)

    assert (found.half_life_sec, found.starvation_sec) == (1.5 * HOUR_SEC, 36 * HOUR_SEC)
    assert [found.weight(name) for name in ("ci", "team-a", "boss", "other")] == [3.0, 2.0, 1.0, 1.0]
    assert found.quotas("other") == {
        INTERACTIVE: Quota(leases=3, longest_sec=2 * HOUR_SEC),
        BATCH: Quota(device_sec_per_day=200 * HOUR_SEC),
    }


def test_a_missing_quota_is_that_of_the_level_above() -> None:
    """One key changes one limit: an account keeps the other quotas of its class, and a class the defaults."""
    found = policy(EXAMPLE)

    assert found.quotas("ci") == {
        INTERACTIVE: Quota(leases=3, longest_sec=8 * HOUR_SEC),
        NORMAL: Quota(leases=8),
        BATCH: Quota(device_sec_per_day=200 * HOUR_SEC),
    }
    assert found.quotas("boss")[INTERACTIVE] == NO_QUOTA


@pytest.mark.parametrize("text", ["", "{}", "# nothing yet\n", "classes:\naccounts:\n", "accounts: {ci: {}}"])
def test_an_empty_file_has_the_defaults(text: str) -> None:
    assert policy(text) == SharePolicy()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("half_life: 6h\nclases: {}\n", r"line 2: unknown key 'clases'; did you mean 'classes'\?"),
        ("classes:\n  normal: {}\n  interactiv: {}\n", "line 3: classes: unknown key 'interactiv'; did you mean"),
        ("accounts:\n  ci:\n    wieght: 3\n", "line 3: accounts: ci: unknown key 'wieght'; did you"),
        ("accounts: {ci: {leases: 3}}", "accounts: ci: unknown key 'leases'; known are batch, inter"),
        ("accounts:\n  ci:\n    batch:\n      lease: 3\n", "line 4: accounts: ci: batch: unknown key 'lease'; did"),
        ("half_life: 6h\nhalf_life: 7h\n", "line 2: the key 'half_life' stands in line 1 already"),
        ("accounts:\n  ci: {}\n  ci: {}\n", "line 3: the key 'ci' stands in line 2 already"),
        ("accounts: [ci]", r"line 1: accounts: expected a mapping, found \['ci'\]"),
        ("accounts:\n  ci: 3\n", r"line 2: accounts: ci: expected a mapping such as \{weight: 2\}, found 3"),
        ("classes:\n  batch: 3\n", "line 2: classes: batch: expected a mapping, found 3"),
        ("accounts:\n  12: {}\n", "accounts: expected the name of an account, found 12; write numbers in quotes"),
        ("accounts: {'': {}}", "accounts: expected the name of an account, found ''"),
        ('accounts: {"a\\e[2J": {}}', r"accounts: expected the name of an account, found 'a\\x1b\[2J'"),
        (f"accounts: {{{'k' * 300}: {{}}}}", "accounts: expected the name of an account, found 'kkk"),
        ("half_life: 360", "line 1: half_life: expected a time with its unit, such as 90s, 10m, 2h or 1d, found 360"),
        ("half_life: '360.5'", "half_life: expected a time with its unit.*found '360.5'"),
        ("half_life: 6:30", "half_life: expected a time with its unit"),
        ("half_life: -6h", "half_life: expected a time with its unit.*found '-6h'"),
        ("half_life: unlimited", "half_life: expected a time with its unit"),
        ("half_life: [1]", "half_life: expected text or a number, found"),
        ("yield_grace: 2h", "yield_grace: expected 1s to 1h, found '2h'"),
        ("half_life: 1s", "half_life: expected 60s to 365d, found '1s'"),
        (f"starvation: {'9' * 400}d", "starvation: expected 60s to 3650d, found '999"),
        ("classes: {batch: {longest: 0s}}", "classes: batch: longest: expected 1s to 3650d, found '0s'"),
        ("classes: {batch: {longest: forever}}", "longest: expected a time with its unit.*, or unlimited, found 'for"),
        ("classes: {batch: {leases: 0}}", "leases: expected 1 to 1,000,000, or unlimited, found 0"),
        ("classes: {batch: {leases: -1}}", "leases: expected 1 to 1,000,000, or unlimited, found -1"),
        ("classes: {batch: {leases: 1.5}}", "leases: expected a whole number or text, found 1.5"),
        ("classes: {batch: {leases: true}}", "leases: expected a whole number or text, found True"),
        ("classes: {batch: {leases: many}}", "leases: expected 1 to 1,000,000, or unlimited, found 'many'"),
        ("classes: {batch: {device_hours_per_day: .nan}}", "per_day: expected 0.001 to .*, or unlimited, found nan"),
        ("classes: {batch: {device_hours_per_day: 1.0e+300}}", r"per_day: expected 0.001 to .*, found 1e\+300"),
        ("accounts: {ci: {weight: -2}}", "accounts: ci: weight: expected a number from 0.001 to 1,000,000, found -2.0"),
        ("accounts: {ci: {weight: 0}}", "weight: expected a number from 0.001 to 1,000,000, found 0"),
        ("accounts: {ci: {weight: .inf}}", "weight: expected a number from 0.001 to 1,000,000, found inf"),
        ("accounts: {ci: {weight: .nan}}", "weight: expected a number from 0.001 to 1,000,000, found nan"),
        ("accounts: {ci: {weight: 1" + 400 * "0" + "}}", "weight: expected a number, found 1000"),
        ("accounts: {ci: {weight: 0x" + 9000 * "f" + "}}", "weight: expected a number, found a number of thousands"),
        ("- ci", "expected 'key: value' lines, found a list"),
        ("{{{", " is not YAML"),
        ("[" * 5000, " is not YAML"),
        ("half_life: !!python/object:os.system x", " is not YAML: could not determine a constructor"),
    ],
)
def test_an_invalid_file_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"tracker.yaml.*{message}") as caught:
        policy(text)

    assert len(str(caught.value)) < 500


def test_more_accounts_than_a_fleet_has_are_refused() -> None:
    with pytest.raises(ConfigError, match="line 2: accounts: expected at most 10000 accounts, found 10001"):
        policy("half_life: 6h\naccounts:\n" + "".join(f"  a{number}: \n" for number in range(MOST_ACCOUNTS + 1)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (alias_bomb(LISTS), "line 1: unknown key 'a0'"),
        ("accounts: {ci: {weight: &w [[[[1]]], [[[1]]]]}}", r"weight: expected a number, found \[\[\[...\]\], "),
        (alias_bomb(MERGES), "'<<' copies more than 1048576 keys; write them out"),
        ("accounts: &a {ci: *a}", "accounts: ci: unknown key 'ci'"),
    ],
    ids=["unknown", "nested", "merges", "recursive"],
)
def test_aliases_of_aliases_are_refused_at_once(text: str, message: str) -> None:
    """A message that showed such a value whole would take gigabytes."""
    with pytest.raises(ConfigError, match=message) as caught:
        policy(text)

    assert len(str(caught.value)) < 500


def test_an_alias_and_a_merge_are_no_bombs() -> None:
    found = policy("accounts:\n  a: &a {weight: 2, normal: {leases: 1}}\n  b: *a\n  c: {<<: *a, weight: 3}\n")

    assert [found.weight(name) for name in "abc"] == [2.0, 2.0, 3.0]
    assert found.quotas("c")[NORMAL] == Quota(leases=1)


def test_a_file_that_cannot_be_read_is_refused_with_its_path(tmp_path: Path) -> None:
    cases: list[tuple[str, bytes | None, str]] = [
        ("latin1.yaml", "accounts: {é: {}}".encode("latin-1"), "is not YAML: 'utf-8' codec can't decode"),
        ("large.yaml", b"# padding\n" * 1_000_000, "it is larger than 1048576 bytes"),
        ("missing.yaml", None, "No such file or directory"),
    ]
    for name, content, message in cases:
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(ConfigError, match=f"{name}.*{message}"):
            read_policy(tmp_path / name, is_required=True)
    with pytest.raises(ConfigError, match="Is a directory"):
        read_policy(tmp_path, is_required=False)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tracker.yaml"
    path.touch(mode=0o000)

    with pytest.raises(ConfigError, match="Permission denied"):
        read_policy(path, is_required=False)


def test_the_default_file_need_not_exist_but_a_dangling_link_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tracker.yaml"
    assert read_policy(path, is_required=False) == SharePolicy()

    path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="cannot read"):
        read_policy(path, is_required=False)


QUOTAS = st.builds(
    Quota,
    leases=st.one_of(st.just(math.inf), st.integers(1, 1_000_000)),
    device_sec_per_day=st.one_of(st.just(math.inf), st.integers(1, 1_000_000).map(lambda hours: hours * HOUR_SEC)),
    longest_sec=st.one_of(st.just(math.inf), st.integers(1, 10**8).map(float)),
)
NAMES = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=12)


@given(
    half_life_sec=st.integers(60, 10**7).map(float),
    starvation_sec=st.integers(60, 10**8).map(float),
    slice_sec=st.integers(0, 10**6).map(float),
    yield_grace_sec=st.integers(1, 3_600).map(float),
    weights=st.dictionaries(NAMES, st.floats(0.001, 1e6), max_size=4),
    quotas=st.dictionaries(NAMES, st.dictionaries(st.sampled_from(LeaseClass), QUOTAS), max_size=4),
    common=st.dictionaries(st.sampled_from(LeaseClass), QUOTAS),
)
def test_a_written_policy_is_read_as_it_was(
    half_life_sec: float,
    starvation_sec: float,
    slice_sec: float,
    yield_grace_sec: float,
    weights: Mapping[str, float],
    quotas: Mapping[str, Mapping[LeaseClass, Quota]],
    common: Mapping[LeaseClass, Quota],
) -> None:
    written = SharePolicy(
        half_life_sec=half_life_sec,
        starvation_sec=starvation_sec,
        slice_sec=slice_sec,
        yield_grace_sec=yield_grace_sec,
        weights=weights,
        class_quotas={**quotas, EVERY_ACCOUNT: common},
    )

    found = policy(dump(written))

    names = [*weights, *quotas, "other"]
    assert (found.half_life_sec, found.starvation_sec) == (half_life_sec, starvation_sec)
    assert (found.slice_sec, found.yield_grace_sec) == (slice_sec, yield_grace_sec)
    assert [found.weight(name) for name in names] == [written.weight(name) for name in names]
    assert [limits(found, name) for name in names] == [limits(written, name) for name in names]
    assert not compare(found, policy(dump(found)), path="").is_changed


def limits(rules: SharePolicy, name: str) -> list[Quota]:
    return [rules.quotas(name).get(lease_class, NO_QUOTA) for lease_class in LeaseClass]


def dump(rules: SharePolicy) -> str:
    """Write each rule of a policy."""

    def number(value: float, unit: str = "") -> object:
        return "unlimited" if value == math.inf else f"{value:.0f}{unit}" if unit else value

    def classes(name: str) -> dict[str, object]:
        each = zip(LeaseClass, limits(rules, name), strict=True)
        return {
            str(lease_class): {
                "leases": number(quota.leases),
                "device_hours_per_day": number(quota.device_sec_per_day / HOUR_SEC),
                "longest": number(quota.longest_sec, "s"),
            }
            for lease_class, quota in each
        }

    names = {*rules.weights, *rules.class_quotas} - {EVERY_ACCOUNT}
    return yaml.safe_dump(
        {
            "half_life": number(rules.half_life_sec, "s"),
            "starvation": number(rules.starvation_sec, "s"),
            "slice": number(rules.slice_sec, "s"),
            "yield_grace": number(rules.yield_grace_sec, "s"),
            "classes": classes(EVERY_ACCOUNT),
            "accounts": {name: {"weight": rules.weight(name), **classes(name)} for name in names},
        },
        allow_unicode=True,
    )


def test_a_comparison_counts_the_accounts_that_differ() -> None:
    former = policy("accounts: {a: {weight: 2}, b: {weight: 2}, c: {normal: {leases: 1}}}")
    now = policy("accounts: {a: {weight: 2}, b: {weight: 3}, d: {batch: {leases: 1}}}\nclasses: {batch: {longest: 2h}}")

    found = compare(former, former, path="f")
    assert (found.is_changed, found.changed_account_count) == (False, 0)
    found = compare(former, now, path="f")
    assert (found.account_count, found.changed_account_count, found.class_count) == (3, 4, 2)
    assert found.is_changed
