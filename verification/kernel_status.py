"""What a failed call says of its kernel, and what it says of the device alone."""

from __future__ import annotations

from tirgemm.errors import TirgemmError
from tirgemm.status import Status
from tirgemm.tuning.measure import Measurer


def kernel_status(error: TirgemmError, measurer: Measurer) -> Status:
    """What became of the kernel, by the error of its verification.

    Raises ``error`` where it says nothing of the kernel, and DeviceUnavailable where the device cannot be opened any
    more: another process may have lost it.
    """
    if error.outcome is None:
        raise error
    measurer.require_usable()
    return error.outcome
