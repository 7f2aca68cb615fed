"""Links sign in once; forms carry their session's secret."""

from __future__ import annotations

import pytest

from fleet.errors import NotAllowed
from fleet.web.sessions import LINK_SEC, SESSION_SEC, Right, Session, Sessions, make_token

NOW = 1_000_000.0


def test_a_link_signs_one_browser_in() -> None:
    """A second browser with the same link is refused: the first one may have been a thief's."""
    sessions = Sessions("secret")
    token = make_token("secret", Right.ACT, NOW)

    cookie, session = sessions.open(token, NOW)

    assert sessions.find(cookie, NOW) is session
    assert session.right is Right.ACT
    with pytest.raises(NotAllowed, match="used before"):
        sessions.open(token, NOW)


@pytest.mark.parametrize(
    "token",
    [
        "",
        "act",
        "...",
        "act.2000000.nonce.bad",
        make_token("another", Right.ACT, NOW),
        make_token("secret", Right.READ, NOW).replace("read", "act"),
        make_token("secret", Right.READ, NOW) + "0",
        "ä" * 300,
        make_token("secret", Right.ACT, NOW - LINK_SEC - 1),
    ],
    ids=["empty", "right", "dots", "bad", "another secret", "another right", "longer", "no ASCII", "late"],
)
def test_forged_changed_and_old_links_are_refused(token: str) -> None:
    """The signature covers right and expiry."""
    with pytest.raises(NotAllowed):
        Sessions("secret").open(token, NOW)


def test_sessions_end() -> None:
    """By time, or by signing out."""
    sessions = Sessions("secret")
    first, _ = sessions.open(make_token("secret", Right.READ, NOW), NOW)
    second, _ = sessions.open(make_token("secret", Right.READ, NOW), NOW)

    sessions.close(second)

    assert sessions.find(second, NOW) is None
    assert sessions.find(first, NOW + SESSION_SEC) is None
    assert sessions.find("", NOW) is None


def test_a_session_to_read_sends_no_forms() -> None:
    """Not even with the right secret."""
    session = Session(right=Right.READ, csrf="known", ends_at_sec=NOW)

    with pytest.raises(NotAllowed, match="only read"):
        session.check_form("known")


@pytest.mark.parametrize("csrf", ["", "other", "known ", "ünknown"])
def test_a_form_needs_the_secret_of_its_session(csrf: str) -> None:
    """A page of another origin cannot know it."""
    session = Session(right=Right.ACT, csrf="known", ends_at_sec=NOW)
    session.check_form("known")

    with pytest.raises(NotAllowed, match="not from this page"):
        session.check_form(csrf)


def test_sessions_are_bounded() -> None:
    """The oldest gives way."""
    sessions = Sessions("secret")
    cookies = [sessions.open(make_token("secret", Right.READ, NOW), NOW)[0] for _ in range(1001)]

    assert sessions.find(cookies[0], NOW) is None
    assert sessions.find(cookies[1], NOW) is not None
