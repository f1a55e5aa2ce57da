"""The JSON documents of the API: what a request holds and what answers look like."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import BaseModel, Field

from tirgemm.device import Device
from tirgemm.errors import DeviceUnavailable, public_detail
from tirgemm.gemm import Regime
from tirgemm.status import JobStatus, Role
from tirgemm.tuning.effort import Effort
from tirgemm.tuning.records import KernelRecord
from tirgemm.tuning_db import Job, WorkerRecord
from tirgemm.tuning_db.answers.kernel_document import device_members, kernel_members


class BudgetBody(BaseModel):
    """How much the search of a job may spend."""

    trials: int
    seconds: float


class DeviceBody(BaseModel):
    """A device as documents name it."""

    key: str
    name: str
    kind: Literal["cpu", "cuda"]
    model: str
    arch: str

    @classmethod
    def of(cls, device: Device) -> DeviceBody:
        return cls.model_validate(device_members(device))


class ArtifactBody(BaseModel):
    """Where the signed artifact is."""

    sha256: str
    bytes: int
    url: str


class MemberBody(BaseModel):
    """A kernel of a set: the range of ``m`` that it serves, and its time at the high end of that."""

    m: str
    family: str
    config: str
    config_hash: str
    kernel_sha256: str
    median_us: float | None = None


class KernelDocument(BaseModel):
    """A kernel. ``role``: the ``tuned`` one, the ``fallback`` served ahead of the search, or ``unverified``.

    ``portable``: it won against configs that were measured on another device, driver or TVM, and nothing was searched
    here yet. ``other_device``: the key of the other device that those were measured on; then it answers only requests
    with ``other_devices``. ``pinned``: it is the answer until it is unpinned. ``members``: of a set the kernels by
    rising m; empty for one kernel.
    """

    id: str
    gemm: str
    problem: dict[str, Any]
    device: DeviceBody
    regime: Regime
    role: Role
    portable: bool
    other_device: str | None
    pinned: bool
    verified: bool
    family: str
    config: dict[str, Any]
    config_hash: str
    kernel_sha256: str
    members: list[MemberBody]
    timings: dict[str, Any]
    certificate: dict[str, Any] | None
    artifact: ArtifactBody
    trials: int
    created_at: str
    links: dict[str, str]

    @classmethod
    def of(cls, record: KernelRecord) -> KernelDocument:
        return cls.model_validate(kernel_members(record))


class ExplainedDevice(BaseModel):
    """The device that a kernel is explained on."""

    key: str
    name: str
    model: str
    arch: str
    units: int


class Unexplained(BaseModel):
    """Something that is in no figure: its name, and in a sentence why."""

    name: str
    reason: str


class ExplanationDocument(BaseModel):
    """Why a kernel is as fast as it is. ``kernels``: every launch with ``memory``, ``resources``, ``occupancy``,
    ``waves`` and ``opcodes``; ``verdict``: ``latency`` or the ceiling that binds; ``conflict_fixes``: what removes bank
    conflicts; ``rivals``: what it was chosen from."""

    kernel: str | None
    gemm: str
    m: int
    device: ExplainedDevice
    family: str
    config: dict[str, Any]
    config_hash: str
    default: bool
    compiled: bool
    code: str
    main: str
    kernels: list[dict[str, Any]]
    alignments: list[dict[str, Any]]
    cut: dict[str, Any] | None
    coverage: dict[str, Any] | None
    roofline: dict[str, Any] | None
    timed: str
    latency: dict[str, Any] | None
    verdict: str | None
    unknown: list[Unexplained]
    conflict_fixes: dict[str, Any]
    rivals: dict[str, Any] | None


class JobError(BaseModel):
    """Why a job failed."""

    code: str
    detail: str

    @classmethod
    def of(cls, text: str) -> JobError:
        """The inverse of how the worker writes an error: ``code: detail``."""
        match = re.fullmatch(r"([a-z_]+): (.*)", text, re.DOTALL)
        code, detail = (match[1], match[2]) if match else ("error", text)
        return cls(code=code, detail=public_detail(code, detail))


class JobSummary(BaseModel):
    """One tuning request, alive until it is done, failed or cancelled."""

    id: str
    status: JobStatus
    gemm: str
    device: DeviceBody
    regime: Regime
    effort: Effort
    budget: BudgetBody
    seed: int
    verify: bool
    other_devices: bool
    fallback_id: str | None
    kernel_id: str | None
    error: JobError | None
    attempts: int
    priority: int
    window: str | None
    retries: int
    retry_reason: str | None
    batch: str | None
    created_at: str
    started_at: str | None
    finished_at: str | None
    links: dict[str, str]

    @classmethod
    def of(cls, job: Job) -> JobSummary:
        request = job.request
        links = {"self": f"/v1/jobs/{job.id}", "events": f"/v1/jobs/{job.id}/events"}
        for name, kernel_id in (("fallback", job.fallback_id), ("kernel", job.kernel_id)):
            if kernel_id:
                links[name] = f"/v1/kernels/{kernel_id}"
        if job.batch_id:
            links["batch"] = f"/v1/batches/{job.batch_id}"
        same = ("id", "status", "attempts", "retries", "retry_reason", "created_at")
        same_of_request = ("regime", "effort", "seed", "verify", "other_devices", "priority")
        return cls(
            **{name: getattr(job, name) for name in same},
            **{name: getattr(request, name) for name in same_of_request},
            gemm=str(request.gemm),
            device=DeviceBody.of(request.device),
            budget=BudgetBody(trials=request.trials, seconds=request.seconds),
            fallback_id=job.fallback_id or None,
            kernel_id=job.kernel_id or None,
            error=JobError.of(job.error) if job.error else None,
            window=str(request.window) if request.window else None,
            batch=job.batch_id,
            started_at=job.started_at or None,
            finished_at=job.finished_at or None,
            links=links,
        )


class JobDocument(JobSummary):
    """A job with its kernels: ``fallback`` is what to use meanwhile, ``kernel`` what it ended with."""

    fallback: KernelDocument | None
    kernel: KernelDocument | None

    @classmethod
    def with_kernels(cls, job: Job, fallback: KernelRecord | None, kernel: KernelRecord | None) -> JobDocument:
        return cls(
            **dict(JobSummary.of(job)),
            fallback=KernelDocument.of(fallback) if fallback else None,
            kernel=KernelDocument.of(kernel) if kernel else None,
        )


class PendingDocument(BaseModel):
    """The answer while a job works: ``running`` with the fallback to use meanwhile, ``building`` until there is one."""

    status: Literal["building", "running"]
    job: JobDocument
    fallback: KernelDocument | None


class KernelList(BaseModel):
    """Kernels, newest first; ``next`` is the ``after`` of the next page, null at the end."""

    kernels: list[KernelDocument]
    next: str | None


class JobList(BaseModel):
    """Jobs, newest first; ``next`` is the ``after`` of the next page, null at the end."""

    jobs: list[JobSummary]
    next: str | None


class KeyBody(BaseModel):
    """One public key with which the service signs artifacts."""

    algorithm: Literal["ed25519"]
    key: str


class KeyList(BaseModel):
    """The service's public keys. Whether to trust them is for the user to decide, over a channel that they trust."""

    keys: list[KeyBody]


