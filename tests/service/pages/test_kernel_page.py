"""The page of a kernel, its code and its forms; kernels side by side."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.artifact_samples import SIGNER, certified
from tests.service.pages.browser import HTML, Browser
from tests.service.pages.code_faults import crash, other_code, refused
from tests.service.pages.page_records import A100, H200, WGMMA, compiled_kernel, searched_kernel
from tests.service.support import CPU, Service
from tests.waiting import PATIENCE_S
from tirgemm.artifact import Signer
from tirgemm.config import Config
from tirgemm.errors import InvalidRequest
from tirgemm.families import family_named
from tirgemm.gemm import Gemm
from tirgemm.service.explain.explainer import Explainer
from tirgemm.service.http.pages import one_kernel_page
from tirgemm.timings import MemberTiming
from tirgemm.tuning.records import SMALLER_M, CandidateKey, SampleSet
from tirgemm.tuning_db.access.api_keys import KeyTable
from tirgemm.tuning_db.access.audit import AuditLog

ROOT = Path(__file__).parents[3]


def document(service: Service, address: str) -> dict[str, Any]:
    answer = service.http.get(address)
    assert answer.status_code == 200, answer.text
    read: dict[str, Any] = answer.json()
    return read


def page(service: Service, address: str) -> str:
    answer = service.http.get(address, headers=HTML)
    assert answer.status_code == 200, answer.text
    assert not re.search(r"<script(?![^>]*\bsrc=)|\sstyle=|\son\w+=", answer.text)
    return answer.text


def test_times_stand_beside_the_default_and_baselines_with_their_samples(service: Service) -> None:
    kernel = searched_kernel(service.store, us=10.0, default_us=12.5)
    read = document(service, f"/kernels/{kernel.id}")
    sustained, isolated = read["times"]
    assert [entry["name"] for entry in sustained["entries"]] == ["", "default", "torch.matmul"]
    own, default, _ = sustained["entries"]
    assert (own["median_us"], own["quartiles"]["median"], len(own["samples_us"])) == (10.0, 10.0, 41)
    assert (
        own["quartiles"]["least"] < own["quartiles"]["low"] < 10 < own["quartiles"]["high"] < own["quartiles"]["most"]
    )
    assert default["speed"]["ratio"] == 1.25
    assert (isolated["regime"], isolated["entries"][0]["median_us"]) == ("isolated", 15.0)
    html = page(service, f"/kernels/{kernel.id}")
    assert html.count('<svg class="samples"') == 2
    assert "1.25 times as fast as the default" in html


def test_a_race_at_a_smaller_m_lends_no_samples(service: Service) -> None:
    """Though its median is as good as the kernel's, and it is newer."""
    kernel = searched_kernel(service.store, "1..129x67x31:f16:nt", us=10.0)
    key = CandidateKey(kernel.gemm, kernel.device.key, kernel.regime, kernel.config.digest)
    smaller = SampleSet((10.0,) * 7, SMALLER_M, conditions={"regime": kernel.regime, "m": 100})
    service.store.add_samples(key, smaller)
    own, *others = document(service, f"/kernels/{kernel.id}")["times"][0]["entries"]
    assert len(own["samples_us"]) == 41
    assert [entry["name"] for entry in others if entry["samples_us"]] == ["default", "torch.matmul"]
    url = f"/candidates/{kernel.config.digest}?gemm={kernel.gemm}&device={kernel.device.key}&regime={kernel.regime}"
    assert ">smaller m, 100</th>" in page(service, url)


def test_times_of_a_busy_machine_are_marked(service: Service) -> None:
    kernel = searched_kernel(service.store)
    told = kernel.timings.of("sustained")
    assert told is not None
    busy = replace(told, conditions={**told.conditions, "loadavg": 9.0, "cpus": 2})
    marked = service.store.put_kernel(replace(kernel, timings=kernel.timings.with_regime("sustained", busy), id=""))
    warning = "timed while the machine was busy (a load average of 9.00 on 2 CPUs)"
    assert [warning in str(run["busy"]) for run in document(service, f"/kernels/{marked.id}")["times"]] == [True, False]
    assert page(service, f"/kernels/{marked.id}").count(warning) == 1


def test_a_later_kernel_of_the_same_config_lends_no_samples(service: Service) -> None:
    first = searched_kernel(service.store, us=10.0)
    searched_kernel(service.store, us=11.0)
    candidates = service.store.candidates(first.gemm, first.device.key, first.regime)
    alone = candidates[0].with_(sample_sets=tuple(s for s in candidates[0].sample_sets if s.median_us > 10.5))
    assert alone.sample_sets
    service.store.put_kernel(first)
    with service.state.database.write() as connection:
        connection.exec_driver_sql("DELETE FROM sample_sets WHERE median_us < 10.5")
    own = document(service, f"/kernels/{first.id}")["times"][0]["entries"][0]
    assert (own["median_us"], own["samples_us"], own["quartiles"]) == (10.0, [], None)
    assert "not stored" in page(service, f"/kernels/{first.id}")
    spreads = {row["us"]: row["default"]["low"] for row in document(service, "/kernels")["kernels"]}
    assert spreads[10.0] is None
    assert spreads[11.0] is not None


