"""Disturbances of a measurement, read from its provenance."""

from __future__ import annotations

from fleet.domain.measuring import Disturbance, DisturbanceKind, Measurement


def found_in(*disturbances: object) -> tuple[Disturbance, ...]:
    return Measurement(candidate_id="a", provenance={"disturbances": list(disturbances)}).disturbances


def test_disturbances_are_read_from_the_provenance() -> None:
    """Records keep it as JSON."""
    found = found_in({"kind": "THROTTLED", "text": "throttled: thermal"})

    assert found == (Disturbance(DisturbanceKind.THROTTLED, "throttled: thermal"),)


def test_sentences_of_older_records_are_disturbances() -> None:
    """Older libraries hold disturbances without kinds; no kind is guessed from the text."""
    sentence = "reference kernel 1.31 times its usual time"

    assert found_in(sentence) == (Disturbance(DisturbanceKind.OTHER, sentence),)


def test_an_unknown_kind_counts_as_a_disturbance() -> None:
    """A newer client may have written the record."""
    assert found_in({"kind": "EARTHQUAKE", "text": "it shook"}) == (Disturbance(DisturbanceKind.OTHER, "it shook"),)
    assert found_in({"kind": 7}) == (Disturbance(DisturbanceKind.OTHER, ""),)


def test_without_provenance_facts_are_unknown() -> None:
    """A measurement without provenance has no disturbances."""
    assert Measurement(candidate_id="a").disturbances == ()
