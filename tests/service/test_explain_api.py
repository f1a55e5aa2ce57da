"""GET /v1/kernels/{kernel_id}/explain: the document, the page, and what cannot be explained."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from scripts.stored_kernel import gpu_kernel
from tests.service.support import CPU, Service, kernel_record, serving
from tests.waiting import PATIENCE_S
from tirgemm.artifact import Signer, pack
from tirgemm.artifact.signing_keys import SigningKeys
from tirgemm.config import Config
from tirgemm.errors import Cancelled, QueueFull
from tirgemm.families import family_named
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.service import cli
from tirgemm.service.explain import explainer as module
from tirgemm.service.explain.explainer import ChildAnswer, Explainer
from tirgemm.service.explain.stored_kernel import StoredKernelInput
from tirgemm.service.http.documents import ExplanationDocument
from tirgemm.service.http.pages.one_kernel_page import opened_kernel
from tirgemm.timings import SearchSummary, SelectionReason, StreamTiming, Timing, Timings
from tirgemm.tuning.build.compile import build
from tirgemm.tuning.records import Candidate, KernelRecord, Reason, SampleSet, Status
from tirgemm.tuning.records.store import Store
from tirgemm.tuning_db import JobRequest

SMALL = "129x67x31:f16:nt"
OTHER = "131x67x31:f16:nt"
# Answers at once with who it is, where the explaining process imports TVM.
CHILD = """
import os
from tirgemm.tuning.process.child_rpc import serve

def prepare(channel, arguments):
    def handle(call):
        channel.alive()
        return {"kernel": call[1][0].record.id, "process": os.getpid()}, "page"
    return handle

