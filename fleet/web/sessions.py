"""Links that sign in once, and the sessions that they open. Pure: time is passed in.

A link carries a token: right, expiry, a random number and their signature. Its secret is in a file of mode 0600, so
that only processes of the server's user can make one.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import secrets
from dataclasses import dataclass

from fleet.errors import NotAllowed

LINK_SEC = 600.0
"""Lifetime of a link."""
SESSION_SEC = 12 * 3600.0
_MOST_SESSIONS = 1000
_MOST_TOKEN_CHARS = 200
_BAD_LINK = "this link is invalid, has expired or was used before; get another one with: fleet web login"


class Right(enum.StrEnum):
    """Permission of a session."""

    READ = "read"
    ACT = "act"
    """Reads, and sends forms."""


@dataclass(slots=True, kw_only=True)
class Session:
    """A signed-in browser."""

    right: Right
    csrf: str
    """Secret that forms of this session carry."""
    ends_at_sec: float
    notice: str = ""
    """Result of the last form, shown on the next page."""

    @property
    def may_act(self) -> bool:
        """True if its forms are taken."""
        return self.right is Right.ACT

    def check_form(self, csrf: str) -> None:
        """Check a form of this session.

        Raises:
            NotAllowed: the session only reads, or the form is from elsewhere.
        """
        if not self.may_act:
            raise NotAllowed("this browser may only read; sign in with a link of: fleet web login")
        self.check_csrf(csrf)

    def check_csrf(self, csrf: str) -> None:
        """Check that a form is from a page of this session.

        Raises:
            NotAllowed: it is not.
        """
        if not is_equal(csrf, self.csrf):
            raise NotAllowed("the form is not from this page or from an earlier session; open the page again")


def make_token(secret: str, right: Right, now_sec: float) -> str:
    """Return the token of a link."""
    body = f"{right}.{int(now_sec + LINK_SEC)}.{secrets.token_urlsafe(18)}"
    return f"{body}.{_signature(secret, body)}"


class Sessions:
    """Sessions of one server."""

    def __init__(self, secret: str) -> None:
        self._secret = secret
        self._sessions: dict[str, Session] = {}
        self._used: dict[str, float] = {}
        """Ends of used tokens by the tokens."""

    def open(self, token: str, now_sec: float) -> tuple[str, Session]:
        """Use up a token; return the cookie of its session, and the session.

        Raises:
            NotAllowed: the token is forged, used or too old.
        """
        right, ends_at_sec = self._checked(token, now_sec)
        self._forget(now_sec)
        self._used[token] = ends_at_sec
        if len(self._sessions) >= _MOST_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        cookie = secrets.token_urlsafe(32)
        session = Session(right=right, csrf=secrets.token_urlsafe(32), ends_at_sec=now_sec + SESSION_SEC)
        self._sessions[_digest(cookie)] = session
        return cookie, session

    def find(self, cookie: str, now_sec: float) -> Session | None:
        """Return the live session of a cookie."""
        found = self._sessions.get(_digest(cookie))
        return found if found is not None and found.ends_at_sec > now_sec else None

    def close(self, cookie: str) -> None:
        """End a session. Idempotent."""
        self._sessions.pop(_digest(cookie), None)

    def _checked(self, token: str, now_sec: float) -> tuple[Right, float]:
        body, _, signature = token[:_MOST_TOKEN_CHARS].rpartition(".")
        if not is_equal(signature, _signature(self._secret, body)) or token in self._used:
            raise NotAllowed(_BAD_LINK)
        right, ends_at_sec, _ = body.split(".")
        if float(ends_at_sec) <= now_sec:
            raise NotAllowed(_BAD_LINK)
        return Right(right), float(ends_at_sec)

    def _forget(self, now_sec: float) -> None:
        self._used = {token: ends_at_sec for token, ends_at_sec in self._used.items() if ends_at_sec > now_sec}
        self._sessions = {key: one for key, one in self._sessions.items() if one.ends_at_sec > now_sec}


def is_equal(one: str, other: str) -> bool:
    """Compare secrets in constant time."""
    return hmac.compare_digest(one.encode(errors="replace"), other.encode(errors="replace"))


def _signature(secret: str, body: str) -> str:
    return hmac.new(secret.encode(), body.encode(errors="replace"), hashlib.sha256).hexdigest()


def _digest(cookie: str) -> str:
    """Return the key of a session: looking it up takes no time that depends on the cookie."""
    return hashlib.sha256(cookie.encode(errors="replace")).hexdigest()
