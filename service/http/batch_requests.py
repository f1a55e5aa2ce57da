"""Handling of ``POST /v1/batches``: known kernels at once, a job for each of the other problems, a share for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from tirgemm.detect import check_fits
from tirgemm.device import Device
from tirgemm.errors import InvalidRequest, TirgemmError
from tirgemm.families import supporting
from tirgemm.gemm import Gemm
from tirgemm.service.http.batch_documents import BatchRequest
from tirgemm.service.http.kernel_cache.snapshot_cache import EVER_SECONDS
from tirgemm.service.http.problems import Problem
from tirgemm.service.http.requests import devices_seen, is_answer, known_kernel, target_of, workable
from tirgemm.service.http.state import ServiceState
from tirgemm.tuning.budget import Budget
from tirgemm.tuning.records import KernelRecord
from tirgemm.tuning.search.headroom import headrooms
from tirgemm.tuning_db import JobRequest
from tirgemm.tuning_db.access.quotas import Asker
from tirgemm.tuning_db.job_values import Window
from tirgemm.tuning_db.queue.batch_totals import BatchBudget
from tirgemm.tuning_db.queue.batches import MAX_ITEMS, Batch, WantedProblem
from tirgemm.tuning_db.queue.budget_shares import shares

# How long the expected gains of one batch may be estimated for.
ESTIMATE_SECONDS = 2.0


def answer_batch(
    state: ServiceState,
    body: BatchRequest,
    *,
    patient: bool = True,
    asker: Asker | None = None,
    batch_id: str | None = None,
) -> Batch | None:
    """The batch, submitted, or that of the id that was. It never waits; ``patient``: None where no worker is alive, for
    one that still starts.

    Raises the problem that names the first problem that cannot be, InvalidRequest, QueueFull, QuotaExceeded, and the
    409 problem for a device that no live worker has.
    """
    made = state.batches.batch(batch_id) if batch_id is not None else None
    if made is not None:
        return made
    asked = list(_gemms(body))
    if not 1 <= len(asked) <= MAX_ITEMS:
        raise InvalidRequest(f"the batch has {len(asked)} problems; it must have 1 to {MAX_ITEMS}")
    workers = devices_seen(state, state.settings.alive_seconds)
    target = target_of(body.device, workers or devices_seen(state, EVER_SECONDS), wait=patient and not workers)
    if target is None:
        return None
    # Known kernels need no worker: what a device is that none has now is in the database.
    device = target.device or state.store.device(target.key) or workable(target, workers, verify=True)
    for number, gemm in enumerate(asked):
        with _named(number, body):
            check_fits(gemm, device)
            supporting(gemm, device)
    times = Counter(asked)
    known = {
        gemm: known_kernel(state, gemm, device.key, body.regime, other_devices=body.other_devices) for gemm in times
    }
    wanted = _wanted(state, body, device, known)
    if any(one.kernel_id is None for one in wanted):
        if patient and not workers:
            return None
        if not workers:
            state.database.require_writable()  # as for one kernel
        workable(replace(target, here=target.here and bool(workers)), workers, verify=True)
    budget = BatchBudget(body.budget.trials, body.budget.seconds)
    return state.batches.submit(
        [replace(one, times=times[one.request.gemm]) for one in wanted],
        asked=len(asked),
        budget=budget,
        max_queued=state.settings.max_queued,
        asker=asker,
        batch_id=batch_id,
    )


def _gemms(body: BatchRequest) -> Iterator[Gemm]:
    for number, gemm in enumerate(body.gemms):
        with _named(number, body):
            yield Gemm.from_json(gemm)
    common = body.problem or {}
    if body.shapes and not common:
        raise InvalidRequest("problem is missing: shapes are n and k, and m has to come from it")
    if {"n", "k"} & common.keys():
        raise InvalidRequest("problem names n or k, which are those of shapes")
    if common and not body.shapes:
        raise InvalidRequest("problem is given without shapes; it is for them")
    for number, (n, k) in enumerate(body.shapes, start=len(body.gemms)):
        with _named(number, body):
            yield Gemm.from_json({**common, "n": n, "k": k})


@contextmanager
def _named(number: int, body: BatchRequest) -> Iterator[None]:
    """Say which problem of the body it is that cannot be."""
    first = len(body.gemms)
    place = f"gemms.{number}" if number < first else f"shapes.{number - first}"
    try:
        yield
    except TirgemmError as error:
        raise Problem(error.status, f"{place}: {error}", error.code) from error


def _wanted(
    state: ServiceState, body: BatchRequest, device: Device, known: Mapping[Gemm, KernelRecord | None]
) -> list[WantedProblem]:
    """Each problem, beside which is the kernel that is known, as the batch takes it: a hit, or a job with its share of
    the budget."""
    usual = Budget.of(body.effort)
    priority, window = body.queue.priority, Window.parse(body.queue.window) if body.queue.window else None
    gains = headrooms(list(known.items()), device, body.regime, ESTIMATE_SECONDS)
    wanted = [
        WantedProblem(
            JobRequest(
                gemm,
                device,
                body.regime,
                min(usual.trials, state.settings.max_trials),
                min(usual.seconds, state.settings.max_seconds),
                body.effort,
                body.seed,
                priority=priority,
                window=window,
                other_devices=body.other_devices,
            ),
            gain,
            kernel.id if kernel is not None and is_answer(kernel, usual, named=False) else None,
            kernel.id if kernel is not None and kernel.role == "tuned" else None,
        )
        for (gemm, kernel), gain in zip(known.items(), gains, strict=True)
    ]
    return _shared(state, body, wanted)


def _shared(state: ServiceState, body: BatchRequest, wanted: Sequence[WantedProblem]) -> list[WantedProblem]:
    """The same with the budget of the body divided among the jobs by their expected gain."""
    jobs = [one for one in wanted if one.kernel_id is None]
    trials, seconds, settings = body.budget.trials, body.budget.seconds, state.settings
    limits = (("trials", trials, settings.max_trials), ("seconds", seconds, settings.max_seconds))
    for name, value, limit in limits:
        if value is not None and jobs and not len(jobs) <= value <= limit * len(jobs):
            raise InvalidRequest(
                f"budget {name} is {value} for {len(jobs)} problems to be tuned; it must be from 1 to {limit:g} for "
                "each of them"
            )
    weights = [one.expected_gain for one in jobs]
    own_trials = [int(share) for share in shares(trials, weights, 1.0)] if trials is not None else None
    own_seconds = shares(seconds, weights, 1.0) if seconds is not None else None
    divided = {}
    for number, one in enumerate(jobs):
        request = one.request
        if own_trials is not None:
            request = replace(request, trials=min(own_trials[number], settings.max_trials))
        if own_seconds is not None:
            request = replace(request, seconds=min(own_seconds[number], settings.max_seconds))
        divided[request.gemm] = replace(one, request=request)
    return [divided.get(one.request.gemm, one) for one in wanted]
