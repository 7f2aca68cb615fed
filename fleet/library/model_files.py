"""Files of models in the library, by digest, so that any optimizer can read a submitted model.

A file lies there in parts, each a row: no database likes rows of hundreds of megabytes, and both kinds do these alike.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import sqlalchemy as sa

from fleet.base.digests import digest_of
from fleet.errors import LibraryError, NotFound
from fleet.library import engine as engines
from fleet.library.schema import insert_into, model_parts

_PART_BYTES = 4 << 20


class ModelFiles:
    """The model files in one library."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def add(self, path: Path) -> str:
        """Store a file unless its content is stored; return its digest, "sha256:<hex>".

        Each part is a transaction: a whole model would keep all others from writing. If this process is killed, the
        next one that stores the file completes it.

        Raises:
            LibraryError: it cannot be read or stored.
            DiskFull: no space left.
        """
        digest = _digest_of(path)
        if self._stored_bytes(digest) == path.stat().st_size:
            return digest
        with path.open("rb") as file:
            for part, content in enumerate(iter(lambda: file.read(_PART_BYTES), b"")):
                with engines.writing(self._engine) as connection:
                    row = {"digest": digest, "part": part, "content": content}
                    connection.execute(insert_into(connection, model_parts).on_conflict_do_nothing(), row)
        return digest

    def write(self, digest: str, path: Path) -> None:
        """Write a stored file to a path.

        Raises:
            NotFound: the library has no such file, or a damaged one.
            OSError: no room for it.
        """
        query = sa.select(model_parts.c.content).where(model_parts.c.digest == digest).order_by(model_parts.c.part)
        found = hashlib.sha256()
        with path.open("wb") as file, engines.reading(self._engine) as connection:
            for content in connection.execution_options(yield_per=1).scalars(query):
                file.write(content)
                found.update(content)
            size = file.tell()
        if f"sha256:{found.hexdigest()}" == digest:  # also checks an empty file, which has no parts
            return
        what = (
            f"the model file {digest} in the library is damaged" if size else f"the library has no model file {digest}"
        )
        raise NotFound(f"{what}; submit the model again")

    def _stored_bytes(self, digest: str) -> int:
        size = sa.func.sum(sa.func.length(model_parts.c.content))
        with engines.reading(self._engine) as connection:
            found: int | None = connection.scalar(sa.select(size).where(model_parts.c.digest == digest))
        return found or 0


def _digest_of(path: Path) -> str:
    try:
        return digest_of(path)
    except OSError as error:
        raise LibraryError(f"cannot read {path}: {error.strerror}") from error
