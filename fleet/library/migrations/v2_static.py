"""Records of static schedules, and of schedules timed in a model, have kinds of their own. The tables stay."""

from __future__ import annotations

from alembic import op

revision = "2"
down_revision = "1"


def upgrade() -> None:
    """Leave the tables as they are: the version keeps programs away that do not know the kinds."""


def downgrade() -> None:
    """Turn static schedules into the trials that version 1 took them for; times within a model have no place there."""
    op.execute("DELETE FROM records WHERE kind = 'in place'")
    op.execute("UPDATE records SET kind = 'candidate' WHERE kind = 'static'")
