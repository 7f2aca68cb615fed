"""Packs that installed Python packages bring, found without importing these packages.

[project.entry-points."fleet.packs"]
rpi4 = "lab_packs.rpi4"                     # the layout is the folder lab_packs/rpi4
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

from fleet.base.config import did_you_mean
from fleet.errors import NotFound

_GROUP = "fleet.packs"


def packaged_names() -> list[str]:
    """Return the names of all such packs, sorted."""
    return sorted({one.name for one in importlib.metadata.entry_points(group=_GROUP)})


def packaged_folder(name: str) -> Path:
    """Return the folder of a pack.

    Raises:
        NotFound: no installed package has it.
    """
    found = sorted(importlib.metadata.entry_points(group=_GROUP, name=name), key=lambda one: one.value)
    if not found:
        known = packaged_names()
        raise NotFound(f"no installed package has a pack {name!r}{did_you_mean(name, known) if known else ''}")
    for folder in _folders(found[0].value):
        if folder.is_dir():
            return folder
    raise NotFound(f"the entry point {name} = {found[0].value!r} of {_GROUP} names no folder of an installed package")


def _folders(value: str) -> list[Path]:
    """Return the places of a folder "package.part". Only the top package is looked up, which imports nothing."""
    top, *below = value.replace(":", ".").split(".")
    try:
        spec = importlib.util.find_spec(top) if top else None
    except (ImportError, ValueError):
        return []
    return [Path(place, *below) for place in (spec.submodule_search_locations or ()) if all(below)] if spec else []
