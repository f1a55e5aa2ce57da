"""``/compare`` with too few or too many kernels: the page to choose from, with the limit."""

from __future__ import annotations

import re
from html import unescape

import pytest

from tests.service.pages.browser import Browser
from tests.service.pages.page_records import A100, searched_kernel
from tests.service.support import Service


def offered(page: str) -> dict[str, bool]:
    """The kernels that a page offers, and whether each is ticked."""
    return {kernel: bool(checked) for kernel, checked in re.findall(r'value="([0-9a-f]+)"[^>]*?( checked)?>', page)}


def test_one_kernel_leads_to_those_of_its_problem_to_tick(service: Service, browser: Browser) -> None:
    kernel = searched_kernel(service.store)
    far = searched_kernel(service.store, device=A100)
    searched_kernel(service.store, "131x67x31:f16:nt")
    answer = browser.open(f"/compare?kernel={kernel.id}&kernel={kernel.id}&kernel=")
    assert answer.status_code == 422
    page = unescape(answer.text)
    assert "1 kernel is to be compared; it takes 2 to 6 different ones." in page
    assert offered(page) == {kernel.id: True, far.id: False}
    both = browser.open(f"/compare?kernel={kernel.id}&kernel={far.id}")
    assert both.status_code == 200
    assert "beside the default, after it was selected, 2026-11-23 10:00:00 UTC</td>" in both.text


def test_more_than_the_limit_are_ticked_to_leave_some_out(service: Service, browser: Browser) -> None:
    kernels = [searched_kernel(service.store, f"{m}x67x31:f16:nt") for m in range(1, 8)]
    address = "/compare?" + "&".join(f"kernel={kernel.id}" for kernel in kernels)
    answer = browser.open(address)
    assert answer.status_code == 422
    assert "7 kernels are to be compared; it takes 2 to 6 different ones." in answer.text
    assert offered(answer.text) == {kernel.id: True for kernel in kernels}
    document = service.http.get(address)
    assert (document.status_code, document.json()["code"]) == (422, "invalid_request")
    assert "2 to 6" in document.json()["detail"]


@pytest.mark.parametrize("query", ["", "?kernel="])
def test_no_kernel_leads_to_the_form_that_takes_ids(browser: Browser, query: str) -> None:
    answer = browser.open(f"/compare{query}")
    assert answer.status_code == (422 if query else 200)
    assert ("No kernel is to be compared; it takes 2 to 6" in answer.text) == bool(query)
    assert answer.text.count('name="kernel" required') == 2


def test_a_kernel_that_is_not_there_is_told_before_the_number(browser: Browser) -> None:
    assert browser.open("/compare?kernel=00ff").status_code == 404


def test_what_the_schema_says_of_the_ids_holds(service: Service) -> None:
    kernels = [searched_kernel(service.store, f"{m}x67x31:f16:nt").id for m in range(1, 8)]
    for path in ("/compare", "/compare/code"):
        parameters = service.http.get("/openapi.json").json()["paths"][path]["get"]["parameters"]
        schema = next(each["schema"] for each in parameters if each["name"] == "kernel")
        assert (schema["minItems"], schema["maxItems"], schema["uniqueItems"]) == (2, 6, True)
        assert re.fullmatch(schema["items"]["pattern"], kernels[0])
        assert not re.fullmatch(schema["items"]["pattern"], "")
        for ids in (["", ""], kernels[:1], ["", *kernels[:2]], [kernels[0], *kernels[:2]], kernels):
            assert service.http.get(path, params={"kernel": ids}).status_code == 422
    assert service.http.get("/compare", params={"kernel": kernels[:2]}).status_code == 200
    assert service.http.get("/compare").json()["kernels"] == []
