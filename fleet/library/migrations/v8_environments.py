"""Environments in which records were measured."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from fleet.library.schema import required

revision = "8"
down_revision = "7"


def upgrade() -> None:
    op.create_table(
        "environments",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("digest", sa.Text, nullable=False, unique=True),
        *required(sa.Text, "facts"),
    )
    op.create_table(
        "record_environments",
        sa.Column("record_id", sa.Integer, sa.ForeignKey("records.id"), primary_key=True, autoincrement=False),
        sa.Column("environment_id", sa.Integer, sa.ForeignKey("environments.id"), nullable=False),
    )
    op.create_table(
        "device_environments",
        sa.Column("device_model", sa.Text, primary_key=True),
        sa.Column("device_name", sa.Text, primary_key=True),
        sa.Column("environment_id", sa.Integer, sa.ForeignKey("environments.id"), nullable=False),
        *required(sa.DateTime, "seen_at"),
    )


def downgrade() -> None:
    for name in ("device_environments", "record_environments", "environments"):
        op.drop_table(name)
