"""Content digests: "sha256:<hex>"."""

from __future__ import annotations

import hashlib
from pathlib import Path


def digest_of(content: bytes | Path) -> str:
    """Return the digest of some bytes, or of a file's content.

    Raises:
        OSError: the file cannot be read.
    """
    if isinstance(content, Path):
        with content.open("rb") as file:
            return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
