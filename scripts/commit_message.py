"""Checks a commit's message; `pre-commit install` makes git call it.

    python3 scripts/commit_message.py .git/COMMIT_EDITMSG

Runs on any Python 3, without `.venv`. Prints each problem, and exits with 1 if there is one.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

SUBJECT_CHARACTERS = range(8, 73)
_PREFIX = re.compile(r"(fixup|squash|amend)! ")
_SCISSORS = re.compile(r"^# -+ >8 -+$.*", flags=re.MULTILINE | re.DOTALL)
"""`git commit --verbose` puts the change below this line."""


def problems_of(message: str) -> list[str]:
    """Return one sentence for each rule that a message breaks; comments of the editor's template do not count."""
    lines = [line for line in _SCISSORS.sub("", message).splitlines() if not line.startswith("#")]
    while lines and not lines[0].strip():
        del lines[0]
    subject = _PREFIX.sub("", lines[0].rstrip()) if lines else ""
    if subject.startswith(("Merge ", 'Revert "')):  # written by git
        return []
    found = []
    if len(subject) not in SUBJECT_CHARACTERS:
        found.append(f"the subject has {len(subject)} characters; 8 to 72 are allowed: put the reason into the body")
    if subject and not subject[0].isupper():
        found.append("the subject begins without an upper-case letter: write an imperative, as in 'Cap spill slots'")
    if subject.endswith("."):
        found.append("the subject ends with a period: leave it out")
    if len(lines) > 1 and lines[1].strip():
        found.append("the body follows the subject directly: leave the second line empty")
    return found


def main() -> None:
    """Check the message in the file that git names."""
    problems = problems_of(Path(sys.argv[1]).read_text(encoding="utf-8"))
    for problem in problems:
        print(problem, file=sys.stderr)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
