"""A snapshot of the shared cost model, as it is sent to searches."""

from __future__ import annotations

from dataclasses import dataclass, field

from fleet.base.digests import digest_of
from fleet.errors import InvalidRequest

_MOST_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSnapshot:
    """A trained cost model, and the target kinds that it covers."""

    digest: str
    """ "sha256:<hex>" of its content."""

    content: bytes = field(repr=False)
    feature_version: str
    target_kinds: tuple[str, ...]
    """ "llvm", "cuda", ..."""

    record_count: int
    made_at_sec: float

    def check(self) -> None:
        """Refuse content that differs from its digest, or is too large for a snapshot.

        Raises:
            InvalidRequest: it is.
        """
        if len(self.content) > _MOST_BYTES:
            raise InvalidRequest(f"a snapshot of {len(self.content)} bytes is too large; the limit is {_MOST_BYTES}")
        if self.digest != digest_of(self.content):
            raise InvalidRequest(f"the content of snapshot {self.digest} has another digest")
