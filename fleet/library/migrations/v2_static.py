"""Adds record kinds for static schedules, and for schedules timed in a model. The tables stay."""

from __future__ import annotations

from alembic import op

revision = "2"
down_revision = "1"


def upgrade() -> None:
    """Leave the tables as they are: the new version number keeps out programs that do not know the kinds."""


def downgrade() -> None:
    """Convert static schedules to trials, as version 1 had them; drop times within a model."""
    op.execute("DELETE FROM records WHERE kind = 'in place'")
    op.execute("UPDATE records SET kind = 'candidate' WHERE kind = 'static'")
