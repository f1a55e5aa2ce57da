"""Tables of who may do what: API keys and the audit log."""

from __future__ import annotations

from sqlalchemy import BigInteger, Float, Index, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from tirgemm.tuning_db.models.base import NEVER_REUSED, Base, Serial


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
