"""Schema of the object that a failed command prints with --json."""

from __future__ import annotations

from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

ErrorFacts = TypedDict("ErrorFacts", {"class": str, "message": str, "exit_code": int})
"""`class` is a class name of `fleet.errors`, "UsageError" or "OSError"."""


class Failed(TypedDict):
    """Any command that fails"""

    error: ErrorFacts
