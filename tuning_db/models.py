"""The tables. Values that only people and the tuner read are JSON; what is searched by is a column.

Times are ISO 8601 texts in UTC with microseconds, which sort; leases and heartbeats are seconds since 1970.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Text,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

# SQLite gives row numbers to INTEGER keys only.
Serial = BigInteger().with_variant(Integer, "sqlite")
Json = JSON(none_as_null=True)
# Ids that must never be given out twice, even after the newest row was deleted.
NEVER_REUSED = {"sqlite_autoincrement": True}


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


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
    description: Mapped[Any] = mapped_column(Json)
    updated_at: Mapped[str] = mapped_column(String(32))


class ImportRow(Base):
    """A records file that was merged in: where rows with this ``origin`` come from."""

    __tablename__ = "imports"

    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    header: Mapped[Any] = mapped_column(Json)
    imported_at: Mapped[str] = mapped_column(String(32))


class CandidateRow(Base):
    """A candidate, and with its trace a MetaSchedule tuning record. ``search_us`` is the search's median, to sort
    by."""

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
    config: Mapped[Any] = mapped_column(Json)
    status: Mapped[str] = mapped_column(String(16))
    message: Mapped[str] = mapped_column(Text)
    rule: Mapped[str] = mapped_column(Text)
    error: Mapped[float | None] = mapped_column(Float(53))
    trace: Mapped[Any] = mapped_column(Json, nullable=True)
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
    samples_us: Mapped[Any] = mapped_column(Json)
    baselines: Mapped[Any] = mapped_column(Json)
    conditions: Mapped[Any] = mapped_column(Json)
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


class CertificateRow(Base):
    """The evidence that one kernel is right; ``digest`` is over all of it."""

    __tablename__ = "certificates"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    kernel_sha256: Mapped[str] = mapped_column(String(64), index=True)
    passed: Mapped[bool] = mapped_column(Boolean)
    tests: Mapped[Any] = mapped_column(Json)
    reference: Mapped[str] = mapped_column(Text)
    environment: Mapped[Any] = mapped_column(Json)
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
    unless one is pinned."""

    __tablename__ = "kernels"
    __table_args__ = (Index(None, "gemm_id", "device_key", "regime", "role", "stored_at"), NEVER_REUSED)

    seq: Mapped[int] = mapped_column(Serial, primary_key=True)
    id: Mapped[str] = mapped_column(String(32), unique=True)
    gemm_id: Mapped[int] = mapped_column(ForeignKey("gemms.id"))
    device_key: Mapped[str] = mapped_column(ForeignKey("devices.key"))
    regime: Mapped[str] = mapped_column(String(16))
    role: Mapped[str] = mapped_column(String(16))
    device: Mapped[Any] = mapped_column(Json)
    config: Mapped[Any] = mapped_column(Json)
    kernel_sha256: Mapped[str] = mapped_column(String(64), index=True)
    artifact_sha256: Mapped[str] = mapped_column(ForeignKey("artifacts.sha256"))
    certificate_digest: Mapped[str | None] = mapped_column(ForeignKey("certificates.digest"))
    timings: Mapped[Any] = mapped_column(Json)
    trials: Mapped[int] = mapped_column(Integer)
    origin: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[str] = mapped_column(String(64))
    stored_at: Mapped[str] = mapped_column(String(32))
    pinned_at: Mapped[str | None] = mapped_column(String(32))


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
    ``search`` is JSON of how its search ended, empty where nothing says."""

    __tablename__ = "kernel_documents"
    __table_args__ = (Index(None, "rendering", "seq"),)

    seq: Mapped[int] = mapped_column(
        Serial, ForeignKey("kernels.seq", ondelete="CASCADE"), primary_key=True, autoincrement=False
    )
    rendering: Mapped[int] = mapped_column(Integer)
    search: Mapped[str] = mapped_column(Text)
    json: Mapped[str] = mapped_column(Text)


class KernelVersionRow(Base):
    """The one row of this table, made at the first change, counts the changes of the stored kernels."""

    __tablename__ = "kernel_version"

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    number: Mapped[int] = mapped_column(BigInteger)


class JobRow(Base):
    """A tuning request. ``live_key`` is set while it is queued or running: the same request finds it there.

    It starts only within its window, minutes after midnight in UTC. What a batch grants it of the batch's budget is
    known when it starts; until then ``trials`` and ``seconds`` are its expected share. ``recorded_before`` counts the
    trials of its problem from before the batch.
    """

    __tablename__ = "jobs"
    __table_args__ = (Index(None, "status", "device_key", "seq"), NEVER_REUSED)

    seq: Mapped[int] = mapped_column(Serial, primary_key=True)
    id: Mapped[str] = mapped_column(String(32), unique=True)
    live_key: Mapped[str | None] = mapped_column(String(64), unique=True)
    gemm_id: Mapped[int] = mapped_column(ForeignKey("gemms.id"))
    device_key: Mapped[str] = mapped_column(String(255))
    device: Mapped[Any] = mapped_column(Json)
    regime: Mapped[str] = mapped_column(String(16))
    trials: Mapped[int] = mapped_column(Integer)
    seconds: Mapped[float] = mapped_column(Float(53))
    effort: Mapped[str] = mapped_column(String(16), server_default="standard")
    seed: Mapped[int] = mapped_column(BigInteger)
    verify: Mapped[bool] = mapped_column(Boolean)
    status: Mapped[str] = mapped_column(String(16))
    fallback_id: Mapped[str | None] = mapped_column(ForeignKey("kernels.id"))
    kernel_id: Mapped[str | None] = mapped_column(ForeignKey("kernels.id"))
    error: Mapped[str | None] = mapped_column(Text)
    attempts: Mapped[int] = mapped_column(Integer)
    key_id: Mapped[str | None] = mapped_column(String(16), index=True)
    owner: Mapped[str | None] = mapped_column(String(255))
    lease_until: Mapped[float | None] = mapped_column(Float(53), index=True)
    created_at: Mapped[str] = mapped_column(String(32))
    started_at: Mapped[str | None] = mapped_column(String(32))
    finished_at: Mapped[str | None] = mapped_column(String(32))
    priority: Mapped[int] = mapped_column(Integer, server_default="0")
    window_start: Mapped[int | None] = mapped_column(Integer)
    window_end: Mapped[int | None] = mapped_column(Integer)
    retries: Mapped[int] = mapped_column(Integer, server_default="0")
    retry_reason: Mapped[str | None] = mapped_column(Text)
    batch_id: Mapped[str | None] = mapped_column(String(32), index=True)
    expected_gain: Mapped[float | None] = mapped_column(Float(53))
    recorded_before: Mapped[int | None] = mapped_column(Integer)
    granted_trials: Mapped[int | None] = mapped_column(Integer)
    granted_seconds: Mapped[float | None] = mapped_column(Float(53))
    traceparent: Mapped[str | None] = mapped_column(String(55))
    claimed_at: Mapped[float | None] = mapped_column(Float(53))
    spent_seconds: Mapped[float] = mapped_column(Float(53), server_default="0")
    asked_at: Mapped[str] = mapped_column(String(32), server_default="")


# The order in which queued jobs are claimed.
Index("ix_jobs_queue_order", JobRow.status, JobRow.priority.desc(), JobRow.seq)


class BatchRow(Base):
    """Problems that were asked for together; ``trials`` and ``seconds`` are the budget of all of them, if there is
    one."""

    __tablename__ = "batches"
    __table_args__ = (Index(None, "key_id", "created_at"), NEVER_REUSED)

    seq: Mapped[int] = mapped_column(Serial, primary_key=True)
    id: Mapped[str] = mapped_column(String(32), unique=True)
    key_id: Mapped[str | None] = mapped_column(String(16))
    trials: Mapped[int | None] = mapped_column(Integer)
    seconds: Mapped[float | None] = mapped_column(Float(53))
    asked: Mapped[int] = mapped_column(Integer)
    created_at: Mapped[str] = mapped_column(String(32))
    cancelled_at: Mapped[str | None] = mapped_column(String(32))


class BatchItemRow(Base):
    """One problem of a batch: the job that works on it, or the kernel that was there already."""

    __tablename__ = "batch_items"

    batch_id: Mapped[str] = mapped_column(ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    gemm_id: Mapped[int] = mapped_column(ForeignKey("gemms.id"))
    device_key: Mapped[str] = mapped_column(String(255))
    regime: Mapped[str] = mapped_column(String(16))
    expected_gain: Mapped[float] = mapped_column(Float(53))
    job_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id", ondelete="SET NULL"), index=True)
    kernel_id: Mapped[str | None] = mapped_column(ForeignKey("kernels.id", ondelete="SET NULL"), index=True)


class EventRow(Base):
    """Something that happened to a job; ids grow, so that a reader goes on behind the last one that it saw."""

    __tablename__ = "events"
    __table_args__ = (Index(None, "job_id", "id"), NEVER_REUSED)

    id: Mapped[int] = mapped_column(Serial, primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    kind: Mapped[str] = mapped_column(String(64))
    data: Mapped[Any] = mapped_column(Json)
    at: Mapped[str] = mapped_column(String(32))


class WorkerRow(Base):
    """A worker process and the devices that it serves, with the seconds for which each has been measured on."""

    __tablename__ = "workers"

    name: Mapped[str] = mapped_column(String(255), primary_key=True)
    devices: Mapped[Any] = mapped_column(Json)
    measuring: Mapped[Any] = mapped_column(Json, server_default="[]")
    seen: Mapped[float] = mapped_column(Float(53))


class ApiKeyRow(Base):
    """An API key, by the SHA-256 of its secret. A quota that is null is the service's default; rows are never
    deleted."""

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    name: Mapped[str] = mapped_column(String(100))
    prefix: Mapped[str] = mapped_column(String(32))
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    scope: Mapped[str] = mapped_column(String(8))
    created_at: Mapped[str] = mapped_column(String(32))
    expires_at: Mapped[str | None] = mapped_column(String(32))
    revoked_at: Mapped[str | None] = mapped_column(String(32))
    last_used_at: Mapped[str | None] = mapped_column(String(32))
    requests_per_second: Mapped[float | None] = mapped_column(Float(53))
    live_jobs: Mapped[int | None] = mapped_column(BigInteger)
    trials_a_day: Mapped[int | None] = mapped_column(BigInteger)
    bytes_stored: Mapped[int | None] = mapped_column(BigInteger)
    batch_problems_a_day: Mapped[int | None] = mapped_column(BigInteger)


class AuditRow(Base):
    """An entry of the audit log: who did or was refused what, and how often within a minute; only added."""

    __tablename__ = "audit"
    __table_args__ = (Index(None, "key_id", "id"), NEVER_REUSED)

    id: Mapped[int] = mapped_column(Serial, primary_key=True)
    at: Mapped[str] = mapped_column(String(32))
    key_id: Mapped[str | None] = mapped_column(String(16))
    action: Mapped[str] = mapped_column(String(64))
    object: Mapped[str] = mapped_column(String(200))
    outcome: Mapped[int] = mapped_column(Integer)
    address: Mapped[str] = mapped_column(String(64))
    times: Mapped[int] = mapped_column(Integer)
