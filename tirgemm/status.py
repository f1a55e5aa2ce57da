"""States of measured candidates (``Status``), tuning jobs, batches of them, and stored kernels (``Role``)."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, TypeAlias, get_args


class Status(StrEnum):
    """What became of a candidate."""

    PRUNED = "pruned"
    BUILD_FAILED = "build_failed"
    WRONG = "wrong"
    TIMED_OUT = "timed_out"
    CRASHED = "crashed"
    MEASURED = "measured"


EndedStatus: TypeAlias = Literal["done", "failed", "cancelled"]
"""Final states of a job."""
LiveStatus: TypeAlias = Literal["queued", "running"]
JobStatus: TypeAlias = Literal[LiveStatus, EndedStatus]
"""A job's state. What is queued or running may still change."""
LIVE: tuple[LiveStatus, ...] = get_args(LiveStatus)
ENDED: tuple[EndedStatus, ...] = get_args(EndedStatus)
WITHOUT_KERNEL: tuple[EndedStatus, ...] = ("failed", "cancelled")
"""Those that leave no tuned kernel."""
EndedBatchStatus: TypeAlias = Literal["done", "cancelled"]
BatchStatus: TypeAlias = Literal[LiveStatus, EndedBatchStatus]
"""A batch's state. It is done once all its jobs have ended, also where some failed."""
ENDED_BATCH: tuple[EndedBatchStatus, ...] = get_args(EndedBatchStatus)

Role: TypeAlias = Literal["fallback", "tuned", "unverified"]
"""Roles of stored kernels: the default served ahead of the search, the one that was selected, or a build for a
device that was not there."""
ROLES: tuple[Role, ...] = get_args(Role)
