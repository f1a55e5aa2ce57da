"""A GPU kernel in a store on a machine without a GPU, for the examples of the documentation."""

from __future__ import annotations

import hashlib

from tirgemm.families import family_named
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.timings import Timings
from tirgemm.tuning.records import KernelRecord
from tirgemm.tuning.records.store import Store


def gpu_kernel(store: Store, gemm: str) -> KernelRecord:
    """The default of ``simt`` for sm_80, stored as a worker's cross-compiled build is."""
    problem, device = Gemm.parse(gemm), named_device("sm_80")
    config = family_named("simt").default(problem, device, "sustained")
    blob = b"an artifact"
    return store.put_kernel(
        KernelRecord(
            problem,
            device,
            "sustained",
            "unverified",
            config,
            hashlib.sha256(blob + b"kernel").hexdigest(),
            store.put_blob(blob),
            len(blob),
            None,
            Timings(),
            created_at="2026-08-01T12:00:00Z",
        )
    )
