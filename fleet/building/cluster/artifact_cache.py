"""A builder's cache of artifacts until they are fetched; evicts the oldest."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

from fleet.artifacts.artifact import Artifact

DEFAULT_MAX_BYTES = 2 * 1000**3


class ArtifactCache:
    """A folder of artifacts by digest. Removed artifacts are built again."""

    def __init__(self, folder: Path, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._artifacts: OrderedDict[str, tuple[Artifact, int]] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, artifact: Artifact) -> Artifact:
        """Move an artifact's file into the cache, and return the artifact with its new path."""
        here = replace(artifact, path=self._folder / artifact.path.name)
        size_bytes = artifact.path.stat().st_size
        with self._lock:
            artifact.path.replace(here.path)
            self._artifacts[here.digest] = here, size_bytes
            self._artifacts.move_to_end(here.digest)
            total_bytes = sum(size for _, size in self._artifacts.values())
            while total_bytes > self._max_bytes and len(self._artifacts) > 1:
                oldest, size_bytes = self._artifacts.popitem(last=False)[1]
                oldest.path.unlink(missing_ok=True)
                total_bytes -= size_bytes
        return here

    def get(self, digest: str) -> Artifact | None:
        """Return an artifact; None if it is not in the cache."""
        with self._lock:
            found = self._artifacts.get(digest)
            if found is None:
                return None
            self._artifacts.move_to_end(digest)
            return found[0]
