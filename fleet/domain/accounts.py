"""Names of accounts, in whose shares requests count. Members without one count by their key's id."""

from __future__ import annotations

import re

from fleet.base.text import sanitize
from fleet.errors import InvalidRequest

MAX_ACCOUNT_CHARS = 100
_KEY_ID = re.compile(r"[0-9a-f]{40}")


def checked_account(name: str) -> str:
    """Return the name of an account, or the id of a key.

    Raises:
        InvalidRequest: it is too long, or has control characters or outer spaces.
    """
    if len(name) > MAX_ACCOUNT_CHARS:
        raise InvalidRequest(f"the account's name has {len(name)} characters; at most {MAX_ACCOUNT_CHARS} are taken")
    if sanitize(name).strip() != name:
        raise InvalidRequest("the account's name has control characters or outer spaces; leave them out")
    return name


def checked_new_account(name: str) -> str:
    """Return the name that an admin gives to an account.

    Raises:
        InvalidRequest: it is malformed, or could be the id of another member's key.
    """
    if _KEY_ID.fullmatch(name.lower()):
        raise InvalidRequest("an account's name of 40 hex digits could be a member's key; choose another name")
    return checked_account(name)


def account_text(account: str) -> str:
    """Return the display form of an account: the beginning of a key's id, or the name."""
    return account[:8] if _KEY_ID.fullmatch(account) else account


def account_rights_text(account: str, *, may_ask_for_others: bool) -> str:
    """Return a member's account and its right to ask for others, for tables."""
    return ", ".join(filter(None, (account, "for others" if may_ask_for_others else "")))
