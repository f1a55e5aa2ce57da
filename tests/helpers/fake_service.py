"""A tirgemm service as an httpx transport: documents as the real one writes them, and failures on demand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.helpers.artifact_samples import SIGNER, certified
from tirgemm import Client, Gemm
from tirgemm.detect import device as detect_device
from tirgemm.timings import Timing, Timings

JOB = "3f2a"
CPU = detect_device("cpu")
DEVICE = {"key": CPU.key, "name": "cpu", "model": CPU.model, "arch": CPU.arch}
MADE = "2026-01-02T03:04:05+00:00"


class Stream(httpx.SyncByteStream):
    """A body that comes in pieces and breaks where a piece is an exception."""

    def __init__(self, pieces: Iterator[bytes | BaseException]) -> None:
        self.pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        for piece in self.pieces:
            if isinstance(piece, BaseException):
                raise piece
            yield piece


def sse(number: int, kind: str, **data: Any) -> bytes:
    return f"id: {number}\nevent: {kind}\ndata: {json.dumps(data)}\n\n".encode()


EVENTS = (
    sse(1, "started", budget={"trials": 4, "seconds": 9}),
    sse(2, "fallback", kernel="fa11", timings={}),
    sse(3, "candidate", status="measured", trials=1, of=4, best_us=9.5, best="x86(a=1)"),
    b": keep-alive\n\n",
    sse(4, "selected", kernel="70ed"),
    sse(5, "done", kernel="70ed"),
)


@contextmanager
def client_of(fake: httpx.BaseTransport, cache: Path) -> Iterator[Client]:
    """A client of a fake service that trusts its key, and gives it up at once where it is away."""
    with Client("http://service.test", trust=SIGNER.public, cache_dir=cache, patience=0.01, transport=fake) as opened:
        yield opened


class FakeService(httpx.BaseTransport):
    """Answers like a service that tunes ``gemm`` in one job whose events are ``streams``, one a connection, and that
    signs with ``signer``.

    ``broken`` maps a path to what its next requests meet first: an exception, or a status.
    """

    def __init__(self, gemm: str = "33x17x19:f32:nt", signer: Any = SIGNER) -> None:
        self.gemm = Gemm.parse(gemm)
        self.signer = signer
        self.blobs: dict[str, bytes] = {}
        self.kernels = {"70ed": self._document("70ed", "tuned"), "fa11": self._document("fa11", "fallback")}
        self.answer: Callable[[dict[str, Any]], tuple[int, dict[str, Any]]] = self.pending
        self.status = "running"
        self.effort = "standard"
        self.error: dict[str, str] | None = None
        self.streams: list[Iterable[bytes | BaseException]] = [list(EVENTS)]
        self.stream_status = 200
        self.knows_batches = True
        self.broken: dict[str, list[Exception | int]] = {}
        self.requests: list[httpx.Request] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        path = request.url.path
        if self.broken.get(path):
            failure = self.broken[path].pop(0)
            if isinstance(failure, Exception):
                raise failure
            return self._problem(failure, "not_ready", "starting")
        if path == "/v1/kernels" and request.method == "POST":
            status, body = self.answer(json.loads(request.content))
            return httpx.Response(status, json=body)
        if path == "/v1/batches" and request.method == "POST":
            return self._batch(json.loads(request.content))
        if path == "/v1/kernels":
            after = request.url.params.get("after")
            names = [name for name in sorted(self.kernels) if name > (after or "")]
            page = names[: min(1, int(request.url.params["limit"]))]
            return httpx.Response(
                200, json={"kernels": [self.kernels[n] for n in page], "next": page[-1] if len(names) > 1 else None}
            )
        if path.startswith("/v1/kernels/"):
            return self._found(self.kernels.get(path.rpartition("/")[2]))
        if path == f"/v1/jobs/{JOB}/events":
            return self._stream()
        if path == f"/v1/jobs/{JOB}":
            if request.method == "DELETE":
                self.status = "cancelled"
            return httpx.Response(200, json=self.job())
        if path == "/v1/keys":
            return httpx.Response(200, json={"keys": [{"algorithm": "ed25519", "key": self.signer.public}]})
        if path == "/v1/meta":
            return httpx.Response(200, json={"version": "0.1.0"})
        if path.startswith("/v1/artifacts/") and path.rpartition("/")[2] in self.blobs:
            data = self.blobs[path.rpartition("/")[2]]
            return httpx.Response(
                200, stream=Stream(iter([data[:1000], data[1000:]])), headers={"content-length": str(len(data))}
            )
        return self._problem(404, "not_found", f"nothing is at {path}")

    def pending(self, _body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return 202, {"status": "building", "job": self.job(), "fallback": None}

    def ready(self, _body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return 200, self.kernels["70ed"]

    def _batch(self, body: dict[str, Any]) -> httpx.Response:
        """A batch whose problems are all this one's: answered as one of it would be."""
        if not self.knows_batches:
            return self._problem(404, "not_found", "nothing is at /v1/batches")
        status, answer = self.answer(body)
        if status >= 400:
            return httpx.Response(status, json=answer)
        named = {"kernel": answer["id"], "job": None} if status == 200 else {"kernel": None, "job": JOB}
        known = {"state": "hit" if status == 200 else "queued", "expected_gain": 0.0, "gain": None}
        items = [{"gemm": gemm, **named, **known} for gemm in body["gemms"]]
        summary = {
            "id": "ba7c",
            "status": "running",
            "states": {known["state"]: len(items)},
            "gain": {"geomean": None, "kernels": 0},
            "created_at": MADE,
        }
        return httpx.Response(status, json=summary | {"items": items})

    def job(self) -> dict[str, Any]:
        return {
            "id": JOB,
            "status": self.status,
            "gemm": str(self.gemm),
            "device": DEVICE,
            "regime": "sustained",
            "budget": {"trials": 4, "seconds": 9.0},
            "priority": 0,
            "created_at": MADE,
            "error": self.error,
            "effort": self.effort,
            "fallback": "fa11",
            "kernel": "70ed" if self.status == "done" else None,
        }

    def sent(self, method: str, path: str) -> list[httpx.Request]:
        return [r for r in self.requests if (r.method, r.url.path) == (method, path)]

    def _document(self, name: str, role: str) -> dict[str, Any]:
        data = certified(
            self.gemm,
            signer=self.signer,
            role=role,
            timings=Timings({"sustained": Timing(12.5)}),
        )
        sha256 = hashlib.sha256(data).hexdigest()
        self.blobs[sha256] = data
        return {
            "id": name,
            "gemm": str(self.gemm),
            "device": DEVICE,
            "role": role,
            "verified": True,
            "family": "sample",
            "config": {"rows": 1},
            "regime": "sustained",
            "timings": {
                "sustained": {"median_us": 12.5, "baselines": {"default": {"median_us": 15.625, "ratio": 1.25}}}
            },
            "certificate": None,
            "artifact": {"sha256": sha256, "bytes": len(data), "url": f"/v1/artifacts/{sha256}"},
            "trials": 4,
            "created_at": MADE,
        }

    def _stream(self) -> httpx.Response:
        if self.stream_status != 200:
            return self._problem(self.stream_status, "not_found", "no stream here")

        def pieces() -> Iterator[bytes | BaseException]:
            for piece in self.streams.pop(0) if self.streams else []:
                if isinstance(piece, bytes) and b"event: done" in piece:
                    self.status = "done"
                yield piece

        return httpx.Response(
            200, stream=Stream(pieces()), headers={"content-type": "text/event-stream; charset=utf-8"}
        )

    def _found(self, document: dict[str, Any] | None) -> httpx.Response:
        return (
            self._problem(404, "kernel_not_found", "there is no such kernel")
            if document is None
            else httpx.Response(200, json=document)
        )

    @staticmethod
    def _problem(status: int, code: str, detail: str) -> httpx.Response:
        problem = {
            "type": f"urn:tirgemm:problem:{code}",
            "title": code,
            "status": status,
            "detail": detail,
            "code": code,
        }
        return httpx.Response(status, json=problem, headers={"content-type": "application/problem+json"})
