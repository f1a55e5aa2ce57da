"""The service's own endpoints: health, readiness, public keys, limits and devices."""

from __future__ import annotations

import logging
from functools import partial

from anyio import fail_after, to_thread
from fastapi import APIRouter

from tirgemm._version import __version__
from tirgemm.errors import StoreError
from tirgemm.families import families
from tirgemm.gemm import ACTIVATIONS, DTYPE_BYTES, LAYOUTS, MAX_OPERAND_BYTES, MAX_SIZE, REGIMES
from tirgemm.hardware import ARCHITECTURES
from tirgemm.service.http.documents import DeviceBody, Health, KeyBody, KeyList, Meta, Readiness, WorkerBody
from tirgemm.service.http.problems import Problem
from tirgemm.service.http.state import State
from tirgemm.service.settings import MAX_BODY_BYTES, MAX_HEADER_BYTES, REQUEST_SECONDS
from tirgemm.tuning_db.job_values import MAX_PRIORITY
from tirgemm.tuning_db.schema import HEAD

logger = logging.getLogger("tirgemm.service")

router = APIRouter(tags=["service"])

READY_SECONDS = 3.0


@router.get("/healthz")
async def healthz() -> Health:
    """The process answers; nothing else is looked at."""
    return Health(status="ok")


@router.get("/readyz")
async def readyz(state: State) -> Readiness:
    """200 where the database is reachable and a worker is alive, else 503, within a few seconds."""
    look = partial(state.queue.live_workers, state.settings.alive_seconds)
    try:
        with fail_after(READY_SECONDS):
            workers = await to_thread.run_sync(look, abandon_on_cancel=True)
    except TimeoutError as error:
        detail = f"the database does not answer within {READY_SECONDS:g} s"
        raise Problem(503, detail, headers={"Retry-After": "1"}) from error
    except StoreError as error:
        logger.error("the database does not answer: %s", error)
        raise Problem(503, "the database does not answer; the log says why", headers={"Retry-After": "1"}) from error
    if not workers:
        raise Problem(503, "no worker is alive; start one with `tirgemm worker`", headers={"Retry-After": "1"})
    return Readiness(status="ready", workers=len(workers))


@router.get("/v1/keys")
async def keys(state: State) -> KeyList:
    """The keys that artifacts are signed with. Compare them with whoever runs the service before you trust them."""
    return KeyList(keys=[KeyBody(algorithm="ed25519", key=state.public_key)])


@router.get("/v1/meta")
def meta(state: State) -> Meta:
    """Version, devices of the live workers, families, regimes, and every limit."""
    settings = state.settings
    workers = state.queue.live_workers(settings.alive_seconds)
    devices = {device.key: device for worker in workers for device in worker.devices}
    return Meta(
        version=__version__,
        schema_revision=HEAD,
        signer=state.public_key,
        workers=[
            WorkerBody(name=w.name, devices=[DeviceBody.of(d) for d in w.devices], seen_at=w.seen_at) for w in workers
        ],
        devices=[DeviceBody.of(device) for device in devices.values()],
        named_devices=list(ARCHITECTURES),
        families=list(families()),
        regimes=list(REGIMES),
        dtypes=list(DTYPE_BYTES),
        layouts=list(LAYOUTS),
        activations=list(ACTIVATIONS),
        limits={
            "body_bytes": MAX_BODY_BYTES,
            "header_bytes": MAX_HEADER_BYTES,
            "request_seconds": REQUEST_SECONDS,
            "connections": settings.max_connections,
            "size": MAX_SIZE,
            "operand_bytes": MAX_OPERAND_BYTES,
            "trials": settings.max_trials,
            "seconds": settings.max_seconds,
            "fallback_seconds": settings.fallback_seconds,
            "wait_seconds": settings.max_wait_seconds,
            "queued": settings.max_queued,
            "retries": settings.max_retries,
            "priority": MAX_PRIORITY,
        },
    )
