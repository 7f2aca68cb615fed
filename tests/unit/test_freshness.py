"""Reasons for measuring a stored time again."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.domain.devices import Inventory
from fleet.domain.environment import environment_digest, environment_of
from fleet.domain.freshness import KeptTime, StaleReason, judge, stale_reasons

NOW = datetime(2026, 11, 30, tzinfo=UTC)
HALF_YEAR = timedelta(days=180)
FRESH = KeptTime(measured_at=NOW, is_disturbed=False, environment="now", device_model="pi4", device_sec=2.0)
OLD = NOW - timedelta(days=181)
BOARD = Inventory(kind="cpu", tvm_version="0.27.0", facts={"kernel": "6.1", "microcode": "0x1", "PCI bus": "1"})
CHANGED = {StaleReason.CODE: [7, 9], StaleReason.PROGRAM: [8, 9]}
TIMES = st.lists(
    st.builds(
        KeptTime,
        measured_at=st.sampled_from([NOW, NOW - HALF_YEAR, OLD]),
        is_disturbed=st.booleans(),
        environment=st.sampled_from(["", "now", "before"]),
        device_model=st.sampled_from(["pi4", "pi5"]),
        device_sec=st.none() | st.floats(0, 10),
        models_sec=st.floats(0, 10),
    )
)


@pytest.mark.parametrize(
    ("change", "reasons"),
    [
        ({}, set()),
        ({"environment": "before"}, {StaleReason.ENVIRONMENT}),
        ({"environment": ""}, set()),
        ({"measured_at": OLD}, {StaleReason.AGE}),
        ({"measured_at": NOW - HALF_YEAR}, set()),
        ({"is_disturbed": True}, {StaleReason.DOUBT}),
        ({"record_id": 7}, {StaleReason.CODE}),
        ({"record_id": 8}, {StaleReason.PROGRAM}),
        ({"environment": "before", "measured_at": OLD, "is_disturbed": True, "record_id": 9}, set(StaleReason)),
    ],
)
def test_each_reason_holds_by_itself(change: dict[str, object], reasons: set[StaleReason]) -> None:
    """All reasons are reported together. Records with an unknown environment stay fresh."""
    time = replace(FRESH, **change)  # type: ignore[arg-type]

    found = stale_reasons(time, {"now", "later"}, now=NOW, max_age=HALF_YEAR, changed=CHANGED)

    assert found == reasons


def test_nothing_is_said_of_environments_without_known_devices() -> None:
    """A library may have the records of boards that it never saw."""
    assert not stale_reasons(replace(FRESH, environment="before"), (), now=NOW, max_age=HALF_YEAR)


def test_a_record_with_two_reasons_counts_once_among_the_stale() -> None:
    """Times of models and devices are summed likewise; environments are those of the record's own device model."""
    times = [
        replace(FRESH, models_sec=3.0),
        replace(FRESH, models_sec=1.0, measured_at=OLD, is_disturbed=True),
        replace(FRESH, device_model="pi5", environment="now", device_sec=None),
    ]

    found = judge(times, {"pi4": {"now"}, "pi5": {"later"}}, now=NOW, max_age=HALF_YEAR)

    assert [part.records for part in (found.all, found.stale, *found.by_reason.values())] == [3, 2, 1, 1, 1]
    assert (found.all.models_sec, found.stale.models_sec) == (4.0, 1.0)
    assert (found.stale.device_sec, found.stale.without_device_sec) == (2.0, 1)
    assert found.unknown_environments == 0


def test_code_is_judged_only_if_it_is_built() -> None:
    """Without builds there is no count for it, rather than none."""
    times = [replace(FRESH, record_id=7), replace(FRESH, record_id=8)]

    unjudged = judge(times, {}, now=NOW, max_age=HALF_YEAR)
    judged = judge(times, {}, now=NOW, max_age=HALF_YEAR, changed={StaleReason.CODE: [7]})

    assert (StaleReason.CODE in unjudged.by_reason, unjudged.stale.records) == (False, 0)
    assert (judged.by_reason[StaleReason.CODE].records, judged.stale.records) == (1, 1)


@given(TIMES)
def test_the_stale_are_those_with_any_reason(times: list[KeptTime]) -> None:
    """Their number is between the largest count of a reason and the sum of these counts."""
    found = judge(times, {"pi4": {"now"}}, now=NOW, max_age=HALF_YEAR)

    counts = [part.records for part in found.by_reason.values()]
    assert max(counts) <= found.stale.records <= min(sum(counts), found.all.records)
    assert found.all.records == len(times)
    assert max(part.models_sec for part in found.by_reason.values()) <= found.stale.models_sec + 1e-9
    assert found.stale.models_sec <= found.all.models_sec + 1e-9


def test_an_environment_has_software_and_settings_but_no_serial_numbers() -> None:
    """Two boards with the same software have one environment."""
    provenance = {"before": {"governor": "performance", "temp_c": 40.0}, "facts": {"cooling": "fan"}}

    assert environment_of(BOARD, provenance) == {
        "kernel": "6.1",
        "microcode": "0x1",
        "runtime": "TVM 0.27.0",
        "governor": "performance",
        "owner": {"cooling": "fan"},
    }


@pytest.mark.parametrize(
    ("inventory", "provenance"),
    [
        (replace(BOARD, facts={**BOARD.facts, "kernel": "6.6"}), {}),
        (replace(BOARD, facts={**BOARD.facts, "driver": "550"}), {}),
        (replace(BOARD, tvm_version="0.28.0"), {}),
        (BOARD, {"before": {"governor": "powersave"}}),
        (BOARD, {"facts": {"cooling": "none"}}),
    ],
)
def test_another_part_gives_another_digest(inventory: Inventory, provenance: dict[str, object]) -> None:
    """The digest has each part, and another serial number or temperature leaves it as it is."""
    same = replace(BOARD, facts={"PCI bus": "2", "microcode": "0x1", "kernel": "6.1"})
    digest = environment_digest(environment_of(BOARD, {}))

    assert environment_digest(environment_of(same, {"before": {"temp_c": 50.0}})) == digest
    assert environment_digest(environment_of(inventory, provenance)) != digest
