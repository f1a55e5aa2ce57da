"""``Session``: what the measuring process does on its device; one implementation for each device kind."""

from __future__ import annotations

from typing import Protocol

from tirgemm.artifact import Kernel
from tirgemm.tuning.measure.requests import Time
from tirgemm.tuning.records import SampleSet
from tirgemm.tuning.verify.chain import ChainBackend
from tirgemm.tuning.verify.flow import Backend


class Session(Protocol):
    """The device, opened for verification (``backend``, ``chains``) and timing."""

    @property
    def backend(self) -> Backend: ...

    @property
    def chains(self) -> ChainBackend | None:
        """What queues calls for the chain test; None where no launches overlap."""
        ...

    def time(self, kernel: Kernel, against: dict[str, Kernel], request: Time) -> SampleSet:
        """Samples of ``kernel`` and, interleaved, of its opponents and baselines."""
        ...

    def stream(self) -> SampleSet:
        """Samples of reading ``conditions["bytes"]`` bytes of memory that no cache holds; of writing as many on a GPU
        ``conditions["write_us"]``."""
        ...

    def require_usable(self) -> None:
        """After a failed launch: raise whatever ends this process where the device is of no more use to it."""
        ...
