"""Tables of kernels: certificates, artifacts, what lists and answers show of each, and the version of all of them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Boolean, Float, ForeignKey, Index, Integer, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from tirgemm.tuning_db.models.base import NEVER_REUSED, Base, JsonColumn, Serial


class CertificateRow(Base):
    """The evidence that one kernel is right; ``digest`` is over all of it."""

    __tablename__ = "certificates"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    kernel_sha256: Mapped[str] = mapped_column(String(64), index=True)
    passed: Mapped[bool] = mapped_column(Boolean)
    tests: Mapped[Any] = mapped_column(JsonColumn)
    reference: Mapped[str] = mapped_column(Text)
    environment: Mapped[Any] = mapped_column(JsonColumn)
    at: Mapped[str] = mapped_column(String(64))


class ArtifactRow(Base):
    """An artifact file in the blob store."""

    __tablename__ = "artifacts"

    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    nbytes: Mapped[int] = mapped_column(BigInteger)
    kernel_sha256: Mapped[str] = mapped_column(String(64), index=True)
    created_at: Mapped[str] = mapped_column(String(32))


class KernelRow(Base):
    """A kernel. Among those of one gemm, device class, regime and role the one with the latest ``stored_at`` answers,
    unless one is pinned. ``other_device``: the class of the device whose records it was chosen from, where that is
    another one than its own."""

    __tablename__ = "kernels"
    __table_args__ = (Index(None, "gemm_id", "device_key", "regime", "role", "stored_at"), NEVER_REUSED)

    seq: Mapped[int] = mapped_column(Serial, primary_key=True)
    id: Mapped[str] = mapped_column(String(32), unique=True)
    gemm_id: Mapped[int] = mapped_column(ForeignKey("gemms.id"))
    device_key: Mapped[str] = mapped_column(ForeignKey("devices.key"))
    regime: Mapped[str] = mapped_column(String(16))
    role: Mapped[str] = mapped_column(String(16))
    device: Mapped[Any] = mapped_column(JsonColumn)
    config: Mapped[Any] = mapped_column(JsonColumn)
    kernel_sha256: Mapped[str] = mapped_column(String(64), index=True)
    artifact_sha256: Mapped[str] = mapped_column(ForeignKey("artifacts.sha256"))
    certificate_digest: Mapped[str | None] = mapped_column(ForeignKey("certificates.digest"))
    timings: Mapped[Any] = mapped_column(JsonColumn)
    trials: Mapped[int] = mapped_column(Integer)
    origin: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[str] = mapped_column(String(64))
    stored_at: Mapped[str] = mapped_column(String(32))
    pinned_at: Mapped[str | None] = mapped_column(String(32))
    other_device: Mapped[str | None] = mapped_column(String(255))


class KernelFigureRow(Base):
    """What a kernel is listed and sorted by: short rows, which filters may walk through. Its times are those of its
    regime; ``work`` in FLOP, of the largest m; ``baseline`` is the fastest of those that ran beside it."""

    __tablename__ = "kernel_figures"
    __table_args__ = tuple(
        Index(f"ix_kernel_figures_{order}_seq", order, "seq")
        for order in ("us", "tflops", "default_ratio", "baseline_ratio", "work")
    )

    seq: Mapped[int] = mapped_column(
        Serial, ForeignKey("kernels.seq", ondelete="CASCADE"), primary_key=True, autoincrement=False
    )
    gemm_id: Mapped[int] = mapped_column(ForeignKey("gemms.id"), index=True)
    m_min: Mapped[int] = mapped_column(BigInteger)
    m_max: Mapped[int] = mapped_column(BigInteger)
    n: Mapped[int] = mapped_column(BigInteger)
    k: Mapped[int] = mapped_column(BigInteger)
    dtype: Mapped[str] = mapped_column(String(8))
    device_key: Mapped[str] = mapped_column(String(255))
    regime: Mapped[str] = mapped_column(String(16))
    role: Mapped[str] = mapped_column(String(16))
    family: Mapped[str] = mapped_column(String(64))
    work: Mapped[float] = mapped_column(Float(53))
    us: Mapped[float | None] = mapped_column(Float(53))
    tflops: Mapped[float | None] = mapped_column(Float(53))
    default_ratio: Mapped[float | None] = mapped_column(Float(53))
    baseline: Mapped[str | None] = mapped_column(String(64))
    baseline_ratio: Mapped[float | None] = mapped_column(Float(53))


class KernelDocumentRow(Base):
    """A kernel's document as text, as it is while the kernel is not pinned, in the form of the number ``rendering``;
    ``search`` is JSON of how its search ended, empty where nothing says. ``sha256`` of the text followed by that tells
    damage."""

    __tablename__ = "kernel_documents"
    __table_args__ = (Index(None, "rendering", "seq"),)

    seq: Mapped[int] = mapped_column(
        Serial, ForeignKey("kernels.seq", ondelete="CASCADE"), primary_key=True, autoincrement=False
    )
    rendering: Mapped[int] = mapped_column(Integer)
    search: Mapped[str] = mapped_column(Text)
    json: Mapped[str] = mapped_column(Text)
    sha256: Mapped[str] = mapped_column(String(64), server_default="")


class KernelVersionRow(Base):
    """The one row of this table, made at the first change, counts the changes of the stored kernels."""

    __tablename__ = "kernel_version"

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    number: Mapped[int] = mapped_column(BigInteger)
