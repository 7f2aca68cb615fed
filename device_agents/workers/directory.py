"""Directories of one worker: its writable home, and its readable artifacts."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from device_agents.machine.removal import remove_tree
from fleet.errors import ConfigError

_OURS = re.compile(r"worker-[0-9]+|[0-9a-f]{16}")
"""Names that an agent leaves in the folder of its workers: their homes, and those being removed."""


@dataclass(frozen=True, slots=True)
class WorkerDirectory:
    """Made by `make`; the agent removes it when the worker is gone."""

    path: Path
    _given: set[str] = field(default_factory=set)

    @classmethod
    def make(cls, path: Path) -> Self:
        """Make the directories."""
        directory = cls(path)
        path.mkdir(mode=0o755)
        directory.home.mkdir(mode=0o700)
        directory.artifacts.mkdir(mode=0o755)
        directory.root.mkdir(mode=0o755)
        return directory

    @property
    def home(self) -> Path:
        """Working directory, home directory, and folder of temporary files."""
        return self.path / "home"

    @property
    def artifacts(self) -> Path:
        """Folder of its inputs."""
        return self.path / "artifacts"

    @property
    def root(self) -> Path:
        """Empty; mount point of the worker's own root."""
        return self.path / "root"

    def give(self, artifact: Path) -> Path:
        """Let the worker read a file, and return its path for the worker."""
        place = self.artifacts / artifact.name
        if artifact.name not in self._given:
            try:
                os.link(artifact, place)
            except OSError:  # another file system, or one without hard links
                shutil.copyfile(artifact, place)
            self._given.add(artifact.name)
        return place

    def remove(self) -> None:
        """Remove all directories."""
        remove_tree(self.path)


def check_directories(directory: Path) -> None:
    """Refuse a folder that holds other files, because it will be emptied.

    Only before an agent's first start there: later a kernel without a jail may have left anything in it, and must
    not keep the agent from starting.

    Raises:
        ConfigError: somebody chose a state directory that has a folder of this name.
    """
    found = sorted(entry.name for entry in directory.iterdir()) if directory.is_dir() else []
    foreign = next((name for name in found if not _OURS.fullmatch(name)), None)
    if foreign is not None:
        raise ConfigError(
            f"{directory} is emptied when an agent starts, and holds {foreign!r}, which is no agent's; name another "
            "--state-dir"
        )
