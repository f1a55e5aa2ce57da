"""``Store``: what the tuner needs from a database. One contract test suite holds every implementation to it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from tirgemm.device import Device
from tirgemm.gemm import Gemm, Regime
from tirgemm.tuning.records import Candidate, CandidateKey, KernelRecord, SampleSet
from tirgemm.tuning.records.offer import Offer


class Store(Protocol):
    """Durable records of tuning. Every method commits before it returns; safe from several threads."""

    def add_candidate(self, candidate: Candidate) -> None:
        """Record a candidate, or replace the record of the same key, keeping the sample sets already there."""
        ...

    def add_samples(self, key: CandidateKey, samples: SampleSet) -> None:
        """Append a sample set to a recorded candidate; StoreError where there is none."""
        ...

    def begin_attempt(self, key: CandidateKey) -> int:
        """Count an attempt that is about to build or run, before it starts, and return its number from 1.

        What was begun and never recorded is what a kill cost.
        """
        ...

    def withdraw_attempt(self, key: CandidateKey, number: int) -> None:
        """Forget an attempt that was given up on purpose, unless its candidate is recorded: it was lost to nothing."""
        ...

    def candidates(self, gemm: Gemm, device_key: str, regime: Regime) -> list[Candidate]:
        """Every candidate recorded for one problem, oldest first."""
        ...

    def candidate(self, key: CandidateKey) -> Candidate | None: ...

    def history(
        self, device_key: str, regime: Regime, limit: int = 10_000, near: Gemm | None = None
    ) -> list[Candidate]:
        """Measured candidates of *any* gemm on a device class, newest first: what warms the cost model.

        ``near`` is the problem that it is for: with it those of the problems most like it are enough, each problem's
        newest first. Shipped records come behind the others.
        """
        ...

    def offer(self, gemm: Gemm, device: Device, regime: Regime, *, other_devices: bool = False) -> Offer | None:
        """What was shipped of one problem for this device, or where ``other_devices`` are asked for, for one of its
        architecture; None where nothing was.

        An offer of this device class, driver and TVM is among the ``candidates``; any other is not.
        """
        ...

    def put_kernel(self, kernel: KernelRecord) -> KernelRecord:
        """Store a kernel; it becomes the answer for its gemm, device class and regime. Returns it with its id.

        Raises VerificationFailed for an invariant one that gives a row other bits than one that is stored.
        """
        ...

    def kernel(
        self,
        gemm: Gemm,
        device_key: str,
        regime: Regime,
        *,
        other_devices: bool = False,
        without: Collection[str] = (),
    ) -> KernelRecord | None:
        """The current answer: the newest ``tuned`` kernel, else the newest ``fallback``; never ``unverified``. One that
        was chosen from records of another device, only where ``other_devices`` are asked for, or it is pinned. What is
        named by its id in ``without``, or revoked by the store's own data folder, is passed over."""
        ...

    def kernel_by_id(self, kernel_id: str) -> KernelRecord | None: ...

    def kernels(self, limit: int = 100, after: str = "") -> list[KernelRecord]:
        """Kernels newest first, from behind the id ``after``."""
        ...

    def put_device(self, device: Device) -> None: ...

    def put_blob(self, data: bytes) -> str:
        """Store bytes under their SHA-256 (lowercase hexadecimal), atomically, and return it. StorageFull if no
        space."""
        ...

    def get_blob(self, sha256: str) -> bytes:
        """The bytes, whose hash is checked. StoreError where absent or damaged."""
        ...