def test_knobs_have_the_familys_meanings(service: Service) -> None:
    kernel = searched_kernel(service.store)
    knobs = {knob["name"]: knob for knob in document(service, f"/kernels/{kernel.id}")["knobs"]}
    meanings = {knob.name: knob.meaning for knob in family_named("wgmma").space(kernel.gemm, kernel.device).knobs}
    told = (knobs["schedule"]["value"], knobs["schedule"]["meaning"])
    assert told == ("pingpong", meanings["schedule"])
    assert knobs["unheard_of"]["meaning"] is None
    foreign = searched_kernel(service.store, config=Config("elsewhere", (("x", 1),)))
    assert "The family says nothing of it." in page(service, f"/kernels/{foreign.id}")


def test_whence_the_reason_of_the_choice_is_and_whence_the_times_are_is_told(service: Service) -> None:
    kernel = searched_kernel(service.store, us=10.0, default_us=12.5)
    told = "1.25 times as fast as the default (the times below are of a run after the choice)"
    assert told in re.sub("<[^>]*>", "", page(service, f"/kernels/{kernel.id}"))


def test_the_certificate_is_told_test_by_test(service: Service) -> None:
    html = page(service, f"/kernels/{searched_kernel(service.store).id}")
    rows = re.findall(r'<th [^>]*scope="row">(exact|normal)</th>(.*?)</tr>', html, re.DOTALL)
    assert [name for name, _ in rows] == ["exact", "normal"]
    for word in ("129 x 67 x 31", "full", "8,643", "equal", "passed"):
        assert word in rows[0][1]
    assert "0.966" in rows[1][1]


def test_unverified_fallback_cpu_and_set_kernels_are_told_as_such(service: Service) -> None:
    build = searched_kernel(service.store, role="unverified").id
    unverified = page(service, f"/kernels/{build}")
    assert ("and tested under" in unverified, "which is not this kernel" in unverified) == (False, False)
    assert " --regime sustained --unverified --output " in document(service, f"/kernels/{build}")["snippets"][1]["text"]
    assert "Nobody has run this build" in unverified
    assert "None: nobody verified this build." in unverified
    assert "Estimated, not measured: 10.00" in unverified
    assert "/pin" not in unverified, "it cannot be pinned"
    default = searched_kernel(service.store, role="fallback").id
    assert "served until a search has found something better" in page(service, f"/kernels/{default}")
    service.http.put(f"/v1/kernels/{default}/pin")
    assert "served until a search" not in page(service, f"/kernels/{default}")
    cpu = page(service, f"/kernels/{searched_kernel(service.store, device=CPU, config=Config('x86', ())).id}")
    assert "What is explained are kernels for GPUs." in cpu
    assert "TVMScript, LLVM IR and machine code side by side</a>." in cpu
    members = (MemberTiming("1..64", "wgmma", "wgmma(tile_m=64)", "0" * 16, "a" * 64, 4.5),)
    a_set = page(service, f"/kernels/{searched_kernel(service.store, '1..64x67x31:f16:nt', members=members).id}")
    assert 'scope="row">1..64</th>' in a_set
    assert "a set of 1 kernels" in a_set


def test_the_history_says_what_of_the_environment_differs(service: Service) -> None:
    kernel = searched_kernel(service.store)
    older = H200.with_(environment=(("driver", "535.1"), ("tvm", "0.27.0"), ("cuda", "13.0")))
    before = searched_kernel(service.store, us=11.0, device=older, config=WGMMA.with_(tile_m=64))
    default = searched_kernel(service.store, us=12.5, role="fallback")
    far = searched_kernel(service.store, us=40.0, device=A100)
    searched_kernel(service.store, "131x67x31:f16:nt")
    read = document(service, f"/kernels/{kernel.id}")
    assert [other["id"] for other in read["history"]] == [default.id, before.id]
    assert read["history"][1]["changed"] == {"driver": "535.1"}
    assert [other["id"] for other in read["elsewhere"]] == [far.id]
    assert read["default_id"] == default.id
    assert not read["answers"], "the one that was stored last answers"
    assert f'href="/compare?kernel={kernel.id}&amp;kernel={default.id}"' in page(service, f"/kernels/{kernel.id}")


