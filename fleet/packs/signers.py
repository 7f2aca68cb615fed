"""File of allowed signers, in the format of ssh-keygen(1). No I/O.

    ann@lab.example.org ssh-ed25519 AAAAC3Nza... laptop
    lab@example.org namespaces="tvm-fleet-pack" ssh-ed25519 AAAAC3Nza...

Lines with options other than `namespaces` allow nobody.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase

from fleet.packs.sshsig import NAMESPACE, PublicKey

_LINE = re.compile(
    r'(?P<principals>"[^"]*"|[^\s"]+)\s+'
    r'(?:namespaces="(?P<namespaces>[^"]*)"\s+)?'
    r"(?P<kind>(?:ssh|ecdsa)-[\w-]+)\s+(?P<key>[A-Za-z0-9+/]+={0,2})(?:\s.*)?",
    re.IGNORECASE,
)


def parse_signers(text: str) -> Mapping[bytes, str]:
    """Return the names of the allowed signers by their public key."""
    found = {}
    for line in text.splitlines():
        parts = _LINE.fullmatch(line.strip())
        if parts is None or line.lstrip().startswith("#"):
            continue
        if parts["namespaces"] is not None and not _covers(parts["namespaces"]):
            continue
        try:
            key = PublicKey(base64.b64decode(parts["key"], validate=True))
        except ValueError:
            continue
        found[key.blob] = parts["principals"].strip('"')
    return found


def _covers(namespaces: str) -> bool:
    """Tell whether a comma-separated list of patterns has this namespace. A pattern after "!" excludes it."""
    patterns = namespaces.split(",")
    excluded = any(fnmatchcase(NAMESPACE, one[1:]) for one in patterns if one.startswith("!"))
    return not excluded and any(fnmatchcase(NAMESPACE, one) for one in patterns)
