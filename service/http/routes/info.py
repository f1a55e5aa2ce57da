"""The service's own endpoints: health, readiness, public keys, limits and devices."""

from __future__ import annotations

import hashlib
import logging
import os

from anyio import fail_after, to_thread
from fastapi import APIRouter, Response

from tirgemm._version import __version__
from tirgemm.artifact import private_file
from tirgemm.artifact.revocations import RevocationList
from tirgemm.artifact.signing_keys import LIST_FILE
from tirgemm.errors import StoreError
from tirgemm.families import families
from tirgemm.gemm import ACTIVATIONS, DTYPE_BYTES, LAYOUTS, MAX_OPERAND_BYTES, MAX_SIZE, REGIMES
from tirgemm.hardware import ARCHITECTURES
from tirgemm.service.http.devices import NO_WORKER
from tirgemm.service.http.documents import (
    DeviceBody,
    Health,
    KeyBody,
    KeyList,
    Meta,
    Readiness,
    UnusableDevice,
    WorkerBody,
)
from tirgemm.service.http.problems import Problem
from tirgemm.service.http.routes.parameters import IfNoneMatch, etag_matches
from tirgemm.service.http.state import ServiceState, State
from tirgemm.service.settings import MAX_BATCH_BODY_BYTES, MAX_BODY_BYTES, MAX_HEADER_BYTES, REQUEST_SECONDS
from tirgemm.tuning_db.disk_space import LEAST_FREE_BYTES, is_full
from tirgemm.tuning_db.job_values import MAX_PRIORITY, WorkerRecord
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
    """200 where the database answers, can be written and was not found to be damaged, the blobs can be written, the
    disks of both have room, and a worker is alive with a device that can be used; else 503 within a few seconds, whose
    `missing` names what is not there: `database`, `blobs`, `worker`, `device`.
    Where keys are on, the reasons and the workers of `unusable` are told by `GET /v1/meta` alone, which takes one."""
    workers: list[WorkerRecord] = []
    missing: dict[str, str] = {}
    try:
        with fail_after(READY_SECONDS):
            workers, faults = await to_thread.run_sync(_look, state, abandon_on_cancel=True)
    except TimeoutError:
        missing["database"] = f"the database does not answer within {READY_SECONDS:g} s"
    except StoreError as error:
        logger.error("the database does not answer: %s", error)
        missing["database"] = "the database does not answer; the log says why"
    else:
        unusable = [device for worker in workers for device in UnusableDevice.of(worker)]
        if unusable and not await state.access.still_admits(None):
            unusable = [device.without_reason() for device in unusable]
        if not workers:
            missing["worker"] = NO_WORKER
        elif not any(worker.usable_keys for worker in workers):
            reasons = "; ".join(f"{each.name}: {each.reason}" for each in unusable)
            missing["device"] = f"no device can be used: {reasons or 'no worker has one now'}"
        missing |= faults
    if missing:
        raise Problem(503, "; ".join(missing.values()), headers={"Retry-After": "1"}, missing=list(missing))
    return Readiness(status="ready", workers=len(workers), unusable=unusable)


def _look(state: ServiceState) -> tuple[list[WorkerRecord], dict[str, str]]:
    """The workers that are alive, and of the database and the blobs what is wrong with them. Raises StoreError."""
    workers, database = state.queue.live_workers(state.settings.alive_seconds), state.database
    folder, faults = database.blobs.folder, dict[str, str]()
    if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        logger.error("the folder of the artifacts, %s, cannot be written", folder)
        faults["blobs"] = "the folder of the artifacts cannot be written; the log says which"
    elif is_full(folder):
        logger.error("less than %d MiB are free on the disk of %s", LEAST_FREE_BYTES >> 20, folder)
        faults["blobs"] = "the disk of the artifacts is full"
    if not database.writable:
        logger.error("database %s cannot be written", database.place)
        faults["database"] = "the database cannot be written; the log says which"
    elif database.is_full:
        logger.error("less than %d MiB are free on the disk of database %s", LEAST_FREE_BYTES >> 20, database.place)
        faults["database"] = "the disk of the database is full"
    if database.damage:
        logger.error("%s", database.damage)
        faults["database"] = "a part of the database is damaged; the log says what to do"
    return workers, faults


@router.get("/v1/keys")
def keys(state: State) -> KeyList:
    """The keys that artifacts are signed with, the current one first. Compare them with whoever runs the service before
    you trust them."""
    data = _revocations(state)
    listed = () if data is None else RevocationList.read(data, [state.public_key]).keys
    valid = [state.public_key, *(key for key in listed if key != state.public_key)]
    return KeyList(keys=[KeyBody(algorithm="ed25519", key=key) for key in valid])


@router.get(
    "/v1/revocations",
    response_class=Response,
    responses={
        200: {"content": {"application/json": {"schema": {"type": "object"}}}, "description": "The signed list."},
        304: {"description": "The client has it."},
    },
)
def revocations(state: State, if_none_match: IfNoneMatch = None) -> Response:
    """The signed list of the valid keys, and of the keys and artifacts that are revoked; 404 before there is one."""
    data = _revocations(state)
    if data is None:
        raise Problem(404, "no key was rotated here and nothing was revoked", "no_revocations")
    etag = f'"{hashlib.sha256(data).hexdigest()}"'
    headers = {"ETag": etag, "Cache-Control": "no-cache"}
    if etag_matches(if_none_match, etag):
        return Response(status_code=304, headers=headers)
    return Response(data, 200, headers, "application/json")


def _revocations(state: ServiceState) -> bytes | None:
    """The signed list as its file is now; None where there is none."""
    return private_file.read(state.settings.data / LIST_FILE, "list of revocations", 0o022, StoreError)


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
            WorkerBody(
                name=worker.name,
                devices=[DeviceBody.of(device) for device in worker.devices],
                unusable=UnusableDevice.of(worker),
                seen_at=worker.seen_at,
            )
            for worker in workers
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
            "batch_body_bytes": MAX_BATCH_BODY_BYTES,
            "header_bytes": MAX_HEADER_BYTES,
            "request_seconds": REQUEST_SECONDS,
            "connections": settings.max_connections,
            "connections_per_address": settings.connections_of_address,
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
