"""The page of a job: what it shows of what was told, and what its forms do."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from tests.service.pages.browser import Browser
from tests.service.pages.live.live_jobs import GEMM, WORKER, queued, running, signed_in
from tests.service.pages.search_events import DEFAULT_US, FAMILIES, digest, race, search_events
from tests.service.support import CPU, Service, kernel_record
from tests.waiting import PATIENCE_S
from tirgemm.config import Config
from tirgemm.events import CandidateRecorded, Phase, PhaseEntered
from tirgemm.gemm import Gemm
from tirgemm.status import Status
from tirgemm.tuning.records import Candidate
from tirgemm.tuning_db.job_values import Window

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


def test_what_a_job_waits_for_stands_in_brackets(service: Service, browser: Browser) -> None:
    job = running(service)
    service.queue.add_event(job.id, PhaseEntered(phase=Phase.WAITING, detail="another process measures on it, pid 7"))
    waiting = "waiting for the device (another process measures on it, pid 7)"
    assert f"{waiting}: 24 of 64 candidates tried" in browser.open(f"/jobs/{job.id}").text
    assert waiting in browser.open("/fleet").text


def test_a_job_without_events_has_a_page(service: Service, browser: Browser) -> None:
    page = browser.open(f"/jobs/{queued(service).id}").text
    assert "It waits for a worker." in page
    assert "No candidate is recorded yet." in page
    ended = queued(service, Gemm.parse("65x67x31:f16:nt")).id
    service.queue.cancel(ended)
    page = browser.open(f"/jobs/{ended}").text
    assert "No candidate is recorded." in page
    assert " yet" not in page.partition("<main")[2]


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


def test_more_budget_waits_as_the_first_job_did(service: Service, browser: Browser) -> None:
    window = Window.parse("03:00-04:00")
    highest = service.state.settings.key_priority
    for number, (scope, asked, given) in enumerate((("tune", -7, -7), ("tune", 90, highest), ("admin", 90, 90))):
        job = queued(service, replace(GEMM, n=101 + number), trials=64, priority=asked, window=window)
        signed_in(service, browser, scope, f"key{number}")
        token = browser.token(browser.open(f"/jobs/{job.id}").text)
        answer = browser.send(f"/jobs/{job.id}/raise", token, trials="128", seconds="4000")
        larger = service.queue.job(answer.headers["location"].rpartition("/")[2])
        assert larger is not None
        assert larger.id != job.id
        assert (larger.request.priority, larger.request.window) == (given, window), scope


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
