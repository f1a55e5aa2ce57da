"""Writes the examples of docs/api.md and docs/artifact.md from live answers, between ``<!-- example:NAME -->`` markers.

    python scripts/render_api_examples.py            # run the service and one small job, write every example
    python scripts/render_api_examples.py --check    # the examples that need no tuning: same structure as live?
    python scripts/render_api_examples.py --check --tune    # all of them

The real application runs in this process on a temporary data folder; the job is tuned on the CPU by the real worker.
Ids, times, hashes, keys and the machine's name are replaced, so that a second run changes nothing but measurements.
``--check`` compares what is stable: status lines, header names, and the keys of the documents.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from tirgemm.artifact import Signer, Trust, read
from tirgemm.detect import device as detect
from tirgemm.service.http.state import ServiceState
from tirgemm.service.jobs.local_fleet import LocalFleet
from tirgemm.service.jobs.worker import Worker
from tirgemm.service.server.http_server import uvicorn_config
from tirgemm.service.settings import Settings

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.example_values import ELIDED, WORKER, Normaliser
from scripts.stored_kernel import gpu_kernel

ROOT = Path(__file__).resolve().parents[1]
FILES = (ROOT / "docs" / "api.md", ROOT / "docs" / "artifact.md")
BLOCK = re.compile(r"(<!-- example:([a-z-]+) -->\n)(.*?)(<!-- /example:\2 -->)", re.DOTALL)
GEMM = "129x67x31:f16:nt"
# Kernels for every m of a range, so that a Launch has expressions in m to show.
RANGED = "1..129x67x31:f16:nt:bias:act=relu"
BUDGET = {"trials": 3, "seconds": 20}
_HEADERS = (
    "Content-Type Location Content-Location Retry-After Preference-Applied Vary Cache-Control ETag Accept-Ranges"
    " Content-Range Content-Length Content-Disposition X-Content-Type-Options Allow"
)
SHOWN_HEADERS = tuple(_HEADERS.split())
# Members whose own members depend on the machine, the family and the search.
FREE = {
    "pruned",
    "sentences",
    "statuses",
    "space",
    "config",
    "knobs",
    "environment",
    "conditions",
    "baselines",
    "peak_tflops",
}
EXPLAINED_ELSEWHERE = ("kernels.0.memory.accesses", "kernels.0.opcodes", "kernels.0.occupancy.limits")
# Of a job's document, where another member is what an example is about.
_JOB = ("device", "budget", "links")
WIDTH = 110


@dataclass
class ResponseRecorder:
    """Sends requests to the live service and keeps what a reader sees of them."""

    http: httpx.Client
    normalise: Normaliser
    examples: dict[str, str] = field(default_factory=dict)

    def record(
        self,
        name: str,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        elide: tuple[str, ...] = (),
    ) -> httpx.Response:
        """A request and its answer as an ``http`` block, less the members that another example shows (``elide``)."""
        sent = dict(headers or {})
        if body is not None:
            sent["Content-Type"] = "application/json"
        content = json.dumps(body) if body is not None else None
        answer = self.http.request(method, path, content=content, headers=sent)
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items())]
        lines += ["", content] if content else []
        lines += ["", f"HTTP/1.1 {answer.status_code} {answer.reason_phrase}"]
        lines += [
            f"{header}: {answer.headers[header]}"
            for header in SHOWN_HEADERS
            if header in answer.headers and (header != "Content-Length" or method == "HEAD")
        ]
        lines += [""] if answer.content else []
        if answer.headers.get("content-type", "").endswith("json"):
            lines.append(pretty(self.normalise.document(_elided(answer.json(), elide))))
        elif answer.headers.get("content-type", "").startswith("text/event-stream"):
            lines.append(_first_of_each_kind(answer.text))
        elif answer.content:
            lines.append(ELIDED)
        self.examples[name] = self.normalise("```http\n" + "\n".join(lines) + "\n```\n")
        return answer

    def show(self, name: str, document: Any) -> None:
        """A document on its own, as a ``json`` block."""
        self.examples[name] = f"```json\n{pretty(self.normalise.document(document))}\n```\n"


def untuned(recorder: ResponseRecorder, state: ServiceState) -> None:
    """Everything that the service answers before anything is tuned."""
    record = recorder.record
    record("not-ready", "GET", "/readyz")
    record("healthz", "GET", "/healthz")
    state.queue.register_worker(WORKER, [detect("cpu")])
    record("readyz", "GET", "/readyz")
    record("keys", "GET", "/v1/keys")
    record("meta", "GET", "/v1/meta")
    record("invalid-gemm", "POST", "/v1/kernels", {"gemm": "0x67x31"})
    record("invalid-request", "POST", "/v1/kernels", {"gemm": GEMM, "budget": {"trials": 0}})
    record("device-unavailable", "POST", "/v1/kernels", {"gemm": GEMM, "device": "sm_80"})
    record("method-not-allowed", "PUT", "/v1/jobs")
    explained = gpu_kernel(state.store, GEMM).id
    record("explain", "GET", f"/v1/kernels/{explained}/explain", elide=EXPLAINED_ELSEWHERE)
    record("explain-page", "GET", f"/v1/kernels/{explained}/explain", headers={"Accept": "text/html"})
    record("delete", "DELETE", f"/v1/kernels/{explained}")
    # Explaining may have taken longer than a worker that is not heard of counts as alive.
    state.queue.register_worker(WORKER, [detect("cpu")])
    asked = {"gemm": "131x67x31:f16:nt", "budget": BUDGET}
    job = record("building", "POST", "/v1/kernels", asked, {"Prefer": "wait=0"}).json()["job"]["id"]
    record("jobs", "GET", "/v1/jobs?status=queued&limit=1")
    record("unknown-filter", "GET", "/v1/jobs?state=queued")
    record("prioritised", "PATCH", f"/v1/jobs/{job}", {"priority": 5}, elide=_JOB)
    record("cancel", "DELETE", f"/v1/jobs/{job}")
    record("cancelled-events", "GET", f"/v1/jobs/{job}/events")
    record("retried", "POST", f"/v1/jobs/{job}/retry", {"reason": "cancelled by mistake"}, elide=_JOB)
    together = {"gemms": ["133x67x31"], "shapes": [[67, 31]], "problem": {"m": 135}, "budget": {"trials": 12}}
    batch = record("batch", "POST", "/v1/batches", together).json()
    state.batches.cancel(batch["id"])
    # The job of the other examples is alone: else its default would be built beside this one's search, and tell less.
    state.queue.cancel(job)


def tuned(recorder: ResponseRecorder, state: ServiceState) -> None:
    """One job from the first request to the artifact."""
    record = recorder.record
    asked = {"gemm": GEMM, "budget": BUDGET}
    with _working(state):
        deadline = time.monotonic() + 120
        while record("running", "POST", "/v1/kernels", asked, elide=("job", "fallback")).json()["status"] != "running":
            if time.monotonic() > deadline:
                sys.exit(f"no fallback within 120 s: {recorder.examples['running']}")
        job = recorder.http.get("/v1/jobs?limit=1").json()["jobs"][0]["id"]
        stream = record("events", "GET", f"/v1/jobs/{job}/events").text
        last_but_one = re.findall(r"^id: (\d+)", stream, re.MULTILINE)[-2]
        record("events-resumed", "GET", f"/v1/jobs/{job}/events", headers={"Last-Event-ID": last_but_one})
        record("job", "GET", f"/v1/jobs/{job}", elide=("fallback", "kernel"))
        kernel = record("kernel", "POST", "/v1/kernels", asked, {"Prefer": "wait=60"}).json()
        record("job-finished", "DELETE", f"/v1/jobs/{job}")
        record("kernels", "GET", f"/v1/kernels?gemm={GEMM}&limit=1", elide=("kernels.0",))
        url = kernel["artifact"]["url"]
        record("artifact-head", "HEAD", url)
        record("artifact-range", "GET", url, headers={"Range": "bytes=0-65535"})
        etag = recorder.http.head(url).headers["etag"]
        record("artifact-known", "GET", url, headers={"If-None-Match": etag})
        ranged = recorder.http.post(
            "/v1/kernels", json={"gemm": RANGED, "budget": {"trials": 1}}, headers={"Prefer": "wait=100"}
        ).json()
        packages = [recorder.http.get(document["artifact"]["url"]).content for document in (kernel, ranged)]
    single, of_range = (read(package, Trust.of(state.public_key)).manifest for package in packages)
    # Of a kernel set as of a kernel: the launch is the last member's.
    recorder.show("launch", of_range.launch.to_json())
    manifest = single.to_json()
    manifest["kernel"]["launch"] = dict.fromkeys(manifest["kernel"]["launch"], ELIDED)
    manifest["kernel"]["flags"] = [*manifest["kernel"]["flags"][:3], ELIDED]
    manifest["certificate"]["tests"] = [*manifest["certificate"]["tests"][:2], ELIDED]
    manifest["timings"] = dict.fromkeys(manifest["timings"], ELIDED)
    recorder.show("manifest", manifest)


@contextmanager
def _serving(data: Path) -> Iterator[tuple[httpx.Client, ServiceState]]:
    """The application under uvicorn in a thread."""
    settings = Settings.load(data=data, db="", port=0)
    state = ServiceState.open(settings)
    server = uvicorn.Server(uvicorn_config(state))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=200) as http:
            yield http, state
    finally:
        state.stopping.set()
        server.should_exit = True
        thread.join(10)
        state.explainer.close()
        state.database.close()


@contextmanager
def _working(state: ServiceState) -> Iterator[None]:
    """The real worker in a thread."""
    fleet = LocalFleet(
        state.store, Signer.load_or_create(state.settings.signing_key), processes=2, served=[detect("cpu")]
    )
    state.queue.remove_worker(WORKER)
    worker = Worker(state.queue, state.store, fleet)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join(30)
        fleet.close()


def _elided(document: Any, paths: tuple[str, ...]) -> Any:
    """The document with what stands at ``paths`` left out."""
    for path in paths:
        *way, last = [int(step) if step.isdigit() else step for step in path.split(".")]
        inner = document
        for step in way:
            inner = inner[step]
        inner[last] = ELIDED
    return document


def pretty(value: Any, indent: str = "", before: int = 0) -> str:
    """JSON with everything on one line that fits there. ``before``: columns that stand before it on its line."""
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, (dict, list)) or not value or len(indent) + before + len(line) <= WIDTH:
        return line
    inner = indent + "  "
    if not any(isinstance(item, (dict, list)) for item in (value.values() if isinstance(value, dict) else value)):
        # Many short members fill lines, as words do.
        options: dict[str, Any] = {"initial_indent": inner, "subsequent_indent": inner, "break_on_hyphens": False}
        items = [text.replace(" ", "\0") for text in _items(value)]
        filled = textwrap.fill(", ".join(items), WIDTH, break_long_words=False, **options).replace("\0", " ")
        return f"{line[0]}\n{filled}\n{indent}{line[-1]}"
    if isinstance(value, dict):
        names = {name: f"{json.dumps(name)}: " for name in value}
        parts = [names[name] + pretty(item, inner, len(names[name])) for name, item in value.items()]
        return "{\n" + ",\n".join(inner + part for part in parts) + f"\n{indent}}}"
    return "[\n" + ",\n".join(inner + pretty(item, inner) for item in value) + f"\n{indent}]"


def _items(value: dict[str, Any] | list[Any]) -> list[str]:
    if isinstance(value, dict):
        return [f"{json.dumps(name)}: {json.dumps(item, ensure_ascii=False)}" for name, item in value.items()]
    return [json.dumps(item, ensure_ascii=False) for item in value]


def _first_of_each_kind(stream: str) -> str:
    """The first event of every kind; what a kernel document shows in full is left out of its data."""
    shown: dict[str, str] = {}
    for event in stream.replace("\r\n", "\n").strip().split("\n\n"):
        lines = dict(line.partition(": ")[::2] for line in event.splitlines() if not line.startswith(":"))
        if not lines or lines["event"] in shown:
            continue
        data = json.loads(lines["data"])
        if "timings" in data:
            data["timings"] = ELIDED
        order = [name for name in ("event", "data", "id", "retry") if name in lines]
        told = lines | {"data": json.dumps(data, ensure_ascii=False)}
        shown[lines["event"]] = "\n".join(f"{name}: {told[name]}" for name in order)
    return "\n\n".join(shown.values())


# -- comparing and writing ---------------------------------------------------------------------------


def structure(block: str) -> Any:
    """What of an example must not change unseen: status line, header names, and the keys of its documents."""
    text = re.sub(r"^```\w+\n|```\n$", "", block)
    if not text.startswith(("GET ", "POST ", "PUT ", "PATCH ", "HEAD ", "DELETE ")):
        return keys(json.loads(text))
    answer = text[text.index("\nHTTP/1.1 ") + 1 :]
    head, _, body = answer.partition("\n\n")
    status, *headers = head.splitlines()
    names = [line.partition(":")[0] for line in headers]
    if body.startswith("{"):
        return status, names, keys(json.loads(body))
    events = re.findall(r"^event: (\w+)\ndata: (.*)$", body, re.MULTILINE)
    return status, names, [(event, keys(json.loads(data))) for event, data in events]


def keys(value: Any) -> Any:
    """The keys of a document, of its lists the first element's; None where anything may be."""
    if isinstance(value, dict):
        return {name: None if name in FREE else keys(inner) for name, inner in value.items()}
    if isinstance(value, list) and value:
        return [keys(value[0])]
    return None


