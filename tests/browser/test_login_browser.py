"""Signing in and out, and what a browser is shown of a problem."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.visits import Visits
from tests.service.pages.page_records import searched_kernel
from tests.service.support import Service
from tirgemm.tuning_db.access.api_keys import KeyTable


def test_signing_in_and_out(service: Service, visits: Visits) -> None:
    _, secret = KeyTable(service.state.database).create("a reader", "read")
    service.state.access.read()
    tab = visits.open("/login?next=/login")
    visits.check("login")
    tab.get_by_label("API key").fill("tg_wrong")
    tab.get_by_role("button", name="Sign in").click()
    expect(tab.get_by_role("alert")).to_contain_text("is not known here")
    visits.expect_complaint("401")

    tab.get_by_label("API key").fill(secret)
    tab.get_by_role("button", name="Sign in").click()
    visits.until(lambda: "tirgemm_key" in {cookie["name"] for cookie in visits.context.cookies()})
    assert tab.evaluate("document.cookie") == ""

    tab.goto("/no-such-page")
    visits.expect_complaint("404")
    assert "nothing is at /no-such-page" in tab.get_by_role("main").inner_text()
    visits.check("problem")
    tab.get_by_role("button", name="Sign out").click()
    tab.wait_for_url("**/login")
    assert "tirgemm_key" not in {cookie["name"] for cookie in visits.context.cookies()}


def test_a_link_from_another_site_leads_to_the_page_and_a_form_from_there_changes_nothing(
    service: Service, visits: Visits
) -> None:
    visits.tolerated = ("http://chat.example/", "403")
    kernel = searched_kernel(service.store)
    _, secret = KeyTable(service.state.database).create("an admin", "admin")
    service.state.access.read()
    own = f"{service.url}/kernels/{kernel.id}"
    tab = visits.open("/login?next=/fleet")
    tab.get_by_label("API key").fill(secret)
    tab.get_by_role("button", name="Sign in").click()
    tab.wait_for_url("**/fleet")
    chat = f'<a href="{own}">look</a><form method="post" action="{own}/pin"><button>pin</button></form>'
    tab.route("http://chat.example/**", lambda route: route.fulfill(content_type="text/html", body=chat))
    tab.goto("http://chat.example/")
    tab.get_by_role("link", name="look").click()
    tab.get_by_role("heading", name="Kernel of").wait_for()
    assert tab.url == own

    tab.goto("http://chat.example/")
    tab.get_by_role("button", name="pin").click()
    tab.get_by_text("cross_origin").wait_for()
    kept = service.store.kernel_by_id(kernel.id)
    assert kept is not None
    assert not kept.pinned
