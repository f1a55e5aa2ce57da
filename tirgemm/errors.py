"""Exception classes of tirgemm, all derived from ``TirgemmError``.

``code`` is the stable machine-readable name that the HTTP service and ``--json`` output use;
``status`` is the HTTP status that the service answers with. ``outcome`` is the status of a candidate that ended so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, TypeVar

from tirgemm.status import Status

T = TypeVar("T", bound=str)


class TirgemmError(Exception):
    """Base of every deliberate tirgemm error; its text names the thing, the value, the limit and what to do."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    outcome: ClassVar[Status | None] = None
    """None where it says nothing of the candidate: the problem cannot be, or the work was given up."""
    public: ClassVar[str] = ""
    """What others than the user of this machine are told in place of its text, where that may name files, addresses of
    databases or processes; empty where the text itself is told."""


class InvalidGemm(TirgemmError, ValueError):
    """A problem that cannot exist: a size, dtype, layout, stride or alignment outside its limits."""

    code = "invalid_gemm"
    status = 422


class InvalidDevice(TirgemmError, ValueError):
    """A device name that tirgemm does not know, or a device description that contradicts itself."""

    code = "invalid_device"
    status = 422


class InvalidConfig(TirgemmError, ValueError):
    """A config that is not a point of its family's space, or that a rule rejects."""

    code = "invalid_config"
    status = 422


class InvalidRequest(TirgemmError, ValueError):
    """Any other bad input: a regime, a budget, a key, a file."""

    code = "invalid_request"
    status = 422


class PageNotFound(InvalidRequest):
    """What a page of a list is to go on behind is not there: it never was, or was deleted since."""

    code = "page_not_found"
    status = 404


class Unsupported(TirgemmError):
    """No family writes this problem for this device; the text says why for each family."""

    code = "unsupported"
    status = 422


class DoesNotFit(TirgemmError):
    """The operands and the workspace need more memory than the device has, or has left."""

    code = "does_not_fit"
    status = 422


class DeviceUnavailable(TirgemmError):
    """The device is known but is not here: no driver, no GPU, or no worker that has it."""

    code = "device_unavailable"
    status = 409


class BuildFailed(TirgemmError):
    """A config could not be lowered or compiled."""

    code = "build_failed"
    status = 422
    outcome: ClassVar[Status | None] = Status.BUILD_FAILED


class BuildersUnusable(BuildFailed):
    """The machine cannot build: a tool, memory or disk space is lacking, which says nothing of the config."""

    outcome = None


UNUSABLE = (DeviceUnavailable, BuildersUnusable)
"""Errors of the device or the machine, not of a problem or a config: a retry elsewhere, or later, may succeed."""


class VerificationFailed(TirgemmError):
    """A kernel's result differs from the reference by more than its bound."""

    code = "verification_failed"
    status = 422
    outcome = Status.WRONG


class MeasurementFailed(TirgemmError):
    """A kernel crashed, hung or could not be timed."""

    code = "measurement_failed"
    status = 422
    outcome = Status.CRASHED


class Cancelled(TirgemmError):
    """The caller cancelled the job."""

    code = "cancelled"
    status = 409


class Interrupted(Cancelled):
    """Its user ended it before there was anything to end with."""

    code = "interrupted"


class LeaseLost(Cancelled):
    """A worker's lease on its job ran out, and the job is another's: what it still writes is refused."""

    code = "lease_lost"


class WorkersDied(TirgemmError):
    """Worker after worker died during a job, which is set aside so that no other dies of it."""

    code = "workers_died"
    status = 422


class QueueFull(TirgemmError):
    """As many jobs wait as may, or requests for work that takes seconds; ask again later."""

    code = "queue_full"
    status = 503


class PriorityRefused(TirgemmError):
    """A job's priority is beyond what the API key may give."""

    code = "priority_refused"
    status = 403


class JobNotRetried(TirgemmError):
    """A job that is not to be put back into the queue: it has not failed, or was put back as often as may be."""

    code = "job_not_retried"
    status = 409


class KernelPinned(TirgemmError):
    """A pinned kernel is not deleted; unpin it first."""

    code = "kernel_pinned"
    status = 409


class QuotaExceeded(TirgemmError):
    """An API key has used up what it may; the text names the quota. ``retry_after``: seconds until it may help to ask
    again."""

    code = "quota_exceeded"
    status = 429

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class AnalysisFailed(TirgemmError):
    """A kernel or its machine code holds something that the analysis cannot explain; the text names it."""

    code = "analysis_failed"
    status = 422


class MissingExtra(TirgemmError, ImportError):
    """A part of tirgemm needs an optional dependency that is not installed; the text names the extra."""

    code = "missing_extra"


class StoreError(TirgemmError):
    """The tuning database or the blob store refused an operation; nothing was half-written."""

    code = "store_error"
    public = "the service's database or its files refused an operation; its log says why"


