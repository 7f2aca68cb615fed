"""Every command on a page is run by a test or listed with a reason, and all flags on pages exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from fleet.cli.groups import UsageError
from fleet.cli.main import load_command
from tests.system.page_steps import COMMAND, NOT_RUN, PAGES, ROOT, can_run, output_blocks, steps
from tests.system.test_pages import walked

_NOT_RUN = [name for names in NOT_RUN.values() for name in names]
_TEXTS = sorted(
    path
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
    if path.name != "CHANGELOG.md" and path.parent.name != "decisions"
)
"""Pages about the current version."""


def test_every_command_on_a_page_is_run_or_excused() -> None:
    """A new command in the README, a tutorial or a guide is run by test_pages.py, or NOT_RUN says why it cannot be."""
    typed = {step.name for page in walked() for step in steps((ROOT / page).read_text()) if can_run(step)}
    on_pages = {step.name for page in PAGES for step in steps(page.read_text()) if step.name}

    assert on_pages - typed == set(_NOT_RUN)
    assert len(_NOT_RUN) == len(set(_NOT_RUN))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_output_holds_no_command(page: Path) -> None:
    """Commands to type are in blocks of their own, where readers look for them."""
    assert [
        line for block in output_blocks(page.read_text()) for line in block.splitlines() if COMMAND.match(line)
    ] == []


@pytest.mark.slow
@pytest.mark.parametrize("page", _TEXTS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_names_commands_and_flags_that_exist(page: Path) -> None:
    """Commands without a test and those within sentences are checked, too, so that a rename is noticed here."""
    text = page.read_text()
    named = [step.name for step in steps(text) if step.name.startswith("fleet ")]
    named += [found.replace("\n", " ") for found in re.findall(r"`(fleet [a-z][^`]*)`", text)]

    assert [command for command in named if problem_of(command)] == []


def problem_of(command: str) -> str:
    """Return the command line's complaint about a command's name and flags, or an empty text."""
    words = shlex.split(command)[1:]
    try:
        found: Any = load_command(words[0])
        words = words[1:]
        while words and not words[0].startswith("-") and (children := getattr(found, "commands", {})):
            found, words = children[words[0]], words[1:]
        context = found.context_class(found, info_name=found.name)
        found.make_parser(context).parse_args([*words, "value"])  # sentences leave out the last flag's value
    except KeyError as error:
        return f"no command {error}"
    except UsageError as error:
        return str(error)
    return ""


def test_a_flag_or_command_that_does_not_exist_is_noticed() -> None:
    """The check above can fail."""
    assert "--frobnicate" in problem_of("fleet time matmul.so --frobnicate 1")
    assert "no command 'frobnicate'" in problem_of("fleet jobs frobnicate")
    assert problem_of("fleet acquire cpu -- ./bench.sh --frobnicate") == ""


def test_ci_runs_the_demo() -> None:
    """The README's demo takes too long for a test."""
    lines = (ROOT / ".ci/run").read_text().splitlines()

    assert "make demo" in lines


def test_make_has_every_target_that_a_page_names() -> None:
    """Commands and text of all pages are checked, also of those at the root."""
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE))
    texts = [path.read_text() for path in _TEXTS]
    named = {word for text in texts for words in re.findall(r"`make ((?:[a-z-]+ ?)+)", text) for word in words.split()}

    assert {"demo", "check", "docs"} <= named
    assert named - targets == set()
