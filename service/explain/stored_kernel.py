"""A stored kernel with what explaining it takes: the server reads it and sends it to another process, and loads no
analysis for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tirgemm.artifact import Package, Trust, read
from tirgemm.errors import ArtifactError, StoreError
from tirgemm.tuning.records import Candidate, KernelRecord
from tirgemm.tuning.records.store import Store

if TYPE_CHECKING:
    from tirgemm.analysis.roofline import MeasuredRate


@dataclass(frozen=True, slots=True)
class StoredKernelInput:
    """All that the store knows of a kernel and that explaining it takes: a value that another process can be sent."""

    record: KernelRecord
    candidates: tuple[Candidate, ...]
    artifact: bytes | None
    trust: Trust
    rates: Mapping[str, MeasuredRate] = field(default_factory=dict)

    @classmethod
    def of(cls, store: Store, record: KernelRecord, trust: Trust | None = None) -> StoredKernelInput:
        """``trust``: whose signature makes the stored artifact believable; by default whom the user trusts."""
        from tirgemm.service.explain.rates import rates_in_store

        try:
            artifact = store.get_blob(record.artifact_sha256)
        except StoreError:
            artifact = None
        # Traces are long and say nothing here.
        candidates = store.candidates(record.gemm, record.device.key, record.regime)
        rates = rates_in_store(store, record.device, record)
        return cls(record, tuple(c.with_(trace=None) for c in candidates), artifact, trust or Trust.default(), rates)

    def package(self) -> Package | None:
        """The verified artifact; None where it is not stored, or signed by someone else."""
        if self.artifact is None:
            return None
        try:
            return read(self.artifact, self.trust)
        except ArtifactError:
            return None
