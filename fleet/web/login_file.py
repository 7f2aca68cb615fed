"""Private file of a running page: its address and the secret of its links, for `fleet web login` of the same user."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Iterator
from pathlib import Path

from fleet.base.config import state_dir
from fleet.base.network import is_answered
from fleet.base.private_files import make_private_dir, read_private, write_private
from fleet.errors import NotFound
from fleet.web.sessions import Right, make_token


@contextlib.contextmanager
def login_file(port: int, url: str) -> Iterator[str]:
    """Keep the file of a page inside the block; return the secret of its links.

    Raises:
        OSError: it cannot be written.
    """
    path, secret = _path(port), secrets.token_urlsafe(32)
    make_private_dir(path.parent)
    write_private(path, json.dumps({"url": url, "secret": secret}).encode())
    try:
        yield secret
    finally:
        path.unlink(missing_ok=True)


def make_link(port: int, right: Right, now_sec: float) -> str:
    """Return a link that signs a browser in once.

    Raises:
        NotFound: this user serves no page at this port.
    """
    try:
        found = json.loads(read_private(_path(port)))
    except FileNotFoundError:
        found = None
    if found is None or not is_answered(f"127.0.0.1:{port}"):
        raise NotFound(f"this user serves no page at port {port}; start it with: fleet web --port {port}")
    return link(found["url"], found["secret"], right, now_sec)


def link(url: str, secret: str, right: Right, now_sec: float) -> str:
    """Return a link that signs a browser in once."""
    return f"{url}/login?token={make_token(secret, right, now_sec)}"


def _path(port: int) -> Path:
    return state_dir() / "web" / f"{port}.json"
