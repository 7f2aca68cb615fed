"""Numbers of times in each scope."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from fleet.library.schema import required

revision = "9"
down_revision = "8"


def upgrade() -> None:
    op.create_table(
        "record_scopes",
        sa.Column("job_id", sa.Integer, primary_key=True, autoincrement=False),
        *(sa.Column(name, sa.Text, primary_key=True) for name in ("kind", "target_key", "device_model", "tvm_version")),
        *required(sa.Text, "target_json"),
        *required(sa.Integer, "times", "first_id"),
    )
    op.execute(
        "INSERT INTO record_scopes (job_id, kind, target_key, device_model, tvm_version, target_json, times, first_id) "
        "SELECT coalesce(job_id, 0), kind, target_key, device_model, tvm_version, min(target_json), count(*), min(id) "
        "FROM records WHERE error IS NULL "
        "GROUP BY coalesce(job_id, 0), kind, target_key, device_model, tvm_version"
    )


def downgrade() -> None:
    op.drop_table("record_scopes")
