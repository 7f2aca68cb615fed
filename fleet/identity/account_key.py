"""This account's key, which identifies the owner of jobs in a library. Independent of trackers and fleets."""

from __future__ import annotations

import contextlib
import logging
import os

from fleet.base.config import credentials_dir
from fleet.base.private_files import make_private_dir, read_private, write_private
from fleet.errors import ConfigError

logger = logging.getLogger(__name__)

_NAME = "account.key"


def known_account_key_id() -> str:
    """Return the id of this account's key; empty if it has none yet. Writes nothing.

    Raises:
        ConfigError: other accounts can read the key, or it cannot be read.
    """
    from fleet.identity.certificates import own_key_id  # cryptography is slow to load

    try:
        return own_key_id(read_private(credentials_dir() / _NAME))
    except FileNotFoundError:
        return ""


def account_key_id() -> str:
    """Return the id of this account's key, creating it at first use; empty if it cannot be stored.

    Raises:
        ConfigError: other accounts can read the key, or it cannot be read.
    """
    known = known_account_key_id()
    if known:
        return known
    try:
        _make()
    except (OSError, ConfigError) as error:
        logger.warning("this account's jobs have no owner: its key cannot be stored", extra={"error": str(error)})
        return ""
    return known_account_key_id()


def _make() -> None:
    from fleet.identity.certificates import make_key

    folder = credentials_dir()
    make_private_dir(folder)
    fresh = folder / f"{_NAME}.{os.getpid()}"
    write_private(fresh, make_key())
    try:
        with contextlib.suppress(FileExistsError):  # another process was faster: use its key
            (folder / _NAME).hardlink_to(fresh)
    finally:
        fresh.unlink()
