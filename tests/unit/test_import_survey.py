"""The table of models in benchmarks/results/imports.md, as printed by `python -m benchmarks.imports`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.imports import differing, row, surveys

_PAGE = Path(__file__).parents[2] / "benchmarks/results/imports.md"
_ROW = re.compile(r"^\| (\S+) \| (onnx wheel|generated|transformers|keras) \| (yes|no) \| (.+) \|$", re.MULTILINE)


def test_the_page_has_every_model_of_the_survey() -> None:
    """The page has more than forty models, each with its outcome."""
    listed = [(name, family) for name, family, *_ in _ROW.findall(_PAGE.read_text())]

    assert listed == [(survey.name, survey.family) for survey in surveys()]
    assert len(listed) > 40


def test_outcomes_that_differ_from_the_page_are_reported() -> None:
    """Changed outcomes and wrong results are found; a small difference on another machine does not count."""
    page = "| a | keras | yes | 3e-07 |\n| b | keras | yes | not compiled |\n| c | keras | no | why |"
    right = ["| a | keras | yes | 8e-06 |", "| b | keras | yes | not compiled |", "| c | keras | no | why |"]
    wrong = ["| a | keras | yes | 2e-01 |", "| b | keras | no | why |", "| c | keras | yes | not compiled |"]

    assert wrong == differing([*right, *wrong], page)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["keyword_spotting", "tabular"])
def test_a_row_has_the_current_outcome(name: str) -> None:
    """The smallest models, imported, compiled and compared again."""
    survey = next(found for found in surveys() if found.name == name)

    found = _ROW.fullmatch(row(survey))

    assert found is not None
    assert found[3] == "yes"
    assert float(found[4]) < 1e-5
