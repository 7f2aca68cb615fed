"""Bundles for tests, kept in the test cache: their parts are downloaded once."""

from __future__ import annotations

import os
from unittest import mock

from cross.bundle.archive import Bundle, make_bundle, spec_for
from tests.emulated.cache import cache_dir, locked


def bundle_for(board: str) -> Bundle:
    """Return the bundle that `fleet agent bundle --board ...` makes of the current code."""
    with locked(f"bundle-{board}"), mock.patch.dict(os.environ, {"FLEET_CACHE_DIR": str(cache_dir() / "fleet")}):
        return make_bundle(spec_for(board), lambda _: None)
