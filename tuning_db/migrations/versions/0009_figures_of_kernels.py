"""Table of the figures of kernels: a short row for each kernel, with an index for each order in which they are listed.

Revision 0009, on top of 0008. The rows of the kernels that are there are made from their JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy import Float

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
ORDERS = ("us", "tflops", "default_ratio", "baseline_ratio", "work")
ROWS_AT_ONCE = 1000


def upgrade() -> None:
    table = op.create_table(
        "kernel_figures",
        sa.Column("seq", SERIAL, primary_key=True, autoincrement=False),
        sa.Column("gemm_id", SERIAL, nullable=False),
        sa.Column("m_min", sa.BigInteger(), nullable=False),
        sa.Column("m_max", sa.BigInteger(), nullable=False),
        sa.Column("n", sa.BigInteger(), nullable=False),
        sa.Column("k", sa.BigInteger(), nullable=False),
        sa.Column("dtype", sa.String(8), nullable=False),
        sa.Column("device_key", sa.String(255), nullable=False),
        sa.Column("regime", sa.String(16), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("family", sa.String(64), nullable=False),
        sa.Column("work", Float(53), nullable=False),
        sa.Column("us", Float(53), nullable=True),
        sa.Column("tflops", Float(53), nullable=True),
        sa.Column("default_ratio", Float(53), nullable=True),
        sa.Column("baseline", sa.String(64), nullable=True),
        sa.Column("baseline_ratio", Float(53), nullable=True),
        sa.ForeignKeyConstraint(["seq"], ["kernels.seq"], name="fk_kernel_figures_seq_kernels", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["gemm_id"], ["gemms.id"], name="fk_kernel_figures_gemm_id_gemms"),
    )
    rows = _rows(op.get_bind())
    while page := list(islice(rows, ROWS_AT_ONCE)):
        op.bulk_insert(table, page)
    op.create_index("ix_kernel_figures_gemm_id", "kernel_figures", ["gemm_id"])
    for order in ORDERS:
        op.create_index(f"ix_kernel_figures_{order}_seq", "kernel_figures", [order, "seq"])


def downgrade() -> None:
    op.drop_table("kernel_figures")


def _rows(connection: sa.Connection) -> Iterator[dict[str, Any]]:
    kernels = sa.text(
        "SELECT kernels.seq, kernels.gemm_id, kernels.device_key, kernels.regime, kernels.role, kernels.config, "
        "kernels.timings, gemms.m_min, gemms.m_max, gemms.n, gemms.k, gemms.batch, gemms.dtype "
        "FROM kernels JOIN gemms ON gemms.id = kernels.gemm_id WHERE kernels.seq > :after "
        f"ORDER BY kernels.seq LIMIT {ROWS_AT_ONCE}"
    )
    after = -1
    while page := connection.execute(kernels, {"after": after}).all():
        yield from (_figures(row) for row in page)
        after = page[-1].seq


def _figures(row: Any) -> dict[str, Any]:
    same = ("seq", "gemm_id", "m_min", "m_max", "n", "k", "dtype", "device_key", "regime", "role")
    values = {name: getattr(row, name) for name in same}
    config, timings = _object(row.config), _object(row.timings)
    work = 2.0 * row.m_max * row.n * row.k * row.batch
    timing = _object(timings.get(row.regime))
    us = _positive(timing.get("median_us"))
    baselines = _object(timing.get("baselines"))
    ratios = {name: ratio for name in baselines if (ratio := _positive(_object(baselines[name]).get("ratio")))}
    default = ratios.pop("default", None)
    baseline = min(ratios, key=lambda name: (ratios[name], name), default=None)
    return values | {
        "family": str(config.get("family", ""))[:64],
        "work": work,
        "us": us,
        "tflops": work / us / 1e6 if us else None,
        "default_ratio": default,
        "baseline": baseline and baseline[:64],
        "baseline_ratio": ratios[baseline] if baseline else None,
    }


def _object(value: Any) -> dict[str, Any]:
    """A JSON object, which PostgreSQL gives as it is and SQLite as text; an empty one where it is something else."""
    try:
        read = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        read = None
    return read if isinstance(read, dict) else {}


def _positive(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and 0 < value < float("inf") else None
