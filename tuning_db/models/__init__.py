"""The tables, in the order in which they refer to each other. Values that only people and the tuner read are JSON; what
is searched by is a column."""

from __future__ import annotations

from tirgemm.tuning_db.models.access import ApiKeyRow, AuditRow
from tirgemm.tuning_db.models.base import Base
from tirgemm.tuning_db.models.jobs import BatchItemRow, BatchRow, EventRow, JobRow, WorkerRow
from tirgemm.tuning_db.models.kernels import (
    ArtifactRow,
    CertificateRow,
    KernelDocumentRow,
    KernelFigureRow,
    KernelRow,
    KernelVersionRow,
)
from tirgemm.tuning_db.models.records import AttemptRow, CandidateRow, DeviceRow, GemmRow, ImportRow, SampleSetRow

__all__ = [
    "ApiKeyRow",
    "ArtifactRow",
    "AttemptRow",
    "AuditRow",
    "Base",
    "BatchItemRow",
    "BatchRow",
    "CandidateRow",
    "CertificateRow",
    "DeviceRow",
    "EventRow",
    "GemmRow",
    "ImportRow",
    "JobRow",
    "KernelDocumentRow",
    "KernelFigureRow",
    "KernelRow",
    "KernelVersionRow",
    "SampleSetRow",
    "WorkerRow",
]