def same(one: Any, other: Any) -> bool:
    """Whether two structures agree, where None agrees with everything."""
    if one is None or other is None:
        return True
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(same(x, y) for x, y in zip(one, other, strict=True))
    return bool(one == other)


def written() -> dict[str, str]:
    """The examples as they stand in the documents, by name."""
    return {match[2]: match[3] for path in FILES for match in BLOCK.finditer(path.read_text())}


def differences(examples: dict[str, str]) -> list[str]:
    """A sentence for each example that is missing from the documents or has another structure there."""
    here = written()
    out = [f"example {name} is in no document" for name in examples if name not in here]
    for name in examples.keys() & here.keys():
        try:
            live, told = structure(examples[name]), structure(here[name])
        except ValueError as error:
            out.append(f"example {name} cannot be read: {error}")
            continue
        if not same(live, told):
            out.append(f"example {name} has changed:\n  live:    {live}\n  written: {told}")
    return sorted(out)


def write(examples: dict[str, str]) -> None:
    """Put the examples between their markers. Exits with the names of markers and examples that lack each other."""
    texts = {path: path.read_text() for path in FILES}
    marked = {match[2] for text in texts.values() for match in BLOCK.finditer(text)}
    if marked != examples.keys():
        sys.exit(f"markers without an example or examples without a marker: {sorted(marked ^ examples.keys())}")
    for path, text in texts.items():
        path.write_text(BLOCK.sub(lambda match: match[1] + examples[match[2]] + match[4], text))


def live_examples(*, tune: bool) -> dict[str, str]:
    """The examples from a service that is started for them and ended again."""
    with tempfile.TemporaryDirectory() as folder, _serving(Path(folder)) as (http, state):
        recorder = ResponseRecorder(http, Normaliser(state.public_key))
        untuned(recorder, state)
        if tune:
            tuned(recorder, state)
        return recorder.examples


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare the structure and write nothing")
    parser.add_argument("--tune", action="store_true", help="with --check: the examples of the job too")
    asked = parser.parse_args()
    examples = live_examples(tune=asked.tune or not asked.check)
    if not asked.check:
        write(examples)
        return 0
    mismatches = differences(examples)
    print("\n".join(mismatches) or f"{len(examples)} examples are as live")
    return 1 if mismatches else 0


if __name__ == "__main__":
    sys.exit(main())