@pytest.mark.parametrize("path", ["{}", "{}/code", "{}/explain", "{}/code/sass"])
@pytest.mark.parametrize("kernel_id", ["00ff", "no-kernel", "x" * 400])
def test_a_kernel_that_is_not_there_is_a_404(service: Service, path: str, kernel_id: str) -> None:
    answer = service.http.get(f"/kernels/{path.format(kernel_id)}")
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")


def test_the_line_for_plain_http_sends_the_key_where_it_takes_one(service: Service, browser: Browser) -> None:
    kernel = searched_kernel(service.store)
    assert "Bearer" not in page(service, f"/kernels/{kernel.id}")
    _, secret = KeyTable(service.state.database).create("a reader", "read")
    service.state.access.read()
    browser.sign_in(secret)
    read = unescape(browser.open(f"/kernels/{kernel.id}").text)
    assert f'curl -fsS -H "Authorization: Bearer $TIRGEMM_KEY" -o kernel.tirgemm {service.url}' in read
    assert secret not in read


def test_the_snippets_have_the_scheme_of_the_proxy(service: Service) -> None:
    address = f"/kernels/{searched_kernel(service.store).id}"
    read = service.http.get(address, headers={"X-Forwarded-Proto": "https"}).json()
    for snippet in read["snippets"]:
        assert service.url.replace("http:", "https:") in snippet["text"]
        assert service.url not in snippet["text"]


def test_a_text_that_no_kernel_has_is_a_404(service: Service) -> None:
    answer = service.http.get(f"/kernels/{searched_kernel(service.store).id}/code/cobol")
    assert answer.status_code == 404
    assert answer.json()["detail"] == (
        "there is no text 'cobol' of a kernel; there may be script, cuda, ptx, sass, llvm, asm"
    )


