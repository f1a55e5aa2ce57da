"""Measurement: one child process a device that loads packaged kernels as users do, verifies them and times them.

``Measurer`` is the parent's side. Regimes, samples and conditions are as the definitions say; see ``rounds`` for how
blocks alternate, ``host_session`` and ``cuda_session`` for what a sample is on each device kind.
"""

from __future__ import annotations

from tirgemm.tuning.measure.errors import MeasurementCrashed, MeasurementTimedOut
from tirgemm.tuning.measure.measurer import Measurer
from tirgemm.tuning.verify.result import Verification

__all__ = ["MeasurementCrashed", "MeasurementTimedOut", "Measurer", "Verification"]
