"""Tables of the job queue: jobs with their events, batches, workers."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Boolean, Float, ForeignKey, Index, Integer, String, Text, false
from sqlalchemy.orm import Mapped, mapped_column

from tirgemm.tuning_db.models.base import NEVER_REUSED, Base, JsonColumn, Serial


class JobRow(Base):
    """A tuning request. ``live_key`` is set while it is queued or running: the same request finds it there.

    It starts only within its window, minutes after midnight in UTC. What a batch grants it of the batch's budget is
    known when it starts; until then ``trials`` and ``seconds`` are its expected share. ``recorded_before`` counts the
    trials of its problem from before the batch.
    """

    __tablename__ = "jobs"
    __table_args__ = (Index(None, "status", "seq"), NEVER_REUSED)

    seq: Mapped[int] = mapped_column(Serial, primary_key=True)
    id: Mapped[str] = mapped_column(String(32), unique=True)
    live_key: Mapped[str | None] = mapped_column(String(64), unique=True)
    gemm_id: Mapped[int] = mapped_column(ForeignKey("gemms.id"))
    device_key: Mapped[str] = mapped_column(String(255))
    device: Mapped[Any] = mapped_column(JsonColumn)
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
    other_devices: Mapped[bool] = mapped_column(Boolean, server_default=false())


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
    times: Mapped[int] = mapped_column(Integer, server_default="1")
    job_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id", ondelete="SET NULL"), index=True)
    kernel_id: Mapped[str | None] = mapped_column(ForeignKey("kernels.id", ondelete="SET NULL"), index=True)


class EventRow(Base):
    """Something that happened to a job; ids grow, so that a reader goes on behind the last one that it saw."""

    __tablename__ = "events"
    __table_args__ = (Index(None, "job_id", "id"), NEVER_REUSED)

    id: Mapped[int] = mapped_column(Serial, primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    kind: Mapped[str] = mapped_column(String(64))
    data: Mapped[Any] = mapped_column(JsonColumn)
    at: Mapped[str] = mapped_column(String(32))


class WorkerRow(Base):
    """A worker process and the devices that it serves, with the seconds for which each has been measured on."""

    __tablename__ = "workers"

    name: Mapped[str] = mapped_column(String(255), primary_key=True)
    devices: Mapped[Any] = mapped_column(JsonColumn)
    measuring: Mapped[Any] = mapped_column(JsonColumn, server_default="[]")
    seen: Mapped[float] = mapped_column(Float(53))
