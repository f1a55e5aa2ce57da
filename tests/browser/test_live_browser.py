"""Pages that change while they are looked at: a job at ten events a second and over a restart, a model, the fleet."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Route, expect

from tests.browser.visits import PICTURES, Visits
from tests.service.pages.page_records import searched_kernel
from tests.service.pages.search_events import candidates, race, search_events
from tests.service.support import Service, serving
from tests.waiting import until
from tirgemm.errors import BuildFailed
from tirgemm.events import BuildsCounted, Event, Phase, PhaseEntered
from tirgemm.service.http import events
from tirgemm.tuning_db.access.api_keys import KeyTable

GEMMS = ["4096x4096x4096:f16:nt", "11008x4096x4096:f16:nt", "1023x4096x11008:bf16:nt"]


@pytest.fixture
def working(service: Service) -> Iterator[Service]:
    """The service with a worker whose searches tell what the test says."""
    service.engine.fallback_gate.set()
    with service.worker():
        yield service


def running(service: Service) -> str:
    """The id of a job that is searched for."""
    job: str = service.post(GEMMS[0]).json()["job"]["id"]
    service.wait_for(job, "running")
    return job


def tell(service: Service, *events: Event) -> None:
    for event in events:
        service.engine.events.put(event)


def recorded(service: Service, job: str) -> int:
    return len([event for event in service.queue.events(job, limit=10_000) if event.kind == "candidate"])


def test_a_job_is_followed_at_ten_events_a_second(working: Service, visits: Visits) -> None:
    job = running(working)
    tell(working, *search_events(20, trials=64))
    tab = visits.open(f"/jobs/{job}")
    tab.locator("#now", has_text="20 of 64 candidates tried").wait_for()
    tell(working, PhaseEntered(phase=Phase.WAITING, detail="another process measures on it, pid 7"))
    tab.locator("#now", has_text="waiting for the device (another process measures on it, pid 7): 20 of").wait_for()
    chart = tab.locator("#timeline [role=img]")
    expect(chart.locator("canvas")).to_have_count(1)
    # No reload from here on, or this is gone.
    tab.evaluate("window.keep = 1")

    def pour() -> None:
        for event in candidates(40, trials=64, first=20):
            tell(working, event)
            time.sleep(0.1)

    pouring = threading.Thread(target=pour, daemon=True)
    pouring.start()
    tab.locator("#now", has_text="60 of 64 candidates tried").wait_for()
    pouring.join()
    told = recorded(working, job)
    tab.locator(f'#timeline [aria-label="{told} candidates over time"]').wait_for()
    expect(chart).to_have_count(1)
    tell(working, race(), BuildsCounted())
    tab.get_by_text("0 queued, 0 building, 0 built").wait_for()
    tab.get_by_text("the measuring process died: signal 11").wait_for()
    tab.locator('[data-live="predictions"] svg').wait_for()
    chart.hover()
    expect(tab.locator("#pointed")).to_contain_text(re.compile("µs a call|failed"))
    visits.check("job")

    working.engine.gate.set()
    tab.locator("#now", has_text="It is done").wait_for()
    expect(tab.get_by_role("button", name="Cancel the job")).to_have_count(0)
    assert tab.evaluate("window.keep") == 1


@pytest.fixture
def port() -> Iterator[int]:
    """A port for one server after the other: it is bound beside them, so that nobody takes it between them."""
    with socket.socket() as place:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind(("127.0.0.1", 0))
        yield place.getsockname()[1]


def test_a_job_goes_on_after_the_server_was_restarted(tmp_path: Path, visits: Visits, port: int) -> None:
    # That the server was not there is all that the browser may complain of.
    visits.tolerated = ("net::ERR_",)
    data = tmp_path / "restarted"
    with ExitStack() as first:
        service = first.enter_context(serving(data, listen_at=port))
        service.engine.fallback_gate.set()
        worker = ExitStack()
        worker.enter_context(service.worker())
        job = running(service)
        tell(service, *search_events(5, trials=64))
        tab = visits.open(f"{service.url}/jobs/{job}")
        tab.locator("#now", has_text="5 of 64 candidates tried").wait_for()
        tab.evaluate("window.keep = 1")
        worker.close()
    tab.get_by_text("The service does not answer").wait_for()
    with serving(data, listen_at=port) as service:
        service.engine.fallback_gate.set()
        with service.worker():
            service.wait_for(job, "running")
            tell(service, *search_events(9, trials=64))
            tab.locator("#now", has_text="9 of 64 candidates tried").wait_for()
            # Told once each: those of before the restart, of both searches.
            tab.locator(f'#timeline [aria-label="{recorded(service, job)} candidates over time"]').wait_for()
            expect(tab.get_by_text("The service does not answer")).to_be_hidden()
            service.engine.gate.set()
            tab.locator("#now", has_text="It is done").wait_for()
    assert tab.evaluate("window.keep") == 1


def test_a_long_word_is_broken_where_a_job_says_why_it_failed(working: Service, visits: Visits) -> None:
    job = running(working)
    working.engine.fail_with = BuildFailed("no room for " + 300 * "f")
    working.engine.gate.set()
    tab = visits.open(f"/jobs/{job}")
    tab.locator("#now", has_text="It failed: no room for ffff").wait_for()
    visits.check("job-failed")


def test_the_buttons_of_a_job(working: Service, visits: Visits) -> None:
    job = running(working)
    tab = visits.open(f"/jobs/{job}")
    tab.get_by_role("button", name="Ask with this budget").click()
    tab.wait_for_url(lambda url: "/jobs/" in url and job not in url)
    tab.locator("#now", has_text="It waits for a worker.").wait_for()
    tab.get_by_role("button", name="Cancel the job").click()
    tab.locator("#now", has_text="It was cancelled.").wait_for()
    assert working.http.get(f"/v1/jobs/{job}").json()["status"] == "running"


def test_requests_without_an_answer_are_given_up(working: Service, visits: Visits) -> None:
    job = running(working)
    tab = visits.open(f"/jobs/{job}")
    tab.route("**/silent", lambda _: None)
    tab.evaluate("live.patience = 20; live.signedOut('/silent').then((out) => (window.signedOut = out))")
    tab.wait_for_function("window.signedOut === false")

    # The page itself is silent, then has no answer but 503, and is asked for a third time.
    visits.tolerated = ("503",)
    asked: list[str] = []

    def late(route: Route) -> None:
        asked.append(route.request.url)
        if len(asked) == 2:
            route.fulfill(status=503)
        elif len(asked) > 2:
            route.continue_()

    tab.route(f"**/jobs/{job}", late)
    # The others are given time, however busy the machine is.
    patience = "let tries = 0; Object.defineProperty(live, 'patience', { get: () => (++tries > 1 ? 60000 : 200) });"
    tab.evaluate(patience + "live.end(['now']).then(() => (window.ended = true))")
    tab.wait_for_function("window.ended")
    assert len(asked) >= 3


def test_a_job_over_a_range_of_m_is_followed(working: Service, visits: Visits) -> None:
    job: str = working.post("1..64x4096x4096:f16:nt").json()["job"]["id"]
    working.wait_for(job, "running")
    tell(working, *search_events(0))
    tab = visits.open(f"/jobs/{job}")
    for m in ("1..64", "1..8"):
        tell(working, *(replace(event, m=m) for event in candidates(12, trials=24)), replace(race(), m=m))
    expect(tab.get_by_role("region", name="The race at m = 1..8 as bars")).to_be_visible()
    tab.get_by_text("of each part of the range").wait_for()
    until(lambda: recorded(working, job) >= 24)
    tab.locator(f'#timeline [aria-label="{recorded(working, job)} candidates over time"]').wait_for()
    line = re.compile(rf"^measuring: {recorded(working, job)} candidates tried, at most \d+ s left\.$")
    expect(tab.locator("#now")).to_have_text(line)
    visits.check("job-range")
    working.engine.gate.set()
    tab.locator("#now", has_text=f"It is done: {recorded(working, job)} candidates are recorded.").wait_for()


def test_a_model_is_followed_to_its_end(working: Service, visits: Visits) -> None:
    batch = working.http.post("/v1/batches", json={"gemms": GEMMS}).json()["id"]
    tab = visits.open(f"/models/{batch}")
    tab.evaluate("window.keep = 1")
    tab.get_by_text("0 of 3 searches have ended").wait_for()
    visits.check("model")
    working.engine.gate.set()
    tab.get_by_text("3 of 3 searches have ended").wait_for()
    expect(tab.get_by_role("button", name="Cancel the batch")).to_have_count(0)
    assert tab.evaluate("window.keep") == 1
    visits.open("/models")
    visits.check("models")


def test_lists_and_the_fleet_are_fetched_anew(working: Service, visits: Visits) -> None:
    for m in (1023, 4096, 11008):
        searched_kernel(working.store, f"{m}x4096x4096:f16:nt")
    visits.open("/")
    visits.check("front")
    tab = visits.open("/fleet")
    tab.evaluate("window.keep = 1")
    tab.get_by_text("nothing: it waits for a job").wait_for()
    running(working)
    tell(working, *search_events(7, trials=64))
    tab.get_by_text("7 of 64").wait_for()
    visits.check("fleet")
    tab.goto("/jobs")
    tab.get_by_label("Status").select_option("failed")
    tab.get_by_role("button", name="Filter").click()
    tab.get_by_text("No job matches").wait_for()
    working.post("33x65x47:f16:tt:act=gelu_tanh:alpha:beta:bias")
    tab.goto("/jobs")
    tab.get_by_text("33x65x47").wait_for()
    visits.check("jobs-long")
    tab.goto("/jobs?status=running")
    tab.locator("td .state-running").wait_for()
    visits.check("jobs")


def test_a_job_without_scripts_is_shown_as_it_is(working: Service, visits: Visits) -> None:
    job = running(working)
    tell(working, *search_events(20, trials=64))
    until(lambda: recorded(working, job) >= 20)
    assert visits.context.browser is not None
    plain = visits.context.browser.new_context(java_script_enabled=False)
    page = plain.new_page()
    page.goto(f"{working.url}/jobs/{job}")
    assert page.locator("#now", has_text="20 of 64 candidates tried").is_visible()
    assert page.locator("#timeline svg path[marker-start='url(#mark0)']").count() == 1
    page.screenshot(path=PICTURES / "job-without-scripts.light.png", full_page=True)
    plain.close()


def test_a_reader_follows_a_job_by_the_cookie(working: Service, visits: Visits) -> None:
    job = running(working)
    _, secret = KeyTable(working.state.database).create("a reader", "read")
    working.state.access.read()
    tab = visits.open(f"/jobs/{job}")
    tab.get_by_label("API key").fill(secret)
    tab.get_by_role("button", name="Sign in").click()
    tab.wait_for_url(f"**/jobs/{job}")
    tell(working, *search_events(6, trials=64))
    tab.locator("#now", has_text="6 of 64 candidates tried").wait_for()
    expect(tab.get_by_role("button", name="Cancel the job")).to_have_count(0)


def test_a_refused_page_asks_ever_less_often_and_no_more_once_its_session_has_ended(
    working: Service, visits: Visits
) -> None:
    job = running(working)
    visits.tolerated = ("503", "401")
    statuses, asked = [503], []

    def refuse(route: Route) -> None:
        if route.request.resource_type == "eventsource":
            asked.append(route.request.url)
        route.fulfill(status=statuses[0])

    tab = visits.tab
    tab.clock.install(time=0)
    tab.clock.pause_at(1)
    tab.route("**/v1/jobs/*/events*", refuse)
    visits.open(f"/jobs/{job}")
    for times, seconds in enumerate((1, 2, 4, 8, 16, 32, 60), 1):
        tab.get_by_text(f"tries again in {seconds} s").wait_for()
        if seconds == 60:
            break
        tab.clock.run_for(1000 * seconds - 100)
        assert len(asked) == times, "it waits"
        tab.clock.run_for(100)
    statuses[0] = 401
    tab.clock.run_for(60_000)
    tab.get_by_text("Your session has ended").wait_for()
    before = len(asked)
    tab.clock.run_for(600_000)
    assert len(asked) == before
    assert tab.get_by_role("link", name="Sign in").get_attribute("href") == f"/login?next=%2Fjobs%2F{job}"


def test_a_stream_that_is_silent_is_given_up_and_asked_for_again(
    working: Service, visits: Visits, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = running(working)
    tab = visits.tab
    tab.clock.install(time=0)
    tab.clock.pause_at(1)
    # A proxy that takes the request and says nothing, then one that lets the first words through and no more.
    streams: list[Route] = []

    def hold(route: Route) -> None:
        streams.append(route)

    tab.route("**/v1/jobs/*/events*", hold, times=1)
    monkeypatch.setattr(events, "BEAT_SECONDS", 1e6)
    visits.open(f"/jobs/{job}")
    visits.until(lambda: bool(streams))
    tab.clock.run_for(9_900)
    expect(tab.locator("#link")).to_be_hidden()
    tab.clock.run_for(100)
    tab.get_by_text("The service does not answer; this page tries again in 1 s").wait_for()
    with tab.expect_request("**/v1/jobs/*/events*"):
        tab.clock.run_for(1_000)
    expect(tab.locator("#link")).to_be_hidden()

    tab.clock.run_for(10_000)
    tab.get_by_text("tries again in 1 s").wait_for()
    monkeypatch.setattr(events, "BEAT_SECONDS", 0.05)
    with tab.expect_request("**/v1/jobs/*/events*"):
        tab.clock.run_for(1_000)
    expect(tab.locator("#link")).to_be_hidden()
    for _ in range(8):
        tab.clock.run_for(5_000)
        tab.wait_for_timeout(300)
    expect(tab.locator("#link"), "it beats").to_be_hidden()


@pytest.mark.parametrize("page", ["/fleet", "/jobs"])
def test_a_table_that_is_fetched_anew_says_that_the_service_is_away(
    working: Service, visits: Visits, page: str
) -> None:
    visits.tolerated = ("503", "429", "net::ERR_FAILED", "htmx:timeout", "htmx:sendError", "htmx:afterRequest")
    job = running(working)
    # Its seconds between two requests pass as quickly as it takes them in.
    visits.tab.clock.install()
    tab = visits.open(page)
    away = tab.get_by_text("The service does not answer; this page goes on when it is back.")
    limited = tab.get_by_text("The service answers 429; this page asks again.")

    def comes(shown: bool) -> None:
        def passed() -> bool:
            tab.clock.run_for(500)
            return (limited if refused == "limit" else away).is_visible() is shown

        visits.until(passed)

    for refused in ("fulfill", "limit", "abort", "silent"):
        if refused == "silent":
            tab.evaluate("document.querySelector('[hx-get]').setAttribute('hx-request', '{\"timeout\": 100}')")
        ways = {
            "fulfill": lambda route: route.fulfill(status=503),
            "limit": lambda route: route.fulfill(status=429),
            "abort": lambda route: route.abort(),
            "silent": lambda _: None,
        }
        tab.route(f"**{page}*", ways[refused])
        comes(True)
        tab.unroute(f"**{page}*")
        comes(False)
    tab.get_by_role("link", name=re.compile(f"{job}|measuring|starting")).first.wait_for()


def test_a_page_is_refreshed_once_at_a_time_and_once_more_for_what_came_meanwhile(
    working: Service, visits: Visits
) -> None:
    job = running(working)
    tell(working, *search_events(2, trials=64))
    until(lambda: recorded(working, job) >= 2)
    held: list[Route] = []
    tab = visits.tab
    tab.clock.install(time=0)
    tab.clock.pause_at(1)
    visits.open(f"/jobs/{job}")
    tab.evaluate("live.patience = 1e8")
    # What the script asks for besides the events: the page's document, which has come, and the page anew.
    tab.locator("#timeline canvas").wait_for()

    def hold(route: Route) -> None:
        held.append(route)

    tab.route(f"**/jobs/{job}", hold)
    for number in range(2, 6):
        tell(working, *candidates(1, trials=64, first=number))
        tab.locator("#now", has_text=f"{number + 1} of 64 candidates tried").wait_for()
        tab.clock.run_for(30_000)
    visits.until(lambda: bool(held))
    assert len(held) == 1
    held[0].continue_()
    until(lambda: len(held) > 1, lambda: tab.clock.run_for(2_000_000))
    held[1].continue_()
    tab.clock.run_for(2_000_000)
    assert len(held) == 2, "nothing has come since"
