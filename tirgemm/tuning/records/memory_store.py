"""``MemoryStore``: the Store of one process, gone with it. Held to the same contract suite as the database."""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime

from tirgemm.device import Device
from tirgemm.errors import StoreError
from tirgemm.gemm import Gemm, Regime
from tirgemm.timings import Timings
from tirgemm.tuning.records import Candidate, CandidateKey, Certificate, KernelRecord, SampleSet, Status
from tirgemm.tuning.records.json_values import merged, plain_candidate, plain_json, plain_samples
from tirgemm.tuning.records.offer import Offer
from tirgemm.tuning.records.row_signatures import require_same_rows


class MemoryStore:
    """A ``tirgemm.tuning.records.store.Store`` on dictionaries, guarded by one lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._candidates: dict[CandidateKey, Candidate] = {}
        self._attempts: dict[CandidateKey, int] = {}
        self._kernels: dict[str, KernelRecord] = {}
        self._devices: dict[str, Device] = {}
        self._blobs: dict[str, bytes] = {}

    def add_candidate(self, candidate: Candidate) -> None:
        new = plain_candidate(candidate)
        with self._lock:
            old = self._candidates.get(new.key)
            if old is not None:
                new = replace(new, sample_sets=merged(old.sample_sets, new.sample_sets))
            self._candidates[new.key] = new

    def add_samples(self, key: CandidateKey, samples: SampleSet) -> None:
        new = plain_samples(samples)
        with self._lock:
            old = self._candidates.get(key)
            if old is None:
                raise StoreError(
                    f"no candidate {key.config_digest} of {key.gemm} is recorded; record it before its samples"
                )
            self._candidates[key] = replace(old, sample_sets=(*old.sample_sets, new))

    def begin_attempt(self, key: CandidateKey) -> int:
        with self._lock:
            self._attempts[key] = self._attempts.get(key, 0) + 1
            return self._attempts[key]

    def withdraw_attempt(self, key: CandidateKey, number: int) -> None:
        with self._lock:
            recorded = self._candidates.get(key)
            if self._attempts.get(key) == number and (recorded is None or recorded.attempt != number):
                self._attempts[key] = number - 1

    def candidates(self, gemm: Gemm, device_key: str, regime: Regime) -> list[Candidate]:
        wanted = (gemm, device_key, regime)
        with self._lock:
            return [c for k, c in self._candidates.items() if (k.gemm, k.device_key, k.regime) == wanted]

    def candidate(self, key: CandidateKey) -> Candidate | None:
        with self._lock:
            return self._candidates.get(key)

    def history(
        self, device_key: str, regime: Regime, limit: int = 10_000, near: Gemm | None = None
    ) -> list[Candidate]:
        del near
        with self._lock:
            candidates = [
                c
                for c in reversed(self._candidates.values())
                if c.device_key == device_key and c.regime == regime and c.status == Status.MEASURED
            ]
        return candidates[: max(limit, 0)]

    def offer(self, gemm: Gemm, device: Device, regime: Regime, *, other_devices: bool = False) -> Offer | None:
        del gemm, device, regime, other_devices
        return None

    def put_kernel(self, kernel: KernelRecord) -> KernelRecord:
        certificate = kernel.certificate and Certificate.from_json(plain_json(kernel.certificate.to_json()))
        at = kernel.created_at or datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        stored = replace(
            kernel,
            id=secrets.token_hex(8),
            created_at=at,
            certificate=certificate,
            timings=Timings.from_json(plain_json(kernel.timings.to_json())),
        )
        with self._lock:
            require_same_rows(stored, self._kernels.values())
            self._devices[kernel.device.key] = kernel.device
            self._kernels[stored.id] = stored
        return stored

    def kernel(
        self,
        gemm: Gemm,
        device_key: str,
        regime: Regime,
        *,
        other_devices: bool = False,
        without: Collection[str] = (),
    ) -> KernelRecord | None:
        wanted = (gemm, device_key, regime)
        with self._lock:
            matches = [
                k
                for k in self._kernels.values()
                if (k.gemm, k.device.key, k.regime) == wanted
                and (other_devices or k.other_device is None)
                and k.id not in without
            ]
        for role in ("tuned", "fallback"):
            answers = [k for k in matches if k.role == role]
            if answers:
                return answers[-1]
        return None

    def kernel_by_id(self, kernel_id: str) -> KernelRecord | None:
        with self._lock:
            return self._kernels.get(kernel_id)

    def kernels(self, limit: int = 100, after: str = "") -> list[KernelRecord]:
        with self._lock:
            kernels = list(reversed(self._kernels.values()))
        if after:
            ids = [k.id for k in kernels]
            if after not in ids:
                raise StoreError(f"no kernel has the id {after!r}; list from the start or behind a listed id")
            kernels = kernels[ids.index(after) + 1 :]
        return kernels[: max(limit, 0)]

    def put_device(self, device: Device) -> None:
        with self._lock:
            self._devices[device.key] = device

    def put_blob(self, data: bytes) -> str:
        sha256 = hashlib.sha256(data).hexdigest()
        with self._lock:
            self._blobs[sha256] = bytes(data)
        return sha256

    def get_blob(self, sha256: str) -> bytes:
        with self._lock:
            blob = self._blobs.get(sha256)
        if blob is None:
            raise StoreError(f"blob {sha256!r:.80} is not stored here")
        return blob
