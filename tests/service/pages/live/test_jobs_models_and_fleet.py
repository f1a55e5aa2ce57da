"""Pages of jobs, models, the fleet and the front page: what they show of what is stored."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest

from tests.service.pages.browser import Browser
from tests.service.pages.live.live_jobs import GEMM, WORKER, queued, running, signed_in, timing
from tests.service.pages.search_events import DEFAULT_US, race
from tests.service.support import CPU, Service, kernel_record
from tirgemm.config import Config
from tirgemm.gemm import Gemm
from tirgemm.status import Status
from tirgemm.timings import Timing
from tirgemm.tuning.records import Candidate
from tirgemm.tuning_db import JobRequest
from tirgemm.tuning_db.job_values import Window

# -- the list of jobs --------------------------------------------------------------------------------


def listed(service: Service, **filters: str) -> list[str]:
    return [job["gemm"] for job in service.http.get("/jobs", params=filters).json()["jobs"]]


def test_an_empty_list_blames_filters_only_where_there_are_some(service: Service, browser: Browser) -> None:
    assert "There is none yet." in browser.open("/kernels").text
    assert "There is none yet." in browser.open("/jobs").text
    assert "No job matches." in browser.open("/jobs?status=failed").text
    kernel_record(service.store, JobRequest(GEMM, CPU))
    assert "No kernel passes these filters." in browser.open("/kernels?shape=131x").text


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


def test_a_budget_is_told_as_a_bound_and_rounded(service: Service, browser: Browser) -> None:
    job = queued(service, trials=2, seconds=3.26592)
    page = browser.open("/jobs").text
    assert ">trials at most</th>" in page
    assert ">3.27</td>" in page
    assert "<dd>2 trials, 3.27 s</dd>" in browser.open(f"/jobs/{job.id}").text
    batch = service.http.post("/v1/batches", json={"gemms": [str(GEMM)], "budget": {"trials": 64, "seconds": 1234.5}})
    page = browser.open(f"/models/{batch.json()['id']}").text
    assert "Spent: 0 trials and 0 s of 64 trials and 1234 s." in page
    bound = f"{1 + batch.json()['items'][0]['expected_gain']:.3f} ×"
    assert bound in page, "the unit of the gain beside it"


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
    kernel_record(service.store, JobRequest(GEMM, CPU), "fallback", timing=Timing(30.0))
    assert "default, meanwhile" in browser.open(path).text
    assert browser.send(f"{path}/cancel", token).headers["location"] == path
    assert "meanwhile" not in browser.open(path).text, "what is served now is what stays"
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


def test_a_job_whose_window_is_closed_waits_behind_those_that_may_start(service: Service, browser: Browser) -> None:
    hour = datetime.now(UTC).hour
    window = Window.parse(f"{(hour + 6) % 24:02}:00-{(hour + 12) % 24:02}:00")
    later, first = queued(service, priority=50, window=window), queued(service, Gemm.parse("129x67x31:f16:nt"))
    waiting = service.http.get("/fleet").json()["fleet"]["waiting"]
    assert [(one["id"], one["window"]) for one in waiting] == [(first.id, None), (later.id, str(window))]
    assert f"It waits for a worker, and for {window} UTC." in browser.open(f"/jobs/{later.id}").text
    assert str(window) in browser.open("/fleet").text


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
