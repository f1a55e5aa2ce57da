"""``ServiceKernels``: the kernels of a tirgemm service as a source: what it has, and what it tunes meanwhile."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from tirgemm import artifact
from tirgemm.artifact import Kernel
from tirgemm.device import Device
from tirgemm.errors import DeviceUnavailable, InvalidRequest, ServiceError, ServiceUnreachable, TirgemmError
from tirgemm.gemm import Gemm, Regime, regime_named
from tirgemm.kernel_source import Arrived, LookupResult, Policy, Preparation, run_in_background
from tirgemm.status import ENDED

if TYPE_CHECKING:
    from tirgemm._client.kernel_index import CachedKernel
    from tirgemm.client import Client

T = TypeVar("T")

LOG = logging.getLogger("tirgemm.torch")
# Seconds between two looks at the jobs that are not done.
POLL_S = 1.0
# Of so many kernels of one problem the answer is chosen.
LISTED = 100
# As many problems as a batch may have.
MAX_PROBLEMS = 1000
_UNLISTED = "the service lists none"
# Answers to a batch that need not be those to each of its problems: the service knows no batches, or refuses one
# problem, or their number.
ONE_BY_ONE = frozenset({404, 405, 422, 429})


class ServiceKernels:
    """A KernelSource: the service tunes whatever it is asked for. Every artifact is checked as ``Client.kernel`` does.

    ``regime`` is what kernels are tuned for. A service that goes away costs the kernels that have not come. One without
    a worker, which may be starting, is asked again for the client's patience; jobs are looked at every ``poll_s``
    seconds. Raises InvalidRequest.
    """

    tunes = True

    def __init__(self, client: Client, regime: Regime = "sustained", poll_s: float | None = None) -> None:
        from tirgemm._client.arguments import check_seconds
        from tirgemm.client import Client

        if not isinstance(client, Client):
            raise InvalidRequest(f"client is {client!r:.80}; give a tirgemm.Client of the service's address")
        self.client, self.regime = client, regime_named(regime)
        self.poll_s = POLL_S if poll_s is None else poll_s
        check_seconds("poll_s", self.poll_s, positive=True)

    def lookup(self, gemm: Gemm, device: Device) -> Kernel | None:
        """The kernel that the service would answer with, of the newest that it lists, or, of one that is away, what the
        cache has; nothing is tuned."""
        result = self.lookup_all([gemm], device)[gemm]
        if isinstance(result, TirgemmError):
            raise result
        return result

    def lookup_all(self, gemms: Sequence[Gemm], device: Device) -> dict[Gemm, LookupResult]:
        """What ``lookup`` says of each. A service that is away is waited for once, and hardly where the cache has all
        the kernels."""
        away: ServiceUnreachable | None = None
        if self.client.offline:
            away = ServiceUnreachable(f"{self.client.url} is not asked: the client is offline")
        results: dict[Gemm, LookupResult] = {}
        cached: dict[Gemm, CachedKernel | None] = {}
        for gemm in gemms:
            try:
                cached[gemm] = self.client.cached(gemm, device=device, regime=self.regime)
            except TirgemmError as error:
                results[gemm] = error
        # For those that nothing else has the service is waited for, before the others give it up.
        for gemm, known in sorted(cached.items(), key=lambda pair: pair[1] is not None):
            try:
                if away is None:
                    try:
                        results[gemm] = self._listed(gemm, device, quick=known is not None)
                        continue
                    except ServiceUnreachable as error:
                        away = error
                results[gemm] = away if known is None else self._loaded(known.document, gemm, device)
            except TirgemmError as error:
                results[gemm] = error
        return results

    def _listed(self, gemm: Gemm, device: Device, *, quick: bool) -> Kernel | None:
        listed = self.client.kernels(LISTED, gemm=gemm, device=device, regime=self.regime, quick=quick)
        # Newest first, and ``min`` takes the first of equal ones.
        return self._loaded(min(listed, key=_rank), gemm, device) if listed else None

    def refusal(self, gemm: Gemm, device: Device, policy: Policy) -> str | None:
        """What ``tuned`` alone takes is not tuned now; anything else the service says when it is asked."""
        del gemm, device
        return _UNLISTED if policy == "tuned" else None

    def prepare(self, gemms: Sequence[Gemm], device: Device, policy: Policy, arrived: Arrived) -> Preparation:
        """Submit all problems as one batch, then follow their jobs: a default as soon as it is there, the tuned kernel
        at the end. By ``tuned`` nothing is asked for, and what the service has is taken. One that goes away is waited
        for once."""
        preparation = Preparation(tuple(gemms))
        work = self._take_listed if policy == "tuned" else self._follow
        return run_in_background(preparation, lambda: work(preparation, device, arrived), _ended)

    def _take_listed(self, preparation: Preparation, device: Device, arrived: Arrived) -> None:
        for gemm, result in self.lookup_all(preparation.wanted, device).items():
            if isinstance(result, TirgemmError):
                _failed(preparation, gemm, result)
            elif result is None:
                preparation.fail([gemm], _UNLISTED)
            else:
                arrived(result)

    def _follow(self, preparation: Preparation, device: Device, arrived: Arrived) -> None:
        jobs: dict[Gemm, str] = {}
        for first in range(0, len(preparation.wanted), MAX_PROBLEMS):
            jobs |= self._submitted(preparation.wanted[first : first + MAX_PROBLEMS], preparation, device, arrived)
        defaults: set[Gemm] = set()
        faults: dict[Gemm, float] = {}
        while jobs and not preparation.cancelled.is_set():
            for gemm, job_id in list(jobs.items()):
                try:
                    _check_there(preparation)
                    if self._looked_at(job_id, gemm, device, arrived, defaults):
                        del jobs[gemm]
                    faults.pop(gemm, None)
                except TirgemmError as error:
                    if self._passes(error, gemm, faults):
                        continue
                    _failed(preparation, gemm, error)
                    del jobs[gemm]
            if jobs:
                preparation.cancelled.wait(self.poll_s)

    def _passes(self, error: TirgemmError, gemm: Gemm, faults: dict[Gemm, float]) -> bool:
        """Whether a job is looked at again after an error: one within the service, once at least and for the client's
        patience from the first one on, whose time is kept in ``faults``."""
        if isinstance(error, ServiceUnreachable) or not isinstance(error, ServiceError):
            return False
        if error.http_status is None or error.http_status < 500:
            return False
        if gemm not in faults:
            LOG.warning("%s; asking again for %.0f s", error, self.client.patience)
        now = time.monotonic()
        return now - faults.setdefault(gemm, now) <= self.client.patience

    def _submitted(
        self, gemms: Sequence[Gemm], preparation: Preparation, device: Device, arrived: Arrived
    ) -> dict[Gemm, str]:
        """The jobs that were submitted for problems, as one batch; what the service has has arrived."""
        if preparation.cancelled.is_set():
            return {}
        try:
            _check_there(preparation)
            submit = partial(self.client.submit_batch, gemms, device=device, regime=self.regime)
            items = self._from_worker(preparation, submit)["items"]
            answers = {Gemm.parse(str(item.get("gemm"))): item for item in items}
        except TirgemmError as error:
            if isinstance(error, ServiceError) and error.http_status in ONE_BY_ONE:
                return self._submitted_singly(gemms, preparation, device, arrived)
            for gemm in gemms:
                _failed(preparation, gemm, error)
            return {}
        jobs: dict[Gemm, str] = {}
        for gemm in gemms:
            try:
                _check_there(preparation)
                answer = answers.get(gemm, {})
                if answer.get("kernel"):
                    arrived(self._loaded(self._document(answer["kernel"]), gemm, device))
                elif answer.get("job"):
                    jobs[gemm] = str(answer["job"])
                else:
                    raise ServiceError(f"{self.client.url} took a batch but left out {gemm}")
            except TirgemmError as error:
                _failed(preparation, gemm, error)
        return jobs

    def _submitted_singly(
        self, gemms: Sequence[Gemm], preparation: Preparation, device: Device, arrived: Arrived
    ) -> dict[Gemm, str]:
        """The same by a request for each problem: one that is refused costs itself alone."""
        jobs: dict[Gemm, str] = {}
        for gemm in gemms:
            if preparation.cancelled.is_set():
                break
            try:
                _check_there(preparation)
                submit = partial(self.client.submit, gemm, device=device, regime=self.regime)
                answer = self._from_worker(preparation, submit)
                if answer.kernel is not None:
                    arrived(self._loaded(answer.kernel, gemm, device))
                else:
                    jobs[gemm] = answer.job_id
            except TirgemmError as error:
                _failed(preparation, gemm, error)
        return jobs

    def _from_worker(self, preparation: Preparation, submit: Callable[[], T]) -> T:
        """What ``submit`` returns, which is asked again while no worker is alive. Raises ServiceUnreachable where none
        comes within the client's patience."""
        started, told = time.monotonic(), False
        while True:
            try:
                return submit()
            except ServiceError as error:
                if not _without_worker(error) or preparation.cancelled.is_set():
                    raise
                if time.monotonic() - started + self.poll_s > self.client.patience:
                    raise ServiceUnreachable(str(error), error.problem, error.http_status) from error
                if not told:
                    LOG.warning("%s; asking again for %.0f s", error, self.client.patience)
                told = True
                preparation.cancelled.wait(self.poll_s)

    def _looked_at(self, job_id: str, gemm: Gemm, device: Device, arrived: Arrived, defaults: set[Gemm]) -> bool:
        """Take what a job has made; whether it is finished. Raises ServiceError where it has failed."""
        job = self.client.job(job_id)
        if job.get("kernel"):
            arrived(self._loaded(self._document(job["kernel"]), gemm, device))
            return True
        if job.get("fallback") and gemm not in defaults:
            defaults.add(gemm)
            try:
                arrived(self._loaded(self._document(job["fallback"]), gemm, device))
            except ServiceUnreachable:
                raise
            except TirgemmError as error:  # the tuned kernel still comes
                LOG.warning("no default for %s: %s", gemm, error)
        if job.get("status") in ENDED:
            raise ServiceError(f"job {job_id} ended as {job.get('status')}: {job.get('error')}", job)
        return False

    def _document(self, kernel: dict[str, Any] | str) -> dict[str, Any]:
        return kernel if isinstance(kernel, dict) else self.client.kernel_document(kernel)

    def _loaded(self, document: dict[str, Any], gemm: Gemm, device: Device) -> Kernel:
        data = self.client.package(document, gemm, device=device, regime=self.regime)
        return artifact.load(data, trust=self.client.trust)


def _rank(document: dict[str, Any]) -> int:
    """0 for a kernel that is pinned, then the tuned ones, then defaults, last what nobody has run."""
    roles = ("tuned", "fallback")
    return 0 if document.get("pinned") else 1 + (roles.index(role) if (role := document.get("role")) in roles else 2)


def _without_worker(error: ServiceError) -> bool:
    """Whether a service refused work because it has no worker at all, not because its workers lack the device."""
    return error.problem.get("code") == DeviceUnavailable.code and error.problem.get("devices") == []


def _check_there(preparation: Preparation) -> None:
    """Raises ServiceUnreachable, without asking, where the service was given up before."""
    if preparation.away:
        raise ServiceUnreachable(preparation.away)


def _ended(error: Exception) -> str:
    """What is said of every kernel where an error ends the work on them, and logged."""
    LOG.error("no more kernels are taken from the service", exc_info=error)
    return str(error) or type(error).__name__


def _failed(preparation: Preparation, gemm: Gemm, error: TirgemmError) -> None:
    if isinstance(error, ServiceUnreachable):
        preparation.away = str(error)
    preparation.fail([gemm], str(error))
    LOG.warning("no tuned kernel for %s: %s", gemm, error)
