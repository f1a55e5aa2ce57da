"""Errors of measurements."""

from __future__ import annotations

from typing import ClassVar

from tirgemm.errors import MeasurementFailed
from tirgemm.status import Status


class MeasurementTimedOut(MeasurementFailed):
    """The kernel, or what it was compared with, gave no sign of life for the allowed time; its process was killed."""

    code: ClassVar[str] = "measurement_timed_out"
    outcome = Status.TIMED_OUT


class MeasurementCrashed(MeasurementFailed):
    """The kernel killed the measuring process, broke the device's context, or refused its arguments."""

    code: ClassVar[str] = "measurement_crashed"
