"""What holds for every test."""

from __future__ import annotations

from hypothesis import settings

# How long an example takes depends on what else the machine does: hypothesis sets a deadline of 200 ms otherwise.
settings.register_profile("fleet", deadline=None)
settings.load_profile("fleet")
