"""``MetaScheduleDatabase``: the candidates table as the database of TVM's MetaSchedule.

A workload is a gemm: its module is ``tirgemm.tuning.space_trace.search_module``. A tuning record is a measured
candidate that has a trace. Nothing is stored twice, so that what the tuner's Store recorded seeds the search, and what
MetaSchedule commits is a candidate. The only module of ``tuning_db`` that imports TVM.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select, func, select, update
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.database import PyDatabase, TuningRecord, Workload
from tvm_ffi import register_error, structural_equal

from tirgemm.device import Device
from tirgemm.errors import InvalidConfig, InvalidRequest, StorageFull, StoreError
from tirgemm.families.base import Family
from tirgemm.gemm import Gemm
from tirgemm.tuning.plain import plain_candidate
from tirgemm.tuning.records import Candidate, SampleSet, Status
from tirgemm.tuning.space_trace import gemm_of, replay, search_module
from tuning_db import rows
from tuning_db.database import Database
from tuning_db.models import CandidateRow, GemmRow
from tuning_db.store import select_key, write_candidate

# TVM calls the methods through C++, which lets only exceptions pass that it knows by name.
for _error in (InvalidConfig, InvalidRequest, StorageFull, StoreError):
    register_error(f"tirgemm.{_error.__name__}", _error)


@derived_object
class MetaScheduleDatabase(PyDatabase):  # type: ignore[misc]
    """The tuning records of one device class in one regime; modules are those of ``search_module``.

    ``families`` (by default all) turn a committed record's trace into its config. Raises InvalidRequest for a module
    or a record that no tirgemm search made.
    """

    def __init__(self, db: Database, device: Device, regime: str, families: Sequence[Family] | None = None) -> None:
        super().__init__()
        self.db = db
        self.device = device
        self.regime = regime
        self.families = families

    def has_workload(self, mod: Any) -> bool:
        try:
            gemm = gemm_of(mod)
        except InvalidRequest:
            return False
        with self.db.read() as connection:
            found = connection.execute(select(GemmRow.id).where(GemmRow.text == str(gemm))).first()
        return found is not None and bool(structural_equal(mod, search_module(gemm)))

    def commit_workload(self, mod: Any) -> Any:
        gemm = gemm_of(mod)
        if not structural_equal(mod, search_module(gemm)):
            raise InvalidRequest(
                f"the module for {gemm} is not the one that its search works on; make it with search_module"
            )
        with self.db.write() as connection:
            rows.gemm_id(self.db, connection, gemm)
        return Workload(mod)

    def commit_tuning_record(self, record: Any) -> None:
        """Add a record as a measured candidate; of one that the Store holds as measured only a missing trace is taken."""
        gemm = gemm_of(record.workload.mod)
        trace, run_secs, _, _ = record.as_json()
        config = replay(trace, gemm, self.device, self.families)
        taken = tuple(float(seconds) * 1e6 for seconds in run_secs or ())
        if not taken or not all(math.isfinite(us) and us > 0 for us in taken):
            raise InvalidRequest(
                f"the tuning record of {config} has the times {taken}; it needs at least one that is a time"
            )
        samples = SampleSet(taken, conditions={"regime": self.regime, "source": "metaschedule"})
        candidate = plain_candidate(
            Candidate(gemm, self.device.key, self.regime, config, Status.MEASURED, trace=trace, sample_sets=(samples,))
        )
        with self.db.write() as connection:
            known = connection.execute(select_key(candidate.key)).first()
            if known is None or known.status != str(Status.MEASURED):
                write_candidate(self.db, connection, candidate)
            else:
                lacks = update(CandidateRow).where(CandidateRow.id == known.id, CandidateRow.trace.is_(None))
                connection.execute(lacks.values(trace=candidate.trace))

    def get_top_k(self, workload: Any, top_k: int) -> list[Any]:
        """The fastest records of a workload, fastest first."""
        wanted = self._records().where(GemmRow.text == str(gemm_of(workload.mod)))
        wanted = wanted.order_by(CandidateRow.search_us, CandidateRow.id).limit(max(int(top_k), 0))
        return [_record(row, workload) for row in self._rows(wanted)]

    def get_all_tuning_records(self) -> list[Any]:
        """Every record, oldest first."""
        workloads: dict[str, Any] = {}
        records = []
        for row in self._rows(self._records().order_by(CandidateRow.id)):
            if row.text not in workloads:
                workloads[row.text] = Workload(search_module(Gemm.parse(row.text)))
            records.append(_record(row, workloads[row.text]))
        return records

    def __len__(self) -> int:
        with self.db.read() as connection:
            counted = select(func.count()).select_from(self._records().subquery())
            return int(connection.execute(counted).scalar_one())

    def _records(self) -> Select[Any]:
        columns: Any = (CandidateRow.id, CandidateRow.trace, CandidateRow.search_us, GemmRow.text)
        return select(*columns).join(GemmRow, GemmRow.id == CandidateRow.gemm_id).where(
            CandidateRow.device_key == self.device.key, CandidateRow.regime == self.regime,
            CandidateRow.status == str(Status.MEASURED), CandidateRow.trace.is_not(None),
            CandidateRow.search_us.is_not(None),
        )  # fmt: skip

    def _rows(self, wanted: Select[Any]) -> Sequence[Any]:
        with self.db.read() as connection:
            return connection.execute(wanted).all()


def _record(row: Any, workload: Any) -> Any:
    return TuningRecord.from_json([row.trace, [row.search_us * 1e-6], None, None], workload)
