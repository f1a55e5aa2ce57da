"""What the pages of one job, one model, one space and compiled kernels show: stored for their measurement, with the
addresses of all pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx

from benchmarks.service_speed.stored_kernels import DEVICE
from benchmarks.service_speed.turns import Server
from tirgemm import Gemm
from tirgemm.artifact import Signer, Trust, pack, read
from tirgemm.events import BatchProposed, CandidateRecorded, Event, SearchStarted, Standing
from tirgemm.families import family_named
from tirgemm.status import Status
from tirgemm.timings import Timings
from tirgemm.tuning.build.compile import build
from tirgemm.tuning.records import KernelRecord
from tirgemm.tuning_db import Database, JobQueue, JobRequest, SqlStore

ANSWER_SECONDS = 60.0
# Two kernels of the longest machine code that a family writes, so compiled on a machine without a GPU; and the problem
# with the most shipped candidates.
COMPILED = ("4096x4096x4096:f16:nt", "4096x4096x4096:f16:nn")
SPACE = "4096x4096x4096:f16:nt"
# A batch has no more problems, a search usually no more candidates.
LAYERS, CANDIDATES = 1000, 4096
OWNER, LEASE_SECONDS = "measuring:1:0", 36_000.0


def store_compiled(folder: Path) -> list[str]:
    """The ids of ``COMPILED``, the defaults of ``simt``, stored as cross-compiled builds are."""
    signer = Signer.generate()
    with Database.embedded(folder) as database:
        store = SqlStore(database)
        return [_stored(store, Gemm.parse(gemm), signer).id for gemm in COMPILED]


def store_job(folder: Path, candidates: int) -> str:
    """The id of a running job whose search has told of so many candidates."""
    with Database.embedded(folder) as database:
        queue = JobQueue(database)
        queue.submit(JobRequest(Gemm(1023, 1021, 1019), DEVICE, trials=candidates, seconds=600.0))
        job = queue.claim(OWNER, [DEVICE.key], LEASE_SECONDS)
        assert job is not None
        for event in _search(candidates):
            queue.add_event(job.id, event, OWNER)
        return job.id


def ask_for_model(service: Server, problems: Sequence[Gemm]) -> str:
    """The id of a batch of known kernels, as many as it may have."""
    body = {"gemms": [str(gemm) for gemm in problems[:LAYERS]], "device": DEVICE.key}
    url = f"http://127.0.0.1:{service.port}/v1/batches"
    answer = httpx.post(url, json=body, headers=service.headers, timeout=ANSWER_SECONDS)
    return str(answer.raise_for_status().json()["id"])


def addresses(kernels: Sequence[str], compiled: Sequence[str], job: str, model: str, n: int) -> dict[str, str]:
    """The address of every page, by what its row calls it; ``n`` is searched for."""
    first, second = kernels
    one, two = compiled
    return {
        "/": "/",
        "/kernels": "/kernels",
        "/kernels?sort=-tflops": "/kernels?sort=-tflops",
        f"/kernels?shape=n%3D{n}": f"/kernels?shape=n%3D{n}",
        "/kernels/ID": f"/kernels/{first}",
        "/kernels/ID/explain": f"/kernels/{one}/explain",
        "/kernels/ID/code": f"/kernels/{one}/code",
        "/kernels/ID/timeline": f"/kernels/{first}/timeline",
        "/compare?kernel=ID&kernel=ID": f"/compare?kernel={first}&kernel={second}",
        "/compare/code?kernel=ID&kernel=ID": f"/compare/code?kernel={one}&kernel={two}",
        "/jobs": "/jobs",
        "/jobs/ID": f"/jobs/{job}",
        "/models": "/models",
        "/models/ID": f"/models/{model}",
        "/spaces": "/spaces",
        "/spaces/GEMM": f"/spaces/{SPACE}",
        "/fleet": "/fleet",
    }


def _stored(store: SqlStore, gemm: Gemm, signer: Signer) -> KernelRecord:
    config = family_named("simt").default(gemm, DEVICE, "sustained")
    artifact = pack(build(gemm, config, DEVICE).contents(gemm, config, DEVICE), signer)
    record = KernelRecord(
        gemm=gemm,
        device=DEVICE,
        regime="sustained",
        role="unverified",
        config=config,
        kernel_sha256=read(artifact, Trust.of(signer.public)).manifest.kernel_sha256,
        artifact_sha256=store.put_blob(artifact),
        artifact_bytes=len(artifact),
        certificate=None,
        timings=Timings(),
        created_at="2026-11-23T00:00:00Z",
    )
    return store.put_kernel(record)


def _search(candidates: int) -> Iterator[Event]:
    """What a search tells that measures each candidate, none of which fails."""
    yield SearchStarted(
        families=("wgmma",), space={"wgmma": 10**8}, budget={"trials": candidates, "seconds": 600}, recorded=0
    )
    for number in range(candidates):
        if number % 8 == 0:
            yield BatchProposed(proposed=8, trials=number + 8, pruned={"shared": 10 * number}, expected_gain=0.01)
        us = 20 + number * 7919 % 997 / 100
        yield CandidateRecorded(
            config=f"wgmma(tile_m=128, tile_n={8 + 8 * (number % 32)}, stages={2 + number % 7})",
            digest=f"{number:016x}",
            status=Status.MEASURED,
            us=us,
            trials=number + 1,
            of=candidates,
            predicted_us=us * 1.02,
            standing=Standing(number + 1, number + 1, 20.0, "wgmma(tile_m=128)", 21.0),
        )
