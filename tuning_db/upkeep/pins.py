"""Pins: kernels that answer before all others of their problem, device class and regime, until they are unpinned."""

from __future__ import annotations

from sqlalchemy import select, update

from tirgemm.errors import InvalidRequest, RevokedArtifact
from tirgemm.tuning.records import KernelRecord
from tirgemm.tuning_db import rows
from tirgemm.tuning_db.answers.kernel_version import raise_version
from tirgemm.tuning_db.database import Database
from tirgemm.tuning_db.models import KernelRow
from tirgemm.tuning_db.revoked_artifacts import revocation
from tirgemm.tuning_db.times import iso


def set_pinned(db: Database, kernel_id: str, *, pinned: bool) -> KernelRecord | None:
    """Pin a kernel in place of any other, or unpin it; None where there is none of this id.

    Raises InvalidRequest for an unverified build and RevokedArtifact for what the data folder has revoked, which answer
    nothing.
    """
    with db.write() as connection:
        row = connection.execute(select(*KernelRow.__table__.columns).where(KernelRow.id == kernel_id)).first()
        if row is None:
            return None
        if row.role == "unverified":
            raise InvalidRequest(f"kernel {kernel_id} is a build that nobody has run; a pinned one is served")
        if pinned and (words := revocation(db, row.artifact_sha256)):
            raise RevokedArtifact(f"kernel {kernel_id} is no longer served: {words}")
        same = [getattr(KernelRow, name) == getattr(row, name) for name in ("gemm_id", "device_key", "regime")]
        # In one order, so that two pins of one problem end in no deadlock; whoever deletes a kernel locks it, too.
        locked = select(KernelRow.id).where(*same).order_by(KernelRow.seq).with_for_update()
        if kernel_id not in connection.execute(locked).scalars().all():
            return None
        if pinned:
            others = (*same, KernelRow.id != kernel_id)
            connection.execute(update(KernelRow).where(*others).values(pinned_at=None))
        mine = update(KernelRow).where(KernelRow.id == kernel_id)
        connection.execute(mine.values(pinned_at=(row.pinned_at or iso(db.now(connection))) if pinned else None))
        raise_version(db, connection)
        return rows.kernel_of(connection.execute(rows.KERNEL_BY_ID, {"kernel_id": kernel_id}).one())
