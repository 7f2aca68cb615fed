"""Renders the verdict about a program's answers, in the same form after tuning, exporting and serving."""

from __future__ import annotations

from fleet.runtime.agreement import Agreement


def answers_line(reference: str, agreement: Agreement) -> str:
    """Return the verdict in one line, with the largest difference and the tolerance."""
    if not agreement.is_right:
        return f"WRONG: {agreement.problem}"
    return f"as {reference}'s, off by at most {agreement.max_abs_error:.3g}, {agreement.allowed:.3g} allowed"
