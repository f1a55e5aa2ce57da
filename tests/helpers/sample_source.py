"""``SampleSource``: a source of kernels written by hand, which keeps what it was asked for."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from tests.helpers.artifact_samples import TRUST, certified
from tests.waiting import PATIENCE_S
from tirgemm.artifact import Kernel, load
from tirgemm.device import Device
from tirgemm.errors import BuildFailed
from tirgemm.gemm import Gemm


class SampleSource:
    """A KernelSource: a default of every problem, and with ``tuned_later`` a tuned kernel once ``release`` is set.

    With ``only_tuned`` the defaults are there already, and do not come. ``stored`` are the problems that it has without
    making anything; ``refuses`` those that it will not make.
    """

    tunes = True

    def __init__(
        self,
        *,
        stored: Sequence[Gemm] = (),
        refuses: Sequence[Gemm] = (),
        fails: bool = False,
        tuned_later: bool = False,
        only_tuned: bool = False,
    ) -> None:
        self.only_tuned = only_tuned
        self.stored, self.refuses, self.fails, self.tuned_later = set(stored), set(refuses), fails, tuned_later
        self.asked: list[Gemm] = []
        self.groups: list[tuple[Gemm, ...]] = []
        self.made: list[Kernel] = []
        self.release = threading.Event()

    def kernel(self, gemm: Gemm, role: str) -> Kernel:
        self.made.append(load(certified(gemm, role=role), trust=TRUST))
        return self.made[-1]

    def lookup(self, gemm: Gemm, device: Device) -> Kernel | None:
        del device
        return self.kernel(gemm, "tuned") if gemm in self.stored else None

    def refusal(self, gemm: Gemm, device: Device, policy: str) -> str | None:
        del device
        return self._refusal(gemm, policy)

    def _refusal(self, gemm: Gemm, policy: str) -> str | None:
        if policy == "tuned":
            return "it was not tuned"
        return "no family writes it" if gemm in self.refuses else None

    def prepare(self, gemms: Sequence[Gemm], device: Device, policy: str, arrived: Any) -> Any:
        from tirgemm.kernel_source import Preparation, run_in_background

        del device
        self.asked += gemms
        self.groups.append(tuple(gemms))
        preparation = Preparation(tuple(gemms))
        stored = [gemm for gemm in gemms if gemm in self.stored]
        refused = {gemm: self._refusal(gemm, policy) for gemm in gemms if gemm not in stored}

        def make() -> None:
            if self.fails:
                raise BuildFailed("the compiler went away")
            for gemm in stored:
                arrived(self.kernel(gemm, "tuned"))
            for gemm, refusal in refused.items():
                if refusal is not None:
                    preparation.fail([gemm], refusal)
            able = [gemm for gemm, refusal in refused.items() if refusal is None]
            for gemm in () if self.only_tuned else able:
                arrived(self.kernel(gemm, "fallback"))
            if self.tuned_later and self.release.wait(PATIENCE_S):
                for gemm in able:
                    arrived(self.kernel(gemm, "tuned"))

        return run_in_background(preparation, make, str)
