"""The first schema: problems, devices, candidates with samples and attempts, certificates, kernels, jobs, events.

Revision 0001; nothing comes before it.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _column(
    name: str, kind: sa.types.TypeEngine[Any], nullable: bool = False, autoincrement: Any = "auto"
) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=nullable, autoincrement=autoincrement)


def upgrade() -> None:
    op.create_table(
        "artifacts",
        _column("sha256", sa.String(64)),
        _column("nbytes", sa.BigInteger()),
        _column("kernel_sha256", sa.String(64)),
        _column("created_at", sa.String(32)),
        sa.PrimaryKeyConstraint("sha256"),
    )
    op.create_index("ix_artifacts_kernel_sha256", "artifacts", ["kernel_sha256"])
    op.create_table(
        "certificates",
        _column("digest", sa.String(64)),
        _column("kernel_sha256", sa.String(64)),
        _column("passed", sa.Boolean()),
        _column("tests", sa.JSON()),
        _column("reference", sa.Text()),
        _column("environment", sa.JSON()),
        _column("at", sa.String(64)),
        sa.PrimaryKeyConstraint("digest"),
    )
    op.create_index("ix_certificates_kernel_sha256", "certificates", ["kernel_sha256"])
    op.create_table(
        "devices",
        _column("key", sa.String(255)),
        _column("description", sa.JSON()),
        _column("updated_at", sa.String(32)),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_table(
        "gemms",
        _column("id", SERIAL),
        _column("text", sa.String(512)),
        _column("m_min", sa.BigInteger()),
        _column("m_max", sa.BigInteger()),
        _column("n", sa.BigInteger()),
        _column("k", sa.BigInteger()),
        _column("batch", sa.BigInteger()),
        _column("dtype", sa.String(8)),
        _column("layout", sa.String(2)),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("text"),
    )
    op.create_table(
        "imports",
        _column("sha256", sa.String(64)),
        _column("header", sa.JSON()),
        _column("imported_at", sa.String(32)),
        sa.PrimaryKeyConstraint("sha256"),
    )
    op.create_table(
        "workers",
        _column("name", sa.String(255)),
        _column("devices", sa.JSON()),
        _column("seen", sa.Float(53)),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "attempts",
        _column("gemm_id", SERIAL),
        _column("device_key", sa.String(255)),
        _column("regime", sa.String(16)),
        _column("config_digest", sa.String(16)),
        _column("number", sa.Integer(), autoincrement=False),
        _column("started_at", sa.String(32)),
        _column("recorded_at", sa.String(32), nullable=True),
        sa.ForeignKeyConstraint(["gemm_id"], ["gemms.id"]),
        sa.PrimaryKeyConstraint("gemm_id", "device_key", "regime", "config_digest", "number"),
    )
    op.create_table(
        "candidates",
        _column("id", SERIAL),
        _column("gemm_id", SERIAL),
        _column("device_key", sa.String(255)),
        _column("regime", sa.String(16)),
        _column("config_digest", sa.String(16)),
        _column("family", sa.String(64)),
        _column("config", sa.JSON()),
        _column("status", sa.String(16)),
        _column("message", sa.Text()),
        _column("rule", sa.Text()),
        _column("error", sa.Float(53), nullable=True),
        _column("trace", sa.JSON(), nullable=True),
        _column("source_sha256", sa.String(64)),
        _column("binary_sha256", sa.String(64)),
        _column("kernel_sha256", sa.String(64)),
        _column("attempt", sa.Integer()),
        _column("predicted_us", sa.Float(53), nullable=True),
        _column("search_us", sa.Float(53), nullable=True),
        _column("origin", sa.String(64)),
        _column("created_at", sa.String(32)),
        _column("updated_at", sa.String(32)),
        sa.ForeignKeyConstraint(["gemm_id"], ["gemms.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("gemm_id", "device_key", "regime", "config_digest"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_candidates_device_key_regime_status_id", "candidates", ["device_key", "regime", "status", "id"])
    op.create_table(
        "kernels",
        _column("seq", SERIAL),
        _column("id", sa.String(32)),
        _column("gemm_id", SERIAL),
        _column("device_key", sa.String(255)),
        _column("regime", sa.String(16)),
        _column("role", sa.String(16)),
        _column("device", sa.JSON()),
        _column("config", sa.JSON()),
        _column("kernel_sha256", sa.String(64)),
        _column("artifact_sha256", sa.String(64)),
        _column("certificate_digest", sa.String(64), nullable=True),
        _column("timings", sa.JSON()),
        _column("trials", sa.Integer()),
        _column("origin", sa.String(64)),
        _column("created_at", sa.String(64)),
        _column("stored_at", sa.String(32)),
        sa.ForeignKeyConstraint(["artifact_sha256"], ["artifacts.sha256"]),
        sa.ForeignKeyConstraint(["certificate_digest"], ["certificates.digest"]),
        sa.ForeignKeyConstraint(["device_key"], ["devices.key"]),
        sa.ForeignKeyConstraint(["gemm_id"], ["gemms.id"]),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_kernels_gemm_id_device_key_regime_role_stored_at",
        "kernels",
        ["gemm_id", "device_key", "regime", "role", "stored_at"],
    )
    op.create_index("ix_kernels_kernel_sha256", "kernels", ["kernel_sha256"])
    op.create_table(
        "jobs",
        _column("seq", SERIAL),
        _column("id", sa.String(32)),
        _column("live_key", sa.String(64), nullable=True),
        _column("gemm_id", SERIAL),
        _column("device_key", sa.String(255)),
        _column("device", sa.JSON()),
        _column("regime", sa.String(16)),
        _column("trials", sa.Integer()),
        _column("seconds", sa.Float(53)),
        _column("seed", sa.BigInteger()),
        _column("verify", sa.Boolean()),
        _column("status", sa.String(16)),
        _column("fallback_id", sa.String(32), nullable=True),
        _column("kernel_id", sa.String(32), nullable=True),
        _column("error", sa.Text(), nullable=True),
        _column("attempts", sa.Integer()),
        _column("owner", sa.String(255), nullable=True),
        _column("lease_until", sa.Float(53), nullable=True),
        _column("created_at", sa.String(32)),
        _column("started_at", sa.String(32), nullable=True),
        _column("finished_at", sa.String(32), nullable=True),
        sa.ForeignKeyConstraint(["fallback_id"], ["kernels.id"]),
        sa.ForeignKeyConstraint(["gemm_id"], ["gemms.id"]),
        sa.ForeignKeyConstraint(["kernel_id"], ["kernels.id"]),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("id"),
        sa.UniqueConstraint("live_key"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_jobs_status_device_key_seq", "jobs", ["status", "device_key", "seq"])
    op.create_table(
        "sample_sets",
        _column("id", SERIAL),
        _column("candidate_id", SERIAL),
        _column("digest", sa.String(64)),
        _column("reason", sa.String(16)),
        _column("samples_us", sa.JSON()),
        _column("baselines", sa.JSON()),
        _column("conditions", sa.JSON()),
        _column("median_us", sa.Float(53)),
        _column("origin", sa.String(64)),
        _column("created_at", sa.String(32)),
        sa.ForeignKeyConstraint(["candidate_id"], ["candidates.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_sample_sets_candidate_id_digest", "sample_sets", ["candidate_id", "digest"])
    op.create_table(
        "events",
        _column("id", SERIAL),
        _column("job_id", sa.String(32)),
        _column("kind", sa.String(64)),
        _column("data", sa.JSON()),
        _column("at", sa.String(32)),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_job_id_id", "events", ["job_id", "id"])


def downgrade() -> None:
    for table in (
        "events",
        "sample_sets",
        "jobs",
        "kernels",
        "candidates",
        "attempts",
        "workers",
        "imports",
        "gemms",
        "devices",
        "certificates",
        "artifacts",
    ):
        op.drop_table(table)