def test_what_compiles_and_disassembles_has_few_threads_and_a_line_that_ends(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go = threading.Event(), threading.Event()

    def slow(*_: object) -> None:
        begun.set()
        assert go.wait(PATIENCE_S)
        raise InvalidRequest("it was interrupted by the test")

    explainer = Explainer(waiting=0)
    monkeypatch.setattr(explainer, "_ask", slow)
    service.state.explainer = explainer
    signer = Signer.generate()
    service.state.public_key = signer.public
    kernel = compiled_kernel(service.store, signer)
    other = searched_kernel(service.store, us=11.0)
    own = f"/kernels/{kernel.id}"
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(service.http.get, f"{own}/code")
        try:
            assert begun.wait(PATIENCE_S)
            for address in (f"{own}/code", f"{own}/code/sass", f"/compare/code?kernel={kernel.id}&kernel={other.id}"):
                answer = service.http.get(address)
                assert (answer.status_code, answer.json()["code"]) == (503, "queue_full"), address
                assert answer.headers["retry-after"] == "5"
            assert service.http.get(own).status_code == 200
        finally:
            go.set()
        assert first.result().status_code == 200
        assert "it was interrupted by the test" in first.result().text


def test_forms_pin_and_delete_and_are_in_the_audit_log(service: Service, browser: Browser) -> None:
    admin, secret = KeyTable(service.state.database).create("an admin", "admin")
    _, reader = KeyTable(service.state.database).create("a reader", "read")
    service.state.access.read()
    kernel = searched_kernel(service.store)
    own = f"/kernels/{kernel.id}"
    with Browser(service.url) as other:
        other.sign_in(reader, own)
        shown = other.open(own).text
        assert "/pin" not in shown, "who may not change it is offered nothing"
        assert other.send(f"{own}/pin", other.token(shown)).status_code == 403

    browser.sign_in(secret, own)
    token = browser.token(browser.open(own).text)
    assert browser.send(f"{own}/pin", "0" * 64).status_code == 403
    pinned = browser.send(f"{own}/pin", token)
    assert (pinned.status_code, pinned.headers["location"]) == (303, own)
    assert 'action="' + own + '/unpin"' in browser.open(own).text
    refused = browser.send(f"{own}/delete", token)
    assert refused.status_code == 409
    assert "is pinned since" in refused.text
    assert browser.send(f"{own}/unpin", token).status_code == 303
    assert browser.send(f"{own}/delete", token).headers["location"] == "/kernels"
    assert browser.open(own).status_code == 404
    entries = [stored.entry for stored in AuditLog(service.state.database).entries(limit=50)]
    done = {entry.object for entry in entries if entry.key_id == admin.id and entry.outcome < 400}
    assert done == {f"/v1{own}", f"/v1{own}/pin"}


def test_the_snippets_get_the_kernel_as_printed(service: Service, tmp_path: Path) -> None:
    service.state.public_key = SIGNER.public
    gemm = Gemm.parse("33x17x19:f32:nt")
    blob = certified(gemm, regime="sustained", role="tuned")
    kernel = searched_kernel(
        service.store, str(gemm), device=CPU, config=Config("sample", (("rows", 1),)), artifact=blob
    )
    texts = {each["name"]: each["text"] for each in document(service, f"/kernels/{kernel.id}")["snippets"]}
    assert set(texts) == {"Python", "Shell", "HTTP"}
    (tmp_path / "tirgemm").write_text(f'#!/bin/sh\nexec {sys.executable} -m tirgemm "$@"\n')
    (tmp_path / "tirgemm").chmod(0o755)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    check = f"\nassert kernel.artifact_sha256 == {kernel.artifact_sha256!r}\n"
    for name, command in (
        ("Python", [sys.executable, "-c", texts["Python"] + check]),
        ("Shell", ["sh", "-ec", texts["Shell"]]),
        ("HTTP", ["sh", "-ec", texts["HTTP"]]),
    ):
        folder = tmp_path / name
        folder.mkdir()
        own = {f"XDG_{kind}_HOME": str(folder) for kind in ("CONFIG", "DATA", "STATE", "CACHE")}
        done = subprocess.run(
            command, cwd=folder, env=environment | own, capture_output=True, text=True, check=False, timeout=PATIENCE_S
        )
        assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
        if name != "Python":
            assert (folder / "kernel.tirgemm").read_bytes() == blob


def test_lines_of_code_are_those_of_the_source_where_the_machine_code_is_the_same(service: Service) -> None:
    signer = Signer.generate()
    service.state.public_key = signer.public
    kernel = compiled_kernel(service.store, signer)
    texts = {text["kind"]: text for text in document(service, f"/kernels/{kernel.id}/code")["texts"]}
    assert list(texts) == ["script", "cuda", "ptx", "sass"]
    source = {line["source"]: line["text"] for line in texts["cuda"]["lines"]}
    for kind, opcode, word in (
        ("ptx", "fma.rn", " * "),
        ("ptx", "bar.sync", "__syncthreads"),
        ("sass", "BAR.SYNC", "__sync"),
    ):
        lines = [line for line in texts[kind]["lines"] if opcode in line["text"]]
        assert lines, opcode
        assert all(word in source[line["source"]] for line in lines), opcode
        assert all(line["colour"] is not None for line in lines)
    assert texts["script"]["unlinked"]
    html = page(service, f"/kernels/{kernel.id}/code")
    assert 'id="sass-' in html
    assert len(html) < 1_000_000
    whole = service.http.get(f"/kernels/{kernel.id}/code/cuda")
    assert whole.headers["content-type"] == "text/plain; charset=utf-8"
    assert whole.text.splitlines() == [line["text"] for line in texts["cuda"]["lines"]]
    lacking = service.http.get(f"/kernels/{kernel.id}/code/asm")
    assert (lacking.status_code, "has no text 'asm' (machine code of the CPU)" in lacking.text) == (404, True)


def test_code_of_another_compiler_is_not_linked(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    signer = Signer.generate()
    service.state.public_key = signer.public
    kernel = compiled_kernel(service.store, signer)
    monkeypatch.setattr(one_kernel_page, "linked_text", other_code)
    sass = document(service, f"/kernels/{kernel.id}/code")["texts"][3]
    assert "makes other machine code" in sass["unlinked"]
    assert {line["source"] for line in sass["lines"]} == {None}


def test_a_compiler_that_crashes_costs_one_text_and_what_was_made_is_kept(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    signer = Signer.generate()
    service.state.public_key = signer.public
    kernel = compiled_kernel(service.store, signer)
    monkeypatch.setattr(one_kernel_page, "linked_text", crash)
    texts = [document(service, f"/kernels/{kernel.id}/code")["texts"] for _ in range(2)]
    pids = [[line["text"] for text in each for line in text["lines"]] for each in texts]
    assert pids[0] == pids[1], "made once"
    assert len(pids[0]) == 3
    assert str(os.getpid()) not in pids[0], "in another process"
    assert "SIGSEGV" in texts[0][2]["missing"]
    assert f"reading ptx of kernel {kernel.id} ended its process" in texts[0][2]["missing"]


def test_a_text_that_could_not_be_made_is_tried_again(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    signer = Signer.generate()
    service.state.public_key = signer.public
    kernel = compiled_kernel(service.store, signer)
    monkeypatch.setattr(one_kernel_page, "linked_text", refused)
    refusals = [text["missing"] for _ in range(2) for text in document(service, f"/kernels/{kernel.id}/code")["texts"]]
    assert refusals == [f"refusal {number}" for number in range(1, len(refusals) + 1)]


def test_the_code_of_a_damaged_artifact_is_refused_in_words(service: Service) -> None:
    kernel = searched_kernel(service.store)
    answer = service.http.get(f"/kernels/{kernel.id}/code")
    assert answer.status_code == 422
    assert "damaged or not a .tirgemm artifact" in answer.text
