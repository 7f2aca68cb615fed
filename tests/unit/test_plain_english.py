"""Docstrings, comments and pages name things instead of describing them in riddles, in each package.

`python -m tests.plain_english FOLDER` prints the figures and the worst passages.
"""

from __future__ import annotations

import pytest

from tests.plain_english import PACKAGES, Passage, figures_of, passages_in, passages_of

DUE = (1.0, 0.5, 0)
"""Most "what" and "who" per 1,000 words, and openings by a relative clause: the figures of well-liked projects."""

PYTHON = '''
"""Return what waits."""
size = 3  # How many wait at most.
# Who waits
# for whoever holds it: `what` is code.

# Numbers of waiting clients.
'''


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_no_package_gets_harder_to_read(package: str) -> None:
    """A change that adds riddles fails here; its author rewords them."""
    found = figures_of(passages_in(package))
    what, who, openings = DUE

    message = f"reword: python -m tests.plain_english {package}"
    assert found.what_per_1000 <= what, message
    assert found.who_per_1000 <= who, message
    assert found.openings <= openings, message


def test_docstrings_and_blocks_of_comments_are_counted() -> None:
    """Comments on consecutive lines are one passage, one behind code stands alone, and quoted code does not count."""
    passages = list(passages_of("fleet/waiting.py", PYTHON))
    found = figures_of(passages)

    assert [(passage.place, passage.riddles) for passage in passages] == [
        ("fleet/waiting.py:2", 1),
        ("fleet/waiting.py:3", 1),
        ("fleet/waiting.py:4", 3),
        ("fleet/waiting.py:7", 0),
    ]
    assert (found.passages, found.openings) == (4, 2)
    assert round(found.what_per_1000 * found.words / 1000) == 1


def test_pages_and_protos_are_counted() -> None:
    """Code blocks and tables of pages do not count, and a paragraph may open with a question."""
    page = "# What it is\n\nText.\n\n```console\n$ who\n```\n\n| what |\n"
    proto = "// Who holds it.\nmessage Lease {\n  string name = 1; // Where it is.\n}\n"

    assert [each.text for each in passages_of("docs/page.md", page)] == ["# What it is", "Text."]
    assert not any(each.opens_badly for each in passages_of("docs/page.md", page))
    assert [each.opens_badly for each in passages_of("protos/lease.proto", proto)] == [True, True]
    assert Passage(place="a.py:1", text="Whole words count", can_open_badly=True).riddles == 0