class Health(BaseModel):
    """The process answers."""

    status: Literal["ok"]


class UnusableDevice(BaseModel):
    """A device that a live worker cannot use now, and tries again."""

    key: str
    name: str
    worker: str
    reason: str

    @classmethod
    def of(cls, worker: WorkerRecord) -> list[UnusableDevice]:
        return [
            cls(
                key=device.key,
                name=device.name,
                worker=worker.name,
                reason=public_detail(DeviceUnavailable.code, reason),
            )
            for device, reason in worker.unusable
        ]

    def without_reason(self) -> UnusableDevice:
        """What is told of it to whoever has no key: neither names of hosts nor texts of errors."""
        return self.model_copy(update={"worker": "", "reason": "GET /v1/meta says why, with a key"})


class Readiness(BaseModel):
    """The database is reachable and a worker is alive with a device that can be used; ``unusable`` are those that
    cannot."""

    status: Literal["ready"]
    workers: int
    unusable: list[UnusableDevice]


class WorkerBody(BaseModel):
    """A live worker."""

    name: str
    devices: list[DeviceBody]
    unusable: list[UnusableDevice]
    seen_at: str


class Meta(BaseModel):
    """What this service is and takes."""

    version: str
    schema_revision: str
    signer: str = Field(description="The public key that new artifacts are signed with; see /v1/keys.")
    workers: list[WorkerBody]
    devices: list[DeviceBody]
    named_devices: list[str]
    families: list[str]
    regimes: list[str]
    dtypes: list[str]
    layouts: list[str]
    activations: list[str]
    limits: dict[str, int | float]
