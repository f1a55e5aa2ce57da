"""The choice among the stored kernels of one problem, device class and regime: which may answer, and which of them is
first."""

from __future__ import annotations

from sqlalchemy import ColumnElement, and_, case, or_

from tirgemm.tuning_db.models import KernelRow
from tirgemm.tuning_db.rows import KERNEL_ORDER

# Of those that may answer the first one does.
ANSWER_ORDER = (
    case((KernelRow.pinned_at.is_not(None), 0), (KernelRow.role == "tuned", 1), else_=2),
    *KERNEL_ORDER,
)


def may_answer(other_devices: ColumnElement[bool]) -> ColumnElement[bool]:
    """Whether somebody has run the kernel, and it is this device's own, pinned, or asked for as one of
    ``other_devices``."""
    own = or_(KernelRow.other_device.is_(None), KernelRow.pinned_at.is_not(None), other_devices)
    return and_(or_(KernelRow.role == "tuned", KernelRow.role == "fallback"), own)  # an IN is expanded at each use
