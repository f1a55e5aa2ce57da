"""Tables of tuning records: problems, devices, candidates with their samples, attempts."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Float, ForeignKey, Index, Integer, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from tirgemm.tuning_db.models.base import NEVER_REUSED, Base, JsonColumn, Serial


class GemmRow(Base):
    """A problem, and with it a MetaSchedule workload. ``text`` is the whole of it; the other columns are for
    queries."""

    __tablename__ = "gemms"

    id: Mapped[int] = mapped_column(Serial, primary_key=True)
    text: Mapped[str] = mapped_column(String(512), unique=True)
    m_min: Mapped[int] = mapped_column(BigInteger)
    m_max: Mapped[int] = mapped_column(BigInteger)
    n: Mapped[int] = mapped_column(BigInteger)
    k: Mapped[int] = mapped_column(BigInteger)
    batch: Mapped[int] = mapped_column(BigInteger)
    dtype: Mapped[str] = mapped_column(String(8))
    layout: Mapped[str] = mapped_column(String(2))


class DeviceRow(Base):
    """A class of interchangeable devices, as last described."""

    __tablename__ = "devices"

    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    description: Mapped[Any] = mapped_column(JsonColumn)
    updated_at: Mapped[str] = mapped_column(String(32))


class ImportRow(Base):
    """A records file that was merged in: where rows with this ``origin`` come from."""

    __tablename__ = "imports"

    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    header: Mapped[Any] = mapped_column(JsonColumn)
    imported_at: Mapped[str] = mapped_column(String(32))


class CandidateRow(Base):
    """A candidate. ``search_us`` is its comparable time in the search, to sort by."""

    __tablename__ = "candidates"
    __table_args__ = (
        UniqueConstraint("gemm_id", "device_key", "regime", "config_digest"),
        Index(None, "device_key", "regime", "status", "id"),
        # Holds all that a list of problems counts, so that it reads no row.
        Index("ix_candidates_counts", "gemm_id", "device_key", "regime", "family", "status", "search_us"),
        NEVER_REUSED,
    )

    id: Mapped[int] = mapped_column(Serial, primary_key=True)
    gemm_id: Mapped[int] = mapped_column(ForeignKey("gemms.id"))
    device_key: Mapped[str] = mapped_column(String(255))
    regime: Mapped[str] = mapped_column(String(16))
    config_digest: Mapped[str] = mapped_column(String(16))
    family: Mapped[str] = mapped_column(String(64))
    config: Mapped[Any] = mapped_column(JsonColumn)
    status: Mapped[str] = mapped_column(String(16))
    message: Mapped[str] = mapped_column(Text)
    rule: Mapped[str] = mapped_column(Text)
    error: Mapped[float | None] = mapped_column(Float(53))
    trace: Mapped[Any] = mapped_column(JsonColumn, nullable=True)
    source_sha256: Mapped[str] = mapped_column(String(64))
    binary_sha256: Mapped[str] = mapped_column(String(64))
    kernel_sha256: Mapped[str] = mapped_column(String(64))
    attempt: Mapped[int] = mapped_column(Integer)
    predicted_us: Mapped[float | None] = mapped_column(Float(53))
    search_us: Mapped[float | None] = mapped_column(Float(53))
    origin: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[str] = mapped_column(String(32))
    updated_at: Mapped[str] = mapped_column(String(32))


class SampleSetRow(Base):
    """Raw samples of one measurement; never changed, only added. ``digest`` is over all of it but the origin."""

    __tablename__ = "sample_sets"
    __table_args__ = (Index(None, "candidate_id", "digest"), NEVER_REUSED)

    id: Mapped[int] = mapped_column(Serial, primary_key=True)
    candidate_id: Mapped[int] = mapped_column(ForeignKey("candidates.id", ondelete="CASCADE"))
    digest: Mapped[str] = mapped_column(String(64))
    reason: Mapped[str] = mapped_column(String(16))
    samples_us: Mapped[Any] = mapped_column(JsonColumn)
    baselines: Mapped[Any] = mapped_column(JsonColumn)
    conditions: Mapped[Any] = mapped_column(JsonColumn)
    median_us: Mapped[float] = mapped_column(Float(53))
    origin: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[str] = mapped_column(String(32))


class AttemptRow(Base):
    """An attempt to build or run a config, written before it starts; without ``recorded_at`` it was lost to a kill."""

    __tablename__ = "attempts"

    gemm_id: Mapped[int] = mapped_column(ForeignKey("gemms.id"), primary_key=True)
    device_key: Mapped[str] = mapped_column(String(255), primary_key=True)
    regime: Mapped[str] = mapped_column(String(16), primary_key=True)
    config_digest: Mapped[str] = mapped_column(String(16), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    started_at: Mapped[str] = mapped_column(String(32))
    recorded_at: Mapped[str | None] = mapped_column(String(32))