class StoreUnavailable(StoreError):
    """The tuning database does not answer now, or was busy for too long; it may answer again."""

    code = "store_unavailable"
    status = 503


class DamagedBlob(StoreError):
    """The bytes of a blob are no longer those that its name says."""


class DamagedRow(StoreError):
    """A row of the database makes no sense."""


class DamagedDatabase(StoreError):
    """The file of the database is no longer what was written."""


class SchemaTooNew(StoreError):
    """The database was written by a newer tirgemm."""

    code = "schema_too_new"


class StorageFull(StoreError):
    """No space is left where blobs are written."""

    code = "storage_full"
    public = "the service has no space left for artifacts"
    status = 507


class AlreadyRunning(TirgemmError):
    """Another process holds the lock of this data folder or device."""

    code = "already_running"
    public = "another process of the service holds a lock; its log says which"
    status = 409


class ArtifactError(TirgemmError):
    """Base of everything that can be wrong with an artifact file."""

    code = "artifact_error"
    status = 422


class CorruptArtifact(ArtifactError):
    """Truncated, tampered with, an unexpected member, or not an artifact at all."""

    code = "corrupt_artifact"


class UntrustedArtifact(ArtifactError):
    """Not signed, or signed by a key that the user does not trust."""

    code = "untrusted_artifact"


class RevokedArtifact(UntrustedArtifact):
    """Revoked, or signed by a key that was revoked, by a service whose key the user trusts."""

    code = "revoked_artifact"
    status = 410


class RevokedKernel(RevokedArtifact):
    """Of a kernel that was revoked, whatever artifact it is in: its candidate counts as wrong."""

    outcome = Status.WRONG


class MismatchedArtifact(ArtifactError):
    """Signed by a trusted key, but for another problem, device class, regime or role than was asked for."""

    code = "mismatched_artifact"


class UnverifiedArtifact(ArtifactError):
    """Signed by a trusted key, but without a certificate of its very kernel that passed."""

    code = "unverified_artifact"


class IncompatibleArtifact(ArtifactError):
    """Built for another architecture, or for CPU features that this machine lacks."""

    code = "incompatible_artifact"


class CallError(TirgemmError, ValueError):
    """An argument of a kernel call has the wrong shape, strides, alignment or device, or requires grad."""

    code = "call_error"


class CallTypeError(CallError, TypeError):
    """An argument of a kernel call has the wrong type, dtype or count."""

    code = "call_type_error"


class LaunchFailed(TirgemmError):
    """The driver or the kernel refused to run a call whose arguments were right; the text holds the driver's words."""

    code = "launch_failed"
    outcome = Status.CRASHED


class ServiceError(TirgemmError):
    """The service answered with a problem document, or did not answer; ``problem`` holds the document. ``repeated``:
    the request had been sent before, and what it was answered then was lost: it may have been carried out."""

    code = "service_error"
    repeated = False

    def __init__(self, message: str, problem: dict[str, object] | None = None, http_status: int | None = None) -> None:
        super().__init__(message)
        self.problem: dict[str, object] = problem or {}
        self.http_status = http_status


class ServiceUnreachable(ServiceError):
    """The service does not answer, or only with 502, 503 or 504: nobody listens, or the connection is lost."""

    code = "service_unreachable"


class ClientClosed(ServiceUnreachable, RuntimeError):
    """The client was closed, before it asked or meanwhile."""


class NotCached(TirgemmError):
    """A client that is offline has no kernel of this problem, device and regime in its cache."""

    code = "not_cached"
    status = 404


def public_detail(code: str, text: str) -> str:
    """What others are told of an error of that code: ``text``, or what stands for it where that may name what is
    private to the machine it happened on."""
    if code == "internal_error":
        return "the worker failed; its log says why"
    return next((error.public for error in _classes(TirgemmError) if error.code == code and error.public), text)


def http_status(code: str) -> int:
    """The HTTP status of an error of that code; 500 for one that is not known."""
    return next((error.status for error in _classes(TirgemmError) if error.code == code), 500)


def _classes(base: type[TirgemmError]) -> list[type[TirgemmError]]:
    return [base, *(error for each in base.__subclasses__() for error in _classes(each))]


def one_of(what: str, value: object, choices: Iterable[T]) -> T:
    """The choice that ``value`` equals. Raises InvalidRequest, which says ``what`` it is and which there are."""
    for choice in choices:
        if choice == value:
            return choice
    raise InvalidRequest(f"{what} is {value!r:.80}; it must be one of {', '.join(choices)}")


def check_flags(**flags: object) -> None:
    """Raises InvalidRequest for a flag, given by its name, that is neither True nor False."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise InvalidRequest(f"{name} is {value!r:.80}; it must be True or False")


def number_limits(low: float | None, high: float | None) -> str:
    """Both limits of a number in words, for the sentence that refuses one; empty where it has none."""
    if low is not None and high is not None:
        return f" from {low} to {high}"
    return f" of at least {low}" if low is not None else f" of at most {high}" if high is not None else ""
