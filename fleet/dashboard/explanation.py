"""The full answer to the question why a request waits, as text. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fleet.base.quantities import count_text, elapsed_text
from fleet.dashboard import formatting
from fleet.dashboard.columns import STATES
from fleet.domain.explanation import Candidate, Explanation, Omission
from fleet.domain.waits import QuotaUse, booking_text, forecast_text


def render_explanation(found: Explanation, *, has_request: bool) -> RenderableType:
    """Return share, quota, suitable devices, and the gain from leaving out each clause.

    Args:
        has_request: show the request too, with its place and its reason.
    """
    rows = explanation_facts(found) if has_request else share_facts(found)
    parts: list[RenderableType] = [facts_table(rows)]
    if has_request:
        parts += [Text(), *_candidates(found)]
    if lines := omission_lines(found):
        parts += [Text(), *map(Text, lines)]
    return Group(*parts)


def explanation_facts(found: Explanation) -> dict[str, str]:
    """Return the facts about a waiting request and its account by their names."""
    request = found.request
    return {
        "request": f"{request.request_id} of {request.asked_by}",
        "wants": request.terms.wanted,
        "class": request.terms.lease_class.value,
        "place": "next" if request.position == 0 else f"{request.position} are served before it",
        "starts": forecast_text(request.forecast, found.at_sec, request.wait),
        "why": request.reason or "-",
        **share_facts(found),
    }


def share_facts(found: Explanation) -> dict[str, str]:
    """Return share and quota of a request's account by their names."""
    return {
        "share": f"had {found.share_had:.0%} of the recent use, due {found.share_due:.0%} (weight {found.weight:g})",
        "quota": _quota_line(found.quota) if found.quota else "none",
    }


def candidate_rows(found: Explanation) -> list[tuple[str, Text, str]]:
    """Return name, state and holder of the devices that would do."""
    return [
        (formatting.short_name(each.device_name), STATES[each.state], _holder(each, found.at_sec))
        for each in found.candidates
    ]


def omission_lines(found: Explanation) -> list[str]:
    """Return the gain from leaving out each clause; none for a booking, which has clauses of its own."""
    return [] if found.request.terms.booking else [_omission_line(found, each) for each in found.omissions]


def facts_table(rows: Mapping[str, str]) -> Table:
    """Return a table of names and their values."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for key, value in rows.items():
        table.add_row(key, Text(value))
    return table


def _quota_line(use: QuotaUse) -> str:
    leases = f"{use.leases} of {use.most_leases:g} leases at once" if use.most_leases < float("inf") else ""
    hours = f"{use.day_sec / 3600:.1f} of {use.most_day_sec / 3600:g} device hours of today"
    found = ", ".join(filter(None, (leases, hours if use.most_day_sec < float("inf") else "")))
    return found or "limits the length of leases only"


def _omission_line(found: Explanation, omission: Omission) -> str:
    """Return the gain from leaving out a clause: "without board=rpi5: now, 3 of 12 devices are free"."""
    devices = count_text(omission.device_count, "device")
    more = omission.device_count - found.device_count
    is_used_up = found.quota is not None and found.quota.limit is not None
    if omission.free_count and not is_used_up:
        gain = f"now, {omission.free_count} of {devices} {'is' if omission.free_count == 1 else 'are'} free"
    elif more > 0:
        obstacle = "but the quota is used up" if is_used_up else "none of them available now"
        gain = f"{devices} instead of {found.device_count}, {obstacle}"
    else:
        gain = "no other device"
    return f"without {omission.clause}: {gain}"


def _candidates(found: Explanation) -> list[RenderableType]:
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, state, holder in candidate_rows(found):
        table.add_row(Text(name), state, Text(holder))
    hidden = found.device_count - len(found.candidates)
    head = Text(f"{count_text(found.device_count, 'device')} would do", "bold")
    return [head, *([table] if found.candidates else []), *([Text(f"and {hidden} more", "dim")] if hidden > 0 else [])]


def _holder(candidate: Candidate, now_sec: float) -> str:
    lease, booking = candidate.lease, candidate.booking
    held = f"{lease.held_by} for {elapsed_text(lease.held_sec)}, {lease.lease_class}" if lease else candidate.reason
    if candidate.free_at_sec is not None:
        held += f", expected free in {elapsed_text(max(candidate.free_at_sec - now_sec, 0.0))}"
    return "; ".join(filter(None, (held, booking_text(booking) if booking else "")))
