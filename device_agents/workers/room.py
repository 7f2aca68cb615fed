"""The directories of one worker: its home, which it may fill, and the artifacts given to it, which it may read."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from device_agents.machine.removal import remove_tree


@dataclass(frozen=True, slots=True)
class Room:
    """Made by `make`; the agent removes it when the worker is gone."""

    path: Path
    _given: set[str] = field(default_factory=set)

    @classmethod
    def make(cls, path: Path) -> Self:
        """Make the directories."""
        room = cls(path)
        path.mkdir(mode=0o755)
        room.home.mkdir(mode=0o700)
        room.artifacts.mkdir(mode=0o755)
        room.root.mkdir(mode=0o755)
        return room

    @property
    def home(self) -> Path:
        """Working directory, home and place for temporary files."""
        return self.path / "home"

    @property
    def artifacts(self) -> Path:
        """What it was given."""
        return self.path / "artifacts"

    @property
    def root(self) -> Path:
        """Empty; over it the worker's own root is made, in its own mount namespace."""
        return self.path / "root"

    def give(self, artifact: Path) -> Path:
        """Let the worker read a file, and return where it finds it."""
        place = self.artifacts / artifact.name
        if artifact.name not in self._given:
            try:
                os.link(artifact, place)
            except OSError:  # another file system, or one without hard links
                shutil.copyfile(artifact, place)
            self._given.add(artifact.name)
        return place

    def remove(self) -> None:
        """Remove all of it."""
        remove_tree(self.path)
