"""Traces that are written without parsing known instructions again, against the parser."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fleet.domain.keys import trace_digest
from fleet.domain.trace_text import USUAL_DECISIONS, Spelling, compact, divide
from fleet.errors import InvalidRequest
from fleet.library.exchange import to_text

TEXTS = st.text() | st.sampled_from(["Split", "v1", "Annotate", ']],["Split', "]]],[", '"', "\\", "é"])
ITEMS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda items: st.lists(items, max_size=3) | st.dictionaries(TEXTS, items, max_size=2),
    max_leaves=8,
)
LISTS = st.lists(ITEMS, max_size=3)
STEPS = st.tuples(st.sampled_from(["Split", "Annotate", "odd"]) | TEXTS, LISTS, LISTS, LISTS).map(list)
TRACES = st.tuples(st.lists(STEPS, max_size=4), LISTS).map(list)


@given(TRACES | ITEMS)
@example([[["SampleCategorical", [], [[0, 16], [0.1, 0.9]], ["v5"]], ["Split", ["l1"], [], ["l2"]]], [[0, 1.0]]])
def test_a_trace_is_written_as_if_it_was_parsed(trace: object) -> None:
    """In all spellings, from all spellings."""
    for text in (json.dumps(trace), compact(trace), to_text(trace)):
        for write in (to_text, compact):
            assert Spelling(write).of(text) == write(json.loads(text))
        assert trace_digest(text) == trace_digest(json.dumps(json.loads(text)))


SMALL = st.integers(-(10**18) + 1, 10**18 - 1)
DECISIONS = st.lists(st.tuples(SMALL, SMALL | st.lists(SMALL, min_size=1, max_size=4)).map(list), max_size=4)


@given(DECISIONS)
def test_usual_decisions_are_the_same_in_all_spellings(decisions: object) -> None:
    """They are copied, so the copy has to be the text that a writer gives."""
    text = compact(decisions)
    assert USUAL_DECISIONS.fullmatch(text)
    assert {text} == {to_text(decisions), compact(json.loads(text))}


@pytest.mark.parametrize(
    "text",
    [
        "[[0,[01]]]",
        "[[0,[-0]]]",
        "[[0,[1,]]]",
        "[[0,[]]]",
        "[[0,[1]],]",
        "[[0,[1]][1,[1]]]",
        "[[0,1.0]]",
        "[[0,true]]",
        "[[0,null]]",
        "[[0,[[1]]]]",
        "[[0,[1 ,2]]]",
        "[[0,[\u0661]]]",
        "[[0,[1000000000000000000]]]",
        "[1]",
    ],
)
def test_other_decisions_are_parsed(text: str) -> None:
    """Their check, and their spelling, need their values."""
    assert USUAL_DECISIONS.fullmatch(text) is None


def test_instructions_are_separated_at_their_kinds() -> None:
    """Lists within an instruction are not."""
    first, second = '["SampleCategorical",[],[[0,16],[0.1,0.9]],["v5"]]', '["Split",["l1"],[],["l2"]]'
    text = f"[[{first},{second}],[[0,1]]]"

    assert divide(f"xx{text}", 2) == ([first[2:-2], second[2:-2]], 2 + text.index("[[0,1]]"))


@pytest.mark.parametrize(
    "text", ['[[["Split",[],[],[]]],[', '[[["Split",[],[],[]]],[]', '[[["Split",[],[,[]]],[]]', '[[["Split"]]],[]']
)
def test_a_text_that_is_no_json_has_no_digest(text: str) -> None:
    """Also where its pieces look like instructions."""
    with pytest.raises(InvalidRequest):
        trace_digest(text)
