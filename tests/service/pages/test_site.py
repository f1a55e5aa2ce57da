"""What all pages have in common: signing in, form tokens, security headers, problems as pages, assets."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re

import httpx
import pytest
from fastapi.routing import APIRoute
from starlette.routing import Route

from tests.helpers import recorded_space
from tests.service.pages.browser import Browser
from tests.service.pages.page_records import searched_kernel
from tests.service.support import AUTHORITIES, Service
from tirgemm.service.access.scopes import is_page, required_scope
from tirgemm.service.http.pages import site
from tirgemm.service.http.pages.forms import _fields
from tirgemm.service.pages import render
from tirgemm.service.pages.assets import ASSETS, asset_address, assets
from tirgemm.service.server.app import create_app
from tirgemm.tuning_db.access.api_keys import KeyTable


def _secret(service: Service) -> str:
    _, secret = KeyTable(service.state.database).create("reader", "read")
    service.state.access.read()
    return secret


def test_who_is_not_signed_in_is_asked_to_and_led_back(service: Service, browser: Browser) -> None:
    secret = _secret(service)
    asked = browser.http.get("/kernels?gemm=64x64x64:f16:nn")
    assert asked.status_code == 303
    assert asked.headers["location"] == "/login?next=%2Fkernels%3Fgemm%3D64x64x64%3Af16%3Ann"
    far = browser.http.get(f"/jobs?after={2000 * 'a'}").headers["location"]
    assert browser.http.get(far).status_code == 200

    answer = browser.sign_in(secret, "/kernels?gemm=64x64x64:f16:nn")

    assert (answer.status_code, answer.headers["location"]) == (303, "/kernels?gemm=64x64x64:f16:nn")
    kept = answer.headers["set-cookie"]
    assert "HttpOnly" in kept
    assert "SameSite=lax" in kept
    assert browser.http.get("/v1/kernels").status_code == 200


@pytest.mark.parametrize("told", ["Origin", "X-Forwarded-Proto"])
def test_behind_a_proxy_that_speaks_https_the_key_is_sent_over_it_alone(
    service: Service, browser: Browser, told: str
) -> None:
    secret = _secret(service)
    token = browser.token(browser.open("/login").text)
    browser.http.headers[told] = service.url.replace("http:", "https:") if told == "Origin" else "https, http"
    assert "; secure" in browser.send("/login", token, key=secret).headers["set-cookie"].lower()


def test_a_wrong_key_is_told_and_not_kept(service: Service, browser: Browser) -> None:
    _secret(service)
    answer = browser.sign_in("tg_no_such_key")
    assert answer.status_code == 401
    assert "is not known here" in answer.text
    assert "tirgemm_key" not in browser.http.cookies


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_key_in_the_address_of_the_form_is_refused_and_not_repeated(
    service: Service, browser: Browser, method: str
) -> None:
    secret = _secret(service)
    token = browser.token(browser.open("/login").text)
    fields = {"form_token": token, "key": secret} if method == "POST" else None
    for query in ({"key": secret}, {"next": "/", "key": "mistyped-key"}, {"next": secret}):
        answer = browser.http.request(method, "/login", params=query, data=fields)
        assert answer.status_code == 400
        assert "an address is kept by logs" in answer.text
        assert secret not in answer.text
        assert "mistyped-key" not in answer.text
        assert "tirgemm_key" not in browser.http.cookies


@pytest.mark.parametrize("target", ["https://elsewhere.example/", "//elsewhere.example", "/\\elsewhere.example", "no"])
def test_signing_in_leads_to_no_other_site(service: Service, browser: Browser, target: str) -> None:
    assert browser.sign_in(_secret(service), target).headers["location"] == "/"


def test_a_form_without_its_token_changes_nothing(service: Service, browser: Browser) -> None:
    secret = _secret(service)
    with Browser(service.url) as other:
        foreign = other.token(other.open("/login").text)
    browser.open("/login")
    for token in ("", "0" * 64, foreign):
        answer = browser.send("/login", token, key=secret)
        assert answer.status_code == 403
        assert "not one of this browser" in answer.text
    assert "tirgemm_key" not in browser.http.cookies


def test_a_page_of_another_site_sends_no_form_even_with_the_cookies_and_the_token(
    service: Service, browser: Browser
) -> None:
    kernel = searched_kernel(service.store)
    _, secret = KeyTable(service.state.database).create("an admin", "admin")
    service.state.access.read()
    own = f"/kernels/{kernel.id}"
    browser.sign_in(secret, own)
    token = browser.token(browser.open(own).text)
    fields = {"form_token": token}
    for target in (f"{own}/delete", f"{own}/pin", "/logout"):
        for origin in ("https://elsewhere.example", "null"):
            answer = browser.http.post(target, data=fields, headers={"Origin": origin})
            assert answer.status_code == 403, target
            assert "cross_origin" in answer.text
    assert service.store.kernel_by_id(kernel.id) == kernel
    assert browser.http.post(f"{own}/pin", data=fields, headers={"Origin": service.url}).status_code == 303


def test_the_cookie_counts_for_looking_alone(service: Service, browser: Browser) -> None:
    browser.sign_in(_secret(service))
    answer = browser.http.post("/v1/kernels", json={"gemm": "64x64x64:f16:nn"}, headers={"Accept": "*/*"})
    assert answer.status_code == 401


def test_cookies_of_other_programs_on_the_host_do_not_sign_out(service: Service, browser: Browser) -> None:
    browser.sign_in(_secret(service))
    own = "; ".join(f"{name}={value}" for name, value in browser.http.cookies.items())
    prefs = 'prefs={"b": "c d"}'
    sent = (f"{prefs}; {own}", f"{own}; {prefs}", f"{own}; tirgemm_key=of-another")
    answers = [httpx.get(f"{service.url}/kernels", headers={"Cookie": text}, verify=AUTHORITIES) for text in sent]
    assert [answer.status_code for answer in answers] == [200, 200, 401]


def test_signing_out_forgets_the_key(service: Service, browser: Browser) -> None:
    browser.sign_in(_secret(service))
    token = browser.token(browser.open("/no-such-page").text)
    assert browser.send("/logout", token).status_code == 303
    assert browser.http.get("/v1/kernels", headers={"Accept": "*/*"}).status_code == 401


def test_every_form_is_sent_to_a_route_that_reads_its_token(service: Service) -> None:
    app = create_app(service.state)
    routes = [route for route in app.state.routes if isinstance(route, APIRoute) and is_page(route.path)]
    sent_to = [route for route in routes if (route.methods or set()) & {"POST", "PUT", "PATCH", "DELETE"}]
    assert sent_to
    for route in sent_to:
        assert _fields in [part.call for part in route.dependant.dependencies], route.path


def test_pages_have_the_policy_and_no_script_of_their_own(browser: Browser) -> None:
    answer = browser.open("/login")
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", answer.text)


def test_a_problem_is_a_page_for_a_browser_and_a_document_for_others(service: Service, browser: Browser) -> None:
    page = browser.open("/no-such-page")
    assert page.status_code == 404
    assert page.headers["content-type"].startswith("text/html")
    assert "nothing is at /no-such-page" in page.text
    assert '<a href="/">To the front page</a>' in page.text
    assert '<a href="/jobs">To the jobs</a>' in browser.open("/jobs/abc").text
    document = service.http.get("/no-such-page")
    assert document.headers["content-type"] == "application/problem+json"
    api = browser.http.get("/v1/kernels/abc")
    assert api.headers["content-type"] == "application/problem+json"


def test_a_problem_is_told_to_head_without_a_body(browser: Browser) -> None:
    answer = browser.http.head("/no-such-page")
    assert (answer.status_code, answer.content) == (404, b"")
    assert answer.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize("host", ["[", "[1:2", "elsewhere.example"])
def test_a_host_that_is_not_ours_is_refused_on_a_page(browser: Browser, host: str) -> None:
    answer = browser.http.get("/", headers={"Host": host})
    assert (answer.status_code, answer.headers["connection"]) == (421, "close")
    assert "this service answers to" in answer.text


def test_a_part_of_a_page_that_asks_for_a_key_has_the_whole_page_asked_for_again(
    service: Service, browser: Browser
) -> None:
    _secret(service)
    answer = browser.http.get("/fleet", headers={"HX-Request": "true"})
    assert (answer.status_code, answer.headers["hx-refresh"], answer.text) == (401, "true", "")


def test_pages_are_made_beside_the_event_loop(
    service: Service, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded_space.record(service.state.database, recorded_space.every())
    kernel, other = (searched_kernel(service.store, us=us) for us in (10.0, 11.0))
    made: dict[str, bool] = {}

    def watched(template: str, **values: object) -> str:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            made[template] = True
        else:
            made[template] = False
        return render(template, **values)

    monkeypatch.setattr(site, "render", watched)
    own, space = f"/kernels/{kernel.id}", f"/spaces/{recorded_space.GEMM}"
    candidate = service.http.get(space).json()["candidates"][0]["url"]
    for address in (
        *("/", "/fleet", "/jobs", "/models", "/kernels", "/spaces", own, f"{own}/timeline", space, candidate),
        f"/compare?kernel={kernel.id}&kernel={other.id}",
        f"/compare/code?kernel={kernel.id}&kernel={other.id}",
    ):
        assert browser.open(address).status_code == 200, address
    assert len(made) == 12
    assert all(made.values()), made


def test_assets_are_kept_for_good_at_an_address_of_their_bytes(service: Service, browser: Browser) -> None:
    _secret(service)
    for address in re.findall(r'(?:href|src)="(/assets/[^"]+)"', browser.open("/login").text):
        answer = browser.http.get(address)
        assert answer.status_code == 200, address
        assert "immutable" in answer.headers["cache-control"]
    other = asset_address("style.css").replace(assets()["style.css"].digest, "0" * 16)
    assert browser.http.get(other, headers={"Accept": "*/*"}).status_code == 404


def test_what_is_vendored_is_what_its_package_has() -> None:
    folder = ASSETS / "vendor"
    named = json.loads((folder / "vendored.json").read_text())["files"]
    for entry in named:
        assert hashlib.sha256((folder / entry["file"]).read_bytes()).hexdigest() == entry["sha256"], entry["file"]
    assert {entry["file"] for entry in named} == {
        path.name for path in folder.iterdir() if path.suffix in (".js", ".css")
    }


def test_assets_and_signing_in_need_no_key() -> None:
    assert required_scope("GET", asset_address("style.css")) is None
    assert required_scope("POST", "/login") is None
    assert required_scope("GET", "/kernels") == "read"
    assert required_scope("POST", "/jobs/1/cancel") == "tune"
    assert required_scope("POST", "/kernels/1/pin") == "admin"


def test_every_page_has_a_route_in_the_list_of_metrics(service: Service) -> None:
    app = create_app(service.state)
    assert "/login" in {route.path for route in app.state.routes if isinstance(route, Route)}