serve(prepare)
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with no worker, whose explaining process answers all of these tests: to start one takes longer than to
    explain a kernel."""
    with serving(tmp_path_factory.mktemp("service")) as actual:
        yield actual


def tuned_kernel(store: Store, signer: Signer, text: str = SMALL) -> tuple[KernelRecord, Config]:
    """A kernel with its real artifact, and what it was chosen from: a runner-up, a pruned and a failed candidate."""
    gemm, device = Gemm.parse(text), named_device("sm_80")
    family = family_named("simt")
    config = family.default(gemm, device, "sustained")
    other = config.with_(raster=2) if config["raster"] == 1 else config.with_(raster=1)
    binary = build(gemm, config, device)
    data = pack(
        binary.contents(gemm, config, device),
        signer,
    )

    def candidate(chosen: Config, status: Status, us: tuple[float, ...] = (), **more: Any) -> None:
        reasons: tuple[Reason, ...] = ("search", "selection")
        sets = tuple(SampleSet((each,), reason) for each, reason in zip(us, reasons, strict=False))
        store.add_candidate(Candidate(gemm, device.key, "sustained", chosen, status, sample_sets=sets, **more))

    candidate(config, Status.MEASURED, (9.0, 8.0))
    candidate(other, Status.MEASURED, (9.5, 8.5))
    candidate(config.with_(unroll=1), Status.MEASURED, (7.0,))
    candidate(config.with_(pad=0), Status.BUILD_FAILED, message="ptxas: no")
    candidate(config.with_(block_k=8), Status.PRUNED, rule="waves", message="27 blocks <keep> few SMs busy")
    timings = Timings(
        {"sustained": Timing(8.0)},
        selection=SelectionReason("1.2 times as fast as the default"),
        search=SearchSummary(pruned={"waves": 41, "threads": 7}),
        stream=StreamTiming(3_000_000, 2.0, 20, 1500.0, "2026-08-01T12:00:00"),
    )
    record = KernelRecord(
        gemm,
        device,
        "sustained",
        "tuned",
        config,
        hashlib.sha256(b"kernel").hexdigest(),
        store.put_blob(data),
        len(data),
        None,
        timings,
        trials=4,
    )
    return store.put_kernel(record), other


def test_a_stored_kernel_is_explained_with_what_it_was_chosen_from(service: Service) -> None:
    signer = Signer.generate()
    service.state.public_key = signer.public
    record, other = tuned_kernel(service.store, signer)
    links = service.http.get(f"/v1/kernels/{record.id}").json()["links"]
    answer = service.http.get(links["explain"])
    assert answer.status_code == 200
    actual = answer.json()
    ExplanationDocument.model_validate(actual)
    assert (actual["kernel"], actual["gemm"], actual["family"]) == (record.id, SMALL, "simt")
    assert actual["code"] == "the machine code that is served"
    assert actual["compiled"] is True
    assert actual["unknown"] == []
    assert actual["roofline"]["time_us"] == 8.0
    ceilings = {ceiling["name"]: ceiling for ceiling in actual["roofline"]["ceilings"]}
    assert (ceilings["dram"]["rate"], ceilings["dram"]["measured"]) == (1500.0, True)
    assert ceilings["dram"]["taken"].endswith(f"beside the tuning of kernel {record.id}")
    assert not any(c["measured"] for name, c in ceilings.items() if name != "dram")
    assert actual["roofline"]["share"] == pytest.approx(max(c["us"] for c in actual["roofline"]["ceilings"]) / 8.0)
    rivals = actual["rivals"]
    assert rivals["statuses"] == {"measured": 3, "build_failed": 1, "pruned": 1}
    assert [(p["rule"], p["count"], p["sentence"]) for p in rivals["pruned"]] == [
        ("waves", 41, "27 blocks <keep> few SMs busy"),
        ("threads", 7, ""),
    ]
    runner_up = rivals["runner_up"]
    assert (runner_up["us"], runner_up["kernel_us"], runner_up["reason"]) == (8.5, 8.0, "selection")
    assert runner_up["config"] == dict(other.knobs), "one that was only searched is not compared with a selection"
    assert [d["knob"] for d in runner_up["differences"]] == ["raster"]
    assert rivals["failures"][0]["message"] == "ptxas: no"

    page = service.http.get(links["explain"], params={"format": "html"})
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "27 blocks &lt;keep&gt; few SMs busy" in page.text
    assert not re.search(r"<script|<link|@import|\bsrc=|url\(", page.text)


def test_what_a_former_key_signed_is_explained_as_it_is_served(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = service.state.settings.data
    keys = SigningKeys(folder)
    record, _ = tuned_kernel(service.store, keys.current, "133x67x31:f16:nt")
    keys.rotate()
    service.state.public_key = keys.current.public
    assert service.http.get(f"/v1/kernels/{record.id}/explain").json()["code"] == "the machine code that is served"
    assert opened_kernel(service.state, record).trusted
    capsys.readouterr()
    assert cli.main(["explain", "--kernel", record.id, "--data", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["code"] == "the machine code that is served"


def test_what_the_services_folder_has_revoked_is_not_read(service: Service) -> None:
    keys = SigningKeys(service.state.settings.data)
    service.state.public_key = keys.current.public
    record, _ = tuned_kernel(service.store, keys.current, OTHER)
    stored = StoredKernelInput.of(service.store, record, service.state.trust)
    assert stored.package() is not None
    keys.revoke(record.artifact_sha256, "wrong")
    assert stored.package() is None


def test_code_of_an_artifact_that_is_not_trusted_is_not_read_and_that_is_said(service: Service) -> None:
    record, _ = tuned_kernel(service.store, Signer.generate(), OTHER)
    service.state.public_key = Signer.generate().public
    actual = service.http.get(f"/v1/kernels/{record.id}/explain").json()
    assert actual["code"] == "compiled here: the artifact is damaged or signed with a key that is not trusted here"
    assert actual["compiled"] is True


def test_the_page_is_for_browsers_and_the_document_for_programs(service: Service) -> None:
    path = f"/v1/kernels/{gpu_kernel(service.store, SMALL).id}/explain"
    browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
    for accept, format_, html in (
        ("*/*", None, False),
        (browser, None, True),
        (browser, "json", False),
        ("application/json", "html", True),
        ("application/json, text/html", None, False),
    ):
        answer = service.http.get(path, params={"format": format_} if format_ else {}, headers={"Accept": accept})
        assert answer.headers["content-type"].startswith("text/html" if html else "application/json"), (accept, format_)
        assert answer.headers["vary"] == "Accept"
    assert answer.json()["code"].startswith("compiled here: the artifact is damaged"), "it is no artifact of ours"
    assert service.http.get(path, params={"format": "pdf"}).json()["code"] == "invalid_request"


def test_what_cannot_be_explained_is_a_problem_that_says_why(service: Service) -> None:
    missing = service.http.get("/v1/kernels/0123456789abcdef/explain")
    assert (missing.status_code, missing.json()["code"]) == (404, "kernel_not_found")
    cpu = kernel_record(service.store, JobRequest(Gemm.parse(SMALL), CPU, "sustained"))
    assert "explain" not in service.http.get(f"/v1/kernels/{cpu.id}").json()["links"]
    answer = service.http.get(f"/v1/kernels/{cpu.id}/explain")
    assert (answer.status_code, answer.json()["code"]) == (422, "unsupported")
    assert CPU.model in answer.json()["detail"]
    old = gpu_kernel(service.store, SMALL)
    gone = service.store.put_kernel(
        KernelRecord(
            old.gemm,
            old.device,
            old.regime,
            "tuned",
            Config("simt", (("tile", 3),)),
            old.kernel_sha256,
            old.artifact_sha256,
            old.artifact_bytes,
            None,
            Timings(),
        )
    )
    answer = service.http.get(f"/v1/kernels/{gone.id}/explain")
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_config")
    assert "tile" in answer.json()["detail"]


def test_what_is_known_does_not_wait_for_what_is_being_explained(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, other = (StoredKernelInput.of(service.store, gpu_kernel(service.store, gemm)) for gemm in (SMALL, OTHER))
    explainer, begun, go = Explainer(), threading.Event(), threading.Event()

    def ask(_: str, __: object, arguments: tuple[StoredKernelInput]) -> ChildAnswer:
        (stored,) = arguments
        if stored is other:
            begun.set()
            assert go.wait(PATIENCE_S)
        return {"kernel": stored.record.id if stored.record else None}, "page"

    monkeypatch.setattr(explainer, "_ask", ask)

    async def both() -> None:
        first = await explainer.answer(known)
        waiting = asyncio.create_task(explainer.answer(other))
        try:
            assert await asyncio.to_thread(begun.wait, PATIENCE_S)
            assert await asyncio.wait_for(explainer.answer(known), PATIENCE_S) is first
        finally:
            go.set()
        assert (await waiting)[0] != first[0]

    asyncio.run(both())


def test_more_than_may_wait_are_refused_and_the_others_have_their_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    explainer, done, go = Explainer(waiting=1), list[str](), threading.Event()

    def work(name: str, _function: object, _arguments: object) -> None:
        assert go.wait(PATIENCE_S)
        done.append(name)

    monkeypatch.setattr(explainer, "_ask", work)

    async def ask(name: str) -> None:
        await explainer.call(name, name, print)

    async def all_of_them() -> None:
        first, second = asyncio.create_task(ask("first")), asyncio.create_task(ask("second"))
        await asyncio.sleep(0)
        with pytest.raises(QueueFull, match="1 requests wait"):
            await ask("refused")
        second.cancel()
        with suppress(asyncio.CancelledError):
            await second
        third = asyncio.create_task(ask("third"))
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(first, third)
        await ask("later")

    asyncio.run(all_of_them())
    assert done == ["first", "third", "later"]


def test_a_process_that_ends_is_replaced_and_an_end_cancels(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "planted_child.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(module, "_MODULE", "planted_child")
    stored = StoredKernelInput.of(service.store, gpu_kernel(service.store, SMALL))
    explainer = Explainer()

    async def twice() -> tuple[ChildAnswer, ChildAnswer]:
        first = await explainer.answer(stored)
        assert explainer._child is not None
        explainer._child.kill()
        assert await explainer.answer(stored) is first, "it is kept"
        explainer._known.clear()
        return first, await explainer.answer(stored)

    try:
        (first, _), (again, _) = asyncio.run(twice())
        assert first["kernel"] == again["kernel"]
        assert first["process"] != again["process"]
        explainer._known.clear()
        explainer.close()
        with pytest.raises(Cancelled):
            asyncio.run(explainer.answer(stored))
    finally:
        explainer.close()
