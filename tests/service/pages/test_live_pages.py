"""Pages of jobs, models, the fleet and the front page: what they show of what is stored, and what their forms do."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.service.pages.browser import Browser
from tests.service.pages.search_events import DEFAULT_US, FAMILIES, digest, race, search_events
from tests.service.support import CPU, Service, kernel_record, queueing
from tests.waiting import PATIENCE_S
from tirgemm.config import Config
from tirgemm.events import CandidateRecorded
from tirgemm.gemm import Gemm
from tirgemm.status import Status
from tirgemm.timings import BaselineTime, Timing
from tirgemm.tuning.records import Candidate
from tirgemm.tuning_db import Job, JobRequest
from tirgemm.tuning_db.access.api_keys import KeyTable

GEMM = Gemm.parse("1023x1021x1027:f16:nt")
WORKER = "elsewhere:1:0"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with queueing(tmp_path) as actual:
        yield actual


def queued(service: Service, gemm: Gemm = GEMM, **request: Any) -> Job:
    return service.queue.submit(JobRequest(gemm, CPU, **request))[0]


def running(service: Service, count: int = 24) -> Job:
    """A job that a worker holds, and that has told of ``count`` candidates."""
    job = queued(service, trials=64)
    assert service.queue.claim(f"{WORKER}.0", [CPU.key], 60.0) is not None
    for event in search_events(count):
        service.queue.add_event(job.id, event)
    return job


def timing(us: float, default_us: float, baseline_us: float = 30.0) -> Timing:
    beside = {"default": default_us, "torch.matmul": baseline_us, "slow": 2 * baseline_us}
    return Timing(us, 50, {name: BaselineTime(theirs, theirs / us) for name, theirs in beside.items()})


def signed_in(service: Service, browser: Browser, scope: Any, name: str = "somebody") -> str:
    """Sign in with a new key of a scope; its id."""
    key, secret = KeyTable(service.state.database).create(name, scope)
    service.state.access.read()
    assert browser.sign_in(secret).status_code == 303
    return key.id


# -- a job -------------------------------------------------------------------------------------------


def test_a_job_shows_what_it_has_told(service: Service, browser: Browser) -> None:
    job = running(service)
    service.queue.add_event(job.id, race())
    pruned = Candidate(GEMM, CPU.key, "sustained", Config("simt", (("a", 1),)), Status.PRUNED, rule="registers")
    service.store.add_candidate(pruned.with_(message="312 registers a thread; 255 are there"))

    told = service.http.get(f"/jobs/{job.id}").json()["history"]
    page = browser.open(f"/jobs/{job.id}").text

    points = [dict(zip(told["columns"], row, strict=True)) for row in told["candidates"]]
    assert len(points) == 24
    statuses = [point["status"] for point in points]
    assert (statuses.count("build_failed"), statuses.count("wrong")) == (3, 2)
    first = points[0]
    assert (first["family"], first["digest"], first["clock_mhz"]) == ("simt", digest(0), 1755.0)
    assert told["builds"] == {"queued": 5, "building": 2, "built": 1}
    assert told["pruned"][0] == {"rule": "registers", "count": 412, "sentence": "312 registers a thread; 255 are there"}
    assert told["pruned"][1]["sentence"] == "block_m=16 is less than the 32 rows of a warp", "known while it searches"
    assert told["failed"][0]["message"] == "ptxas: too much shared memory"
    assert told["failed"][0]["digest"] == digest(6)
    best = told["standing"]["best_us"]
    assert told["fastest"][0]["us"] == best
    assert told["fastest"][0]["ratio"] == pytest.approx(DEFAULT_US / best)
    assert [entry["digest"] for entry in told["races"][0]["entries"]] == [digest(0), digest(5), digest(9)]
    assert "measuring: 24 of 64 candidates tried" in page
    assert "5 queued, 2 building, 1 built and waiting to be measured" in page
    for words in ("312 registers a thread", "ptxas: too much shared memory", "signal 11 (SIGSEGV)", *FAMILIES):
        assert words in page, words
    assert "The highest power: 546 W" in page
    for picture in ("19 measured candidates over time", "19 candidates, measured against predicted", "2 finalists"):
        assert f'aria-label="{picture}' in page, picture
    for number in (5, 6, 9):  # raced, failed, both
        assert f'<a href="/candidates/{digest(number)}?gemm=' in page, number


def test_every_candidate_is_in_the_pictures_once(service: Service, browser: Browser) -> None:
    page = browser.open(f"/jobs/{running(service, 30).id}").text
    timeline = page.partition('id="timeline"')[2].partition("</svg>")[0]
    scatter = page.partition("measured against predicted")[2].partition("</svg>")[0]
    statuses = ["failed" if number % 7 == 6 or number % 11 == 10 else "measured" for number in range(30)]
    for picture in (timeline, scatter):
        paths = re.findall(r'<path d="M([^"]*)" class="points" marker-start="url\(#mark\d\)"', picture)
        marks = sum(len(path.split("L")) for path in paths)
        assert marks == statuses.count("measured")
    failed = {}
    for path, status in re.findall(r'<path d="M([^"]*)" class="points" marker-start="url\(#failed-(\w+)\)"', timeline):
        failed[status] = len(path.split("L"))
        assert page.count(f'id="failed-{status}"') == 1
    assert failed == {"build_failed": 4, "wrong": 2}
    assert sum(failed.values()) == statuses.count("failed")
    legend = page.partition('class="legend"')[2].partition("</ul>")[0]
    assert re.findall(r"</svg> (build failed|wrong|crashed|timed out)", legend) == ["build failed", "wrong"]


def test_a_job_that_has_ended_shows_the_same_but_cannot_be_cancelled(service: Service, browser: Browser) -> None:
    job = running(service)
    before = service.http.get(f"/jobs/{job.id}").json()["history"]
    assert f'action="/jobs/{job.id}/cancel"' in browser.open(f"/jobs/{job.id}").text
    kernel = kernel_record(service.store, job.request)
    service.queue.finish(job.id, f"{WORKER}.0", "done", kernel_id=kernel.id)
    page = browser.open(f"/jobs/{job.id}").text
    assert service.http.get(f"/jobs/{job.id}").json()["history"] == before
    assert f'action="/jobs/{job.id}/cancel"' not in page
    assert f'href="/kernels/{kernel.id}"' in page
    assert "It is done: 24 candidates are recorded" in page


def test_a_job_without_events_has_a_page(service: Service, browser: Browser) -> None:
    page = browser.open(f"/jobs/{queued(service).id}").text
    assert "It waits for a worker." in page
    assert "No candidate is recorded yet." in page


def test_what_a_newer_worker_or_an_attacker_tells_is_text(service: Service, browser: Browser) -> None:
    job = running(service, 1)
    odd = next(event for event in search_events(1) if isinstance(event, CandidateRecorded))
    nasty = "<script>alert(1)</script>"
    service.queue.add_event(job.id, replace(odd, config=f"{nasty}(a=1)", status=Status.WRONG, us=None, message=nasty))
    page = browser.open(f"/jobs/{job.id}").text
    assert nasty not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_a_candidate_that_does_not_say_when_it_was_is_drawn_beside_the_last(service: Service) -> None:
    job = running(service, 2)
    odd = next(event for event in search_events(1) if event.kind == "candidate")
    for at in ("", "2026-11-23T10:00:00"):
        service.queue.add_event(job.id, replace(odd, at=at))
    read = service.http.get(f"/jobs/{job.id}").json()["history"]["candidates"]
    assert [row[0] for row in read[2:]] == [read[1][0]] * 2


def test_a_page_does_not_wait_for_the_events_of_another_job(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, other = queued(service), queued(service, replace(GEMM, m=5))
    real, begun, go = service.queue.events, threading.Event(), threading.Event()

    def events(job_id: str, *arguments: Any, **more: Any) -> Any:
        if job_id == slow.id:
            begun.set()
            assert go.wait(PATIENCE_S)
        return real(job_id, *arguments, **more)

    monkeypatch.setattr(service.queue, "events", events)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(service.http.get, f"/jobs/{slow.id}")
        try:
            assert begun.wait(PATIENCE_S)
            assert service.http.get(f"/jobs/{other.id}").status_code == 200
            assert not first.done()
        finally:
            go.set()
        assert first.result().status_code == 200


# -- the list of jobs --------------------------------------------------------------------------------


def listed(service: Service, **filters: str) -> list[str]:
    return [job["gemm"] for job in service.http.get("/jobs", params=filters).json()["jobs"]]


def test_jobs_are_filtered_by_status_device_and_shape(service: Service, browser: Browser) -> None:
    for text in ("129x67x31:f16:nt", "129x67x31:bf16:nn", "129x67x311:f16:nt", "1..129x67x31:f16:nt"):
        queued(service, Gemm.parse(text))
    service.queue.cancel(queued(service, Gemm.parse("65x67x31:f16:nt")).id)

    assert len(listed(service)) == 5
    assert listed(service, status="cancelled") == ["65x67x31:f16:nt"]
    assert listed(service, status="", shape="", device="") == listed(service)
    assert listed(service, shape="129x67x31") == ["129x67x31:bf16:nn", "129x67x31:f16:nt"]
    assert listed(service, shape="1..129x67x31") == ["1..129x67x31:f16:nt"]
    assert listed(service, shape="129x67x31:f16:nt") == ["129x67x31:f16:nt"]
    assert (len(listed(service, device="cpu")), listed(service, device="sm_90a")) == (5, [])
    refused = service.http.get("/jobs?shape=\u0661x67x31", headers={"Accept": "application/json"})
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_gemm")
    page = browser.open("/jobs?shape=129x67x31&status=queued").text
    assert page.count('href="/jobs/') == 2
    assert "<option selected>queued</option>" in page


def test_jobs_come_in_pages_of_fifty(service: Service, browser: Browser) -> None:
    for m in range(1, 53):
        queued(service, Gemm.parse(f"{m}x67x31:f16:nt"))
    first = browser.open("/jobs").text
    assert first.count('id="job-') == 50
    older = re.findall(r'href="(/jobs\?[^"]*after=[^"]*)"', first)
    assert len(older) == 1
    second = browser.open(older[0].replace("&amp;", "&")).text
    assert second.count('id="job-') == 2
    assert "older" not in second.partition("Pages of jobs")[2]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("shape=0x67x31:f16:nt", "m is 0"),
        ("shape=" + "9" * 600, "512"),
        ("status=asleep", "status"),
        ("state=queued", "state"),
        ("after=0123", "after is"),
    ],
)
def test_a_filter_that_cannot_be_is_refused_with_its_name(
    service: Service, browser: Browser, query: str, words: str
) -> None:
    queued(service)
    answer = browser.open(f"/jobs?{query}")
    assert 400 <= answer.status_code < 500
    assert words in answer.text


def test_an_unknown_job_and_model_are_not_found(browser: Browser) -> None:
    assert browser.open("/jobs/0123456789abcdef").status_code == 404
    assert browser.open("/models/0123456789abcdef").status_code == 404


# -- cancelling, and asking for more -----------------------------------------------------------------


def test_the_cancel_button_cancels_and_leads_back(service: Service, browser: Browser) -> None:
    job = running(service)
    path = f"/jobs/{job.id}"
    token = browser.token(browser.open(path).text)
    assert browser.send(f"{path}/cancel", "0" * 64).status_code == 403
    assert browser.send(f"{path}/cancel", token, more="x").status_code == 422
    answer = browser.send(f"{path}/cancel", token)
    assert (answer.status_code, answer.headers["location"]) == (303, path)
    assert "It was cancelled." in browser.open(path).text
    service.queue.finish(queued(service).id, "nobody", "done")
    finished = running(service)
    service.queue.finish(finished.id, f"{WORKER}.0", "failed", error="build_failed: no")
    refused = browser.send(f"/jobs/{finished.id}/cancel", token)
    assert refused.status_code == 409
    assert "only a queued or running job can be cancelled" in refused.text


def test_who_may_not_change_a_job_has_no_button_and_is_refused(service: Service, browser: Browser) -> None:
    job = running(service)
    signed_in(service, browser, "tune")
    page = browser.open(f"/jobs/{job.id}").text
    assert f'action="/jobs/{job.id}/cancel"' not in page
    assert f'action="/jobs/{job.id}/raise"' in page
    assert browser.send(f"/jobs/{job.id}/cancel", browser.token(page)).status_code == 403
    signed_in(service, browser, "read", "reader")
    page = browser.open(f"/jobs/{job.id}").text
    assert f'action="/jobs/{job.id}/raise"' not in page
    answer = browser.send(f"/jobs/{job.id}/raise", browser.token(page), trials="128", seconds="240")
    assert answer.status_code == 403
    assert "scope tune" in answer.text


def test_more_budget_is_another_job_of_the_same_request(service: Service, browser: Browser) -> None:
    job = running(service)
    token = browser.token(browser.open(f"/jobs/{job.id}").text)
    answer = browser.send(f"/jobs/{job.id}/raise", token, trials="128", seconds="240")
    assert answer.status_code == 303
    other = service.queue.job(answer.headers["location"].rpartition("/")[2])
    assert other is not None
    assert other.id != job.id
    assert (other.request.trials, other.request.seconds) == (128, 240.0)
    assert replace(other.request, trials=64, seconds=120.0) == job.request
    still = service.queue.job(job.id)
    assert still is not None
    assert (still.status, still.request.trials) == ("running", 64)
    again = browser.send(f"/jobs/{job.id}/raise", token, trials="128", seconds="240")
    assert again.headers["location"] == answer.headers["location"]


def test_more_budget_still_asks_for_records_of_other_devices(service: Service, browser: Browser) -> None:
    job = queued(service, trials=64, other_devices=True)
    token = browser.token(browser.open(f"/jobs/{job.id}").text)
    answer = browser.send(f"/jobs/{job.id}/raise", token, trials="128", seconds="4000")
    larger = service.queue.job(answer.headers["location"].rpartition("/")[2])
    assert larger is not None
    assert (larger.id != job.id, larger.request.other_devices) == (True, True)


def test_more_budget_than_was_needed_leads_to_the_kernel(service: Service, browser: Browser) -> None:
    job = running(service)
    search = {"trials": 24, "ended": "exhausted", "effort": "standard", "seconds": 120.0}
    kernel = kernel_record(service.store, job.request, search=search)
    token = browser.token(browser.open(f"/jobs/{job.id}").text)
    answer = browser.send(f"/jobs/{job.id}/raise", token, trials="128", seconds="240")
    assert (answer.status_code, answer.headers["location"]) == (303, f"/kernels/{kernel.id}")


@pytest.mark.parametrize(
    ("trials", "seconds", "words"),
    [
        ("64", "120", "it must be more than those"),
        ("32", "240", "it must be more than those"),
        ("many", "240", "trials is &#39;many&#39;; it must be a number"),
        ("128.5", "240", "budget.trials is 128.5"),
        ("nan", "240", "budget.trials is nan"),
        ("128", "inf", "budget.seconds is inf"),
        ("1000000", "240", "this service takes at most 4096"),
    ],
)
def test_a_budget_that_cannot_be_is_refused_with_its_value(
    service: Service, browser: Browser, trials: str, seconds: str, words: str
) -> None:
    job = queued(service, trials=64)
    token = browser.token(browser.open(f"/jobs/{job.id}").text)
    answer = browser.send(f"/jobs/{job.id}/raise", token, trials=trials, seconds=seconds)
    assert answer.status_code == 422
    assert words in answer.text
    assert len(service.queue.jobs()) == 1


def test_the_form_takes_the_budget_that_it_offers(service: Service, browser: Browser) -> None:
    job = queued(service, trials=64, seconds=1000.5544)
    page = browser.open(f"/jobs/{job.id}").text
    (least,) = re.findall(r'name="seconds"[^>]* min="([^"]+)"', page)
    answer = browser.send(f"/jobs/{job.id}/raise", browser.token(page), trials="65", seconds=least)
    assert answer.status_code == 303


def test_a_job_that_has_all_the_budget_there_is_offers_no_more(service: Service, browser: Browser) -> None:
    limits = service.state.settings
    job = queued(service, trials=limits.max_trials, seconds=limits.max_seconds)
    assert "/raise" not in browser.open(f"/jobs/{job.id}").text


# -- a model -----------------------------------------------------------------------------------------


def test_a_model_shows_each_layer_and_the_gain_weighted_by_time(service: Service, browser: Browser) -> None:
    texts = ("129x67x31:f16:nt", "130x67x31:f16:nt", "131x67x31:f16:nt")
    tuned, default, nothing = map(Gemm.parse, texts)
    batch = service.http.post("/v1/batches", json={"gemms": list(texts)}).json()
    jobs = {item["gemm"]: item["job"] for item in batch["items"]}
    service.queue.claim(f"{WORKER}.0", [CPU.key], 60.0)
    kernel_record(service.store, JobRequest(tuned, CPU), "fallback", timing=Timing(50.0))
    best = kernel_record(service.store, JobRequest(tuned, CPU), timing=timing(10.0, 50.0))
    kernel_record(service.store, JobRequest(default, CPU), "fallback", timing=Timing(30.0))

    model = service.http.get(f"/models/{batch['id']}").json()["model"]
    layers = {layer["gemm"]: layer for layer in model["layers"]}

    assert model["served"] == {"tuned": 1, "default": 1, "nothing": 1}
    assert (model["timed"], model["total_us"], model["default_us"], model["gain"]) == (2, 40.0, 80.0, 2.0)
    one = layers[str(tuned)]
    assert (one["served"], one["kernel"], one["gain"], one["job"]) == ("tuned", best.id, 5.0, jobs[str(tuned)])
    assert (layers[str(default)]["served"], layers[str(default)]["gain"]) == ("default", 1.0)
    assert (layers[str(nothing)]["served"], layers[str(nothing)]["kernel"]) == ("nothing", None)
    assert [layer["gemm"] for layer in model["layers"]][:2] == [str(default), str(tuned)]
    assert sum(layer["share"] or 0 for layer in model["layers"]) == pytest.approx(1.0)
    page = browser.open(f"/models/{batch['id']}").text
    assert "2.000 ×" in page
    assert "takes 40.00 µs now, with the defaults 80.00 µs" in page
    assert f'href="/models/{batch["id"]}"' in browser.open("/models").text


def test_a_layer_counts_as_often_as_the_batch_asked_for_it(service: Service, browser: Browser) -> None:
    tuned, default = (Gemm.parse(text) for text in ("129x67x31:f16:nt", "130x67x31:f16:nt"))
    batch = service.http.post("/v1/batches", json={"gemms": [*[str(tuned)] * 3, str(default)]}).json()
    assert {item["gemm"]: item["times"] for item in batch["items"]} == {str(tuned): 3, str(default): 1}
    kernel_record(service.store, JobRequest(tuned, CPU), timing=timing(10.0, 50.0))
    kernel_record(service.store, JobRequest(default, CPU), "fallback", timing=Timing(30.0))
    model = service.http.get(f"/models/{batch['id']}").json()["model"]
    assert (model["calls"], model["total_us"], model["default_us"], model["gain"]) == (4, 60.0, 180.0, 3.0)
    assert [layer["share"] for layer in model["layers"]] == [0.5, 0.5]
    page = browser.open(f"/models/{batch['id']}").text
    assert "Once through the 4 layers whose shapes were timed takes 60.00 µs now" in page
    assert "Each shape counts as often as the batch asked for it." in page
    with service.state.database.write() as connection:
        connection.exec_driver_sql("UPDATE batch_items SET times = 1")  # as of a batch of before the column
    assert "how often this batch asked for each was not kept" in browser.open(f"/models/{batch['id']}").text


def test_a_pinned_kernel_is_what_a_layer_is_served_with(service: Service) -> None:
    batch = service.http.post("/v1/batches", json={"gemms": [str(GEMM)]}).json()
    older = kernel_record(service.store, JobRequest(GEMM, CPU), salt="1", timing=timing(10.0, 40.0))
    newer = kernel_record(service.store, JobRequest(GEMM, CPU), salt="2", timing=timing(9.0, 40.0))

    def served() -> str:
        layer: dict[str, str] = service.http.get(f"/models/{batch['id']}").json()["model"]["layers"][0]
        return layer["kernel"]

    assert served() == newer.id
    assert service.http.put(f"/v1/kernels/{older.id}/pin").status_code == 200
    assert served() == older.id == service.post(str(GEMM)).json()["id"]


def test_a_layer_is_not_served_with_a_kernel_of_another_device_s_configs(service: Service) -> None:
    batch = service.http.post("/v1/batches", json={"gemms": [str(GEMM)]}).json()
    own = kernel_record(service.store, JobRequest(GEMM, CPU), "fallback", timing=Timing(9.0))
    origin = {"device": "cpu:x86-64-v4:another-cpu:8", "environment": {}, "same": False, "other_device": True}
    kernel_record(service.store, JobRequest(GEMM, CPU), search={"ended": "shipped", "shipped": origin})
    (layer,) = service.http.get(f"/models/{batch['id']}").json()["model"]["layers"]
    assert (layer["served"], layer["kernel"]) == ("default", own.id)


def test_a_model_is_cancelled_by_its_form(service: Service, browser: Browser) -> None:
    batch = service.http.post("/v1/batches", json={"gemms": [str(GEMM)]}).json()
    path = f"/models/{batch['id']}"
    token = browser.token(browser.open(path).text)
    assert browser.send(f"{path}/cancel", token).headers["location"] == path
    assert service.http.get(f"/v1/batches/{batch['id']}").json()["status"] == "cancelled"
    assert f'action="{path}/cancel"' not in browser.open(path).text
    signed_in(service, browser, "tune")
    assert browser.send(f"{path}/cancel", browser.token(browser.open("/no").text)).status_code == 403


# -- the fleet, and the front page -------------------------------------------------------------------


def test_the_fleet_says_what_each_device_does_and_what_waits(service: Service, browser: Browser) -> None:
    job = running(service)
    waits = queued(service, Gemm.parse("129x67x31:f16:nt"), priority=3)
    for number, status in enumerate((Status.MEASURED, Status.MEASURED, Status.BUILD_FAILED, Status.PRUNED)):
        key = Config("x86", (("a", number),))
        service.store.add_candidate(Candidate(GEMM, CPU.key, "sustained", key, status))
    fleet = service.http.get("/fleet").json()["fleet"]
    (worker,) = fleet["workers"]
    now = worker["devices"][0]["job"]
    assert (worker["name"], now["id"], now["phase"], now["tried"], now["of"]) == (WORKER, job.id, "measuring", 24, 64)
    assert now["default_us"] == DEFAULT_US
    assert (fleet["jobs"], [one["id"] for one in fleet["waiting"]]) == ({"queued": 1, "running": 1}, [waits.id])
    assert (fleet["rates"]["trials"], fleet["rates"]["builds"]) == (0.3, 0.2)
    page = browser.open("/fleet").text
    assert "24 of 64" in page
    assert waits.id in page


def test_hits_are_counted(service: Service) -> None:
    kernel_record(service.store, JobRequest(GEMM, CPU), search={"trials": 64, "ended": "trials", "effort": "standard"})
    for _ in range(3):
        assert service.post(str(GEMM)).status_code == 200
    answers = service.http.get("/fleet").json()["answers"]
    assert answers["memory"] + answers["database"] == 3
    assert answers["job"] == 0


def test_the_front_page_says_what_there_is(service: Service, browser: Browser) -> None:
    for number, us in enumerate((10.0, 20.0, 16.0)):
        gemm = Gemm.parse(f"{129 + number}x67x31:f16:nt")
        kernel_record(service.store, JobRequest(gemm, CPU), timing=timing(us, 40.0, 24.0))
    overview = service.http.get("/").json()["overview"]
    assert (overview["kernels"]["tuned"], overview["problems"], overview["devices"]) == (3, 3, 1)
    assert overview["over_default"] == {"ratio": 2.5, "kernels": 3}
    assert overview["over_baseline"] == {"ratio": 1.5, "kernels": 3}
    assert overview["baselines"] == ["torch.matmul"]
    newest = overview["newest"][0]
    assert (newest["gemm"], newest["us"], newest["baseline"]) == ("131x67x31:f16:nt", 16.0, "torch.matmul")
    page = browser.open("/").text
    own = f"tirgemm get 4096x4096x4096:f16:nt --url {service.url}<"
    for words in (
        "2.50 ×",
        "1.50 ×",
        "the fastest baseline (torch.matmul): the median of 3",
        "131x67x31:f16:nt",
        f'href="/kernels/{newest["id"]}"',
        own,
    ):
        assert words in page, words
    service.http.delete(f"/v1/kernels/{newest['id']}")
    assert service.http.get("/").json()["overview"]["problems"] == 2


def test_the_front_page_tells_a_reader_nothing_that_takes_more(service: Service, browser: Browser) -> None:
    assert "Ask for a kernel" in browser.open("/").text
    signed_in(service, browser, "read")
    page = browser.open("/").text
    assert "Newest kernels" in page
    assert "Ask for a kernel" not in page


def test_the_live_pages_keep_to_the_content_security_policy(service: Service, browser: Browser) -> None:
    job = running(service)
    service.queue.add_event(job.id, race())
    batch = service.http.post("/v1/batches", json={"gemms": [str(GEMM), "129x67x31"]}).json()["id"]
    for path in ("/", "/jobs", f"/jobs/{job.id}", "/models", f"/models/{batch}", "/fleet"):
        page = browser.open(path)
        assert page.status_code == 200, path
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", page.text), path
        assert page.headers["content-security-policy"]
        assert service.http.get(path).headers["content-type"] == "application/json", path


def test_a_stream_goes_on_behind_the_event_of_its_address(service: Service) -> None:
    job = running(service, 3)
    newest = service.queue.add_event(job.id, race())
    service.queue.cancel(job.id)
    path = f"/v1/jobs/{job.id}/events"
    assert service.http.get(f"{path}?after={newest - 1}").text.count("event: race") == 1
    assert "event: candidate" not in service.http.get(f"{path}?after={newest - 1}").text
    header = {"Last-Event-ID": str(newest)}
    assert "event: race" not in service.http.get(f"{path}?after=0", headers=header).text
    refused = service.http.get(f"{path}?after=soon")
    assert (refused.status_code, refused.json()["detail"][:15]) == (422, "after is 'soon'")
