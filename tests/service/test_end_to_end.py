"""The whole flow on the CPU, through processes: POST a shape, follow its job and its trace, load the artifact, call
it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.traces.trace_collector import SentSpan, collecting
from tests.waiting import until
from tirgemm.artifact import Trust, load
from tirgemm.client import Client
from tirgemm.errors import UntrustedArtifact
from tirgemm.gemm import Gemm
from verification.service.processes import Serve

GEMM = "37x29x41:f16:nt:alpha:bias:act=relu"
RANGE = "1..3x48x16:f32:nn"


@pytest.mark.slow
def test_a_posted_shape_comes_back_tuned_verified_signed_and_right(tmp_path: Path) -> None:
    with (
        collecting() as collector,
        # Spans are sent soon: what a busy machine has left for the end has two seconds.
        Serve(
            tmp_path / "data",
            environment={"TIRGEMM_TRACES_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "100"},
        ) as server,
        Client(server.url, cache_dir=tmp_path / "cache") as client,
    ):
        key = str(client.meta()["signer"])
        answer = client.submit(GEMM, budget={"trials": 3, "seconds": 300}, seed=5)
        kinds = [event.kind for event in client.events(answer.job_id)]
        assert kinds[-1] == "done"
        assert {"fallback", "started", "batch", "candidate", "selected"} <= set(kinds)
        job = client.job(answer.job_id)
        document, fallback = job["kernel"], job["fallback"]
        assert (document["role"], document["verified"], fallback["role"]) == ("tuned", True, "fallback")
        assert 1 <= document["trials"] <= 3
        again = client.submit(GEMM)
        assert (again.kernel, again.job) == (document, None), "the second answer comes from the database"
        packages = [client.package(kernel, Gemm.parse(GEMM)) for kernel in (document, fallback)]
        worker = server.worker_pid()
        until(lambda: {"job", "POST /v1/kernels"} <= {span.name for span in collector.spans})
    check_trace(collector.spans, server.process.pid, worker)
    with pytest.raises(UntrustedArtifact):
        load(packages[0], trust=Trust.of("ed25519:" + "A" * 43 + "="))
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((37, 41), (29, 41)))
    bias = rng.standard_normal(29).astype(np.float16)
    wanted = np.maximum(1.5 * (a.astype(np.float64) @ b.astype(np.float64).T) + bias, 0)
    for package in packages:
        kernel = load(package, trust=Trust.of(key))
        served = kernel(a, b, bias=bias, alpha=1.5)
        assert served.dtype == np.float16
        np.testing.assert_allclose(served.astype(np.float64), wanted, rtol=2e-3, atol=2e-2)


@pytest.mark.slow
def test_a_posted_range_of_m_is_answered_with_a_kernel_set(tmp_path: Path) -> None:
    with Serve(tmp_path / "data") as server, Client(server.url, cache_dir=tmp_path / "cache") as client:
        answer = client.submit(RANGE, effort="quick", budget={"trials": 1, "seconds": 300}, seed=5)
        kinds = [event.kind for event in client.events(answer.job_id)]
        assert kinds[-1] == "done"
        document = client.job(answer.job_id)["kernel"]
        assert (document["gemm"], document["role"], document["verified"]) == (RANGE, "tuned", True)
        assert client.submit(RANGE, effort="quick", budget={"trials": 1}).kernel == document
        package, key = client.package(document, Gemm.parse(RANGE)), str(client.meta()["signer"])
    kernel = load(package, trust=Trust.of(key))
    parts = [member.gemm.m for member in kernel.manifest.kernels]
    assert [member["m"] for member in document["members"]] == (list(map(str, parts)) if len(parts) > 1 else [])
    assert (kernel.gemm.m_min, kernel.gemm.m_max) == (1, 3)
    rng = np.random.default_rng(3)
    b = rng.integers(-3, 4, (16, 48)).astype(np.float32)
    for m in (1, 2, 3):
        a = rng.integers(-3, 4, (m, 16)).astype(np.float32)
        np.testing.assert_array_equal(kernel(a, b), a @ b)


def check_trace(spans: list[SentSpan], *parents: int) -> None:
    """One trace goes from the request, over server, worker, build and measuring processes, to the stored kernel."""
    first = next(span for span in spans if span.name == "POST /v1/kernels")
    trace = {span.span: span for span in spans if span.trace == first.trace}

    def path(span: SentSpan) -> list[str]:
        return [span.name, *(path(trace[span.parent]) if span.parent in trace else ())]

    paths = {" < ".join(path(span)) for span in trace.values()}
    job = "job < submit < POST /v1/kernels"
    assert {
        job,
        f"store < fallback < {job}",
        f"propose < search < {job}",
        f"compile < build < batch < search < {job}",
        f"instantiate < compile < build < batch < search < {job}",
        f"verify < measure < candidate < search < {job}",
        f"time < measure < candidate < search < {job}",
        f"store < search < {job}",
        f"time < measure < race < {job}",
        f"verify < measure < certify < {job}",
        f"store < {job}",
    } <= paths
    services = {span.name: span.service for span in trace.values()}
    assert (services["POST /v1/kernels"], services["submit"]) == ("tirgemm-server", "tirgemm-server")
    assert {services[name] for name in ("job", "build", "compile", "measure", "verify")} == {"tirgemm-worker"}
    built, measured = ({span.pid for span in trace.values() if span.name == name} for name in ("compile", "verify"))
    assert built
    assert measured
    assert not built & measured
    assert not (built | measured) & {0, *parents}
