"""Origins of candidates in the provenance of records."""

from __future__ import annotations

import json

import pytest

from fleet.domain.origin import Origin, Source

SAMPLED = json.dumps([[["SamplePerfectTile", [], [], []]], [[0, [1, 2]]]])
PLAIN = json.dumps([[["Split", [], [], []]], []])


@pytest.mark.parametrize(
    "origin",
    [
        Origin(source=Source.SPACE, knobs="x=4, vectors=2"),
        Origin(source=Source.RULES, is_adapted=True),
        Origin(source=Source.STEPS),
    ],
)
def test_a_record_keeps_the_origin_of_its_candidate(origin: Origin) -> None:
    """The origin is read without parsing the trace."""
    kept = json.loads(json.dumps(origin.provenance))

    assert Origin.of_record(kept, "not a trace") == origin


@pytest.mark.parametrize("provenance", [{}, {"origin": "space"}, {"origin": {"source": "guessed"}}, {"origin": {}}])
def test_the_origin_of_an_older_record_follows_from_its_trace(provenance: dict[str, object]) -> None:
    """Records of older versions, imported ones and forged ones name no origin that counts."""
    assert Origin.of_record(provenance, SAMPLED).source is Source.RULES
    assert Origin.of_record(provenance, PLAIN).source is Source.SPACE
    assert Origin.of_record(provenance, "malformed").source is Source.SPACE
