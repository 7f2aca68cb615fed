"""Counts words that make docstrings, comments and pages hard to read, per package.

    python -m tests.plain_english                # the figures
    python -m tests.plain_english fleet/client   # those of some folders, and their worst passages

The words are "what", "who" and a relative clause as opening, as in "What is told to whoever waits", where a noun would
name the thing. Generated code, decisions, the changelog, and code blocks and tables of pages do not count.
`tests/unit/test_plain_english.py` limits the figures.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("fleet", "device_agents", "cross", "protos", "tests", "benchmarks", "scripts", "examples", "docs")

_WHAT = re.compile(r"\bwhat\b", flags=re.IGNORECASE)
_WHO = re.compile(r"\bwho(ever|se)?\b", flags=re.IGNORECASE)
_OPENING = re.compile(r"(What|Who|Whoever|Whose|How|Which|Where|When)\b")
_SKIPPED = re.compile(r"fleet/v1/|fleet/wire/stubs\.py|docs/decisions/|tests/golden/|CHANGELOG")
_QUOTED = re.compile(r"`[^`\n]*`")
_FENCED = re.compile(r"^```.*?^```", flags=re.MULTILINE | re.DOTALL)
_NO_PROSE = ("|", "    ", "<!--")


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A docstring, a block of comments, or a paragraph of a page."""

    place: str
    """Path and line, as editors open it."""

    text: str
    can_open_badly: bool
    """False for paragraphs of pages, where a question may be a heading."""

    @property
    def opens_badly(self) -> bool:
        """True if it begins with a relative clause instead of a verb or noun."""
        return self.can_open_badly and _OPENING.match(self.text) is not None

    @property
    def riddles(self) -> int:
        """Number of words from the list of riddles."""
        text = _QUOTED.sub("", self.text)
        return len(_WHAT.findall(text)) + len(_WHO.findall(text)) + self.opens_badly


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Counts of one package."""

    words: int
    what_per_1000: float
    who_per_1000: float
    passages: int
    """Docstrings and comments."""

    openings: int
    """Those of them that open with a relative clause."""


def figures_of(passages: Iterable[Passage]) -> Figures:
    """Count words and openings."""
    found = list(passages)
    text = "\n".join(_QUOTED.sub("", passage.text) for passage in found)
    words = max(1, sum(len(passage.text.split()) for passage in found))
    return Figures(
        words=words,
        what_per_1000=1000 * len(_WHAT.findall(text)) / words,
        who_per_1000=1000 * len(_WHO.findall(text)) / words,
        passages=sum(passage.can_open_badly for passage in found),
        openings=sum(passage.opens_badly for passage in found),
    )


def passages_in(folder: str) -> Iterator[Passage]:
    """Yield the passages of all files of a folder that are in git or may be added to it."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", folder]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    for name in sorted(set(listed.stdout.splitlines())):
        if name.endswith((".py", ".proto", ".md")) and not _SKIPPED.match(name) and (ROOT / name).exists():
            yield from passages_of(name, (ROOT / name).read_text(encoding="utf-8"))


def passages_of(name: str, text: str) -> Iterator[Passage]:
    """Yield the passages of one file."""
    if name.endswith(".md"):
        found = _paragraphs(text)
    elif name.endswith(".proto"):
        found = _blocks((number, *line.partition("//")[::2]) for number, line in enumerate(text.splitlines(), 1))
    else:
        found = [*_docstrings(text), *_blocks(_comments(text))]
    for line, content in found:
        yield Passage(place=f"{name}:{line}", text=" ".join(content.split()), can_open_badly=not name.endswith(".md"))


def _docstrings(text: str) -> Iterator[tuple[int, str]]:
    """Yield strings that stand alone: documentation of modules, classes, functions and fields."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def _comments(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield line number, code before the comment, and the comment."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith(("#!", "# noqa", "# type:")):
            yield token.start[0], token.line[: token.start[1]], token.string.lstrip("# ")


def _blocks(comments: Iterable[tuple[int, str, str]]) -> Iterator[tuple[int, str]]:
    """Join comments on consecutive lines of their own; one behind code stands alone."""
    first, last, lines = 0, -1, list[str]()
    for number, before, comment in comments:
        if not comment.strip():
            continue
        if not before.strip() and number == last + 1:
            lines.append(comment)
        else:
            if lines:
                yield first, "\n".join(lines)
            first, lines = number, [comment]
        last = -1 if before.strip() else number
    if lines:
        yield first, "\n".join(lines)


def _paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield paragraphs of a page without code and tables."""
    line = 1
    for block in re.split(r"(\n\s*\n)", _FENCED.sub(lambda fenced: "\n" * fenced[0].count("\n"), text)):
        if block.strip() and not block.lstrip("\n").startswith(_NO_PROSE):
            yield line + len(block) - len(block.lstrip("\n")), block
        line += block.count("\n")


def main() -> None:
    """Print a line for each folder, and the worst passages of folders that are named."""
    for folder in sys.argv[1:] or PACKAGES:
        passages = list(passages_in(folder))
        found = figures_of(passages)
        print(
            f"{folder}: {found.words} words; per 1,000: what {found.what_per_1000:.1f}, who {found.who_per_1000:.1f}; "
            f"{found.openings} of {found.passages} docstrings and comments open with a relative clause"
        )
        if sys.argv[1:]:
            worst = sorted(passages, key=lambda passage: passage.riddles / (25 + len(passage.text.split())))[-20:]
            print("\n".join(f"  {each.place}: {each.text[:150]}" for each in reversed(worst) if each.riddles))


if __name__ == "__main__":
    main()
