"""Options that are shares: 3% or 0.03."""

from __future__ import annotations

import typer


def share(text: str | float) -> float:
    """Parse a share, as 3% or 0.03. Invalid text is a usage error."""
    found = _read(text)
    if not 0 <= found <= 100:  # also refuses nan
        raise typer.BadParameter(f"{text!r} is no share; write it like 3% or 0.03")
    return found


def day_share(text: str | float) -> float:
    """Parse a share of a day, at least 0.01% and at most 100%. Invalid text is a usage error."""
    from fleet.optimizer.refreshing.idle import LEAST_SHARE

    found = _read(text)
    if not LEAST_SHARE <= found <= 1:  # also refuses nan
        raise typer.BadParameter(f"{text!r} is no share of a day from 0.01% to 100%; write it like 10% or 0.1")
    return found


def _read(text: str | float) -> float:
    number, is_percent = str(text).removesuffix("%"), str(text).endswith("%")
    try:
        return float(number) / (100 if is_percent else 1)
    except ValueError:
        return -1.0
