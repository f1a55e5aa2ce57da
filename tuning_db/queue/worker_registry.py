"""``WorkerRegistry``: the workers that are alive, and their devices."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, delete, select, update

from tirgemm.device import Device
from tirgemm.tuning_db import rows
from tirgemm.tuning_db.database import ClockedTables
from tirgemm.tuning_db.job_values import WorkerRecord, described
from tirgemm.tuning_db.models import WorkerRow
from tirgemm.tuning_db.times import iso

# So much longer ago than it was a worker that has ended counts as seen: longer than any may be silent and be alive.
RETIRED_SECONDS = 86_400.0
_WORKERS_SEEN = (
    select(*WorkerRow.__table__.columns)
    .where(WorkerRow.seen >= bindparam("since"), WorkerRow.seen <= bindparam("until"))
    .order_by(WorkerRow.name)
)


class WorkerRegistry(ClockedTables):
    """The table of workers of a Database."""

    def register_worker(
        self,
        name: str,
        devices: Sequence[Device],
        *,
        measuring: Sequence[float] = (),
        faults: Sequence[str] = (),
    ) -> None:
        """Say that a worker is alive, what it serves, for how many seconds each device has been measured on, and why it
        cannot be used now, if so; the devices are described in passing."""
        with self.db.write() as connection:
            values = {
                "name": name,
                "devices": described(devices, faults or [""] * len(devices)),
                "measuring": list(measuring) or [0.0] * len(devices),
                "seen": self._now(connection),
            }
            connection.execute(self.db.upsert(WorkerRow, ("name",), ("devices", "measuring", "seen")), values)
            for device in devices:
                rows.put_device(self.db, connection, device)

    def retire_worker(self, name: str) -> None:
        """Say that a worker has ended: no more is known of it than what devices there were."""
        with self.db.write() as connection:
            ended = {WorkerRow.seen: WorkerRow.seen - RETIRED_SECONDS}
            connection.execute(update(WorkerRow).where(WorkerRow.name == name).values(ended))

    def remove_worker(self, name: str) -> None:
        """Forget a worker."""
        with self.db.write() as connection:
            connection.execute(delete(WorkerRow).where(WorkerRow.name == name))

    def live_workers(self, max_age_s: float) -> list[WorkerRecord]:
        """Workers seen within the last ``max_age_s`` seconds, by name.

        One that was seen further in the future was seen before the database's clock went back, and is left out.
        """
        with self.db.read() as connection:
            return self.workers_seen(connection, max_age_s)

    def workers_seen(self, connection: Connection, max_age_s: float) -> list[WorkerRecord]:
        """``live_workers`` within a transaction."""
        now = self._now(connection)
        worker_rows = connection.execute(_WORKERS_SEEN, {"since": now - max_age_s, "until": now + max_age_s}).all()
        return [WorkerRecord.of(row.name, row.devices, iso(row.seen), row.measuring) for row in worker_rows]
