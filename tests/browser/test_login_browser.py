"""Signing in and out, and what a browser is shown of a problem."""

from __future__ import annotations

from tests.browser.visits import Visits
from tests.service.support import Service
from tirgemm.tuning_db.access.api_keys import KeyTable


def test_signing_in_and_out(service: Service, visits: Visits) -> None:
    _, secret = KeyTable(service.state.database).create("a reader", "read")
    service.state.access.read()
    tab = visits.open("/login?next=/login")
    visits.check("login")
    tab.get_by_label("API key").fill("tg_wrong")
    tab.get_by_role("button", name="Sign in").click()
    assert "is not known here" in tab.get_by_role("alert").inner_text()
    assert "401" in visits.complaints.pop()

    tab.get_by_label("API key").fill(secret)
    tab.get_by_role("button", name="Sign in").click()
    tab.wait_for_url("**/login")
    assert "tirgemm_key" in {cookie["name"] for cookie in visits.context.cookies()}
    assert tab.evaluate("document.cookie") == ""

    tab.goto("/no-such-page")
    assert "404" in visits.complaints.pop()
    assert "nothing is at /no-such-page" in tab.get_by_role("main").inner_text()
    visits.check("problem")
    tab.get_by_role("button", name="Sign out").click()
    tab.wait_for_url("**/login")
    assert "tirgemm_key" not in {cookie["name"] for cookie in visits.context.cookies()}
