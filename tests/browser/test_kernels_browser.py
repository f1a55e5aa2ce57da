"""The table of kernels, a kernel, its code and comparisons in a real browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.visits import SCROLLED_TABLES, TELEPHONE, Visits
from tests.service.pages.page_records import A100, compiled_kernel, searched_kernel
from tests.service.support import Service
from tirgemm.artifact import Signer
from tirgemm.service.http.pages import kernel_table_page, one_kernel_page


def test_filters_sorting_and_pages_work_without_reload(
    service: Service, visits: Visits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_table_page, "ROWS", 8)
    for m in range(1, 11):
        searched_kernel(service.store, f"{m}x67x31:f16:nt", us=10.0 + m, default_us=18.0 - m)
    searched_kernel(service.store, "129x67x31:bf16:nn", us=4.0)
    searched_kernel(service.store, "129x67x31:f16:nt", role="unverified")
    searched_kernel(service.store, "33x67x31:f16:nt", role="fallback", device=A100)
    tab = visits.open("/kernels")
    tab.evaluate("window.loaded = true")
    visits.check("kernels")
    assert tab.get_by_role("status").inner_text() == "13 kernels, 8 of them here."

    tab.get_by_label("Shape").fill("129x67")
    tab.get_by_text("2 kernels.").wait_for()
    tab.get_by_label("Type").select_option("bf16")
    tab.get_by_text("1 kernel.").wait_for()
    expect(tab).to_have_url(re.compile("shape=129x67.*dtype=bf16"))

    tab.get_by_role("link", name="All kernels").click()
    tab.wait_for_url("**/kernels")
    tab.evaluate("window.loaded = true")
    tab.get_by_role("link", name="Time", exact=True).click()
    tab.wait_for_url("**/kernels?sort=us")
    head = tab.locator("th[aria-sort=ascending]")
    expect(head).to_have_text(re.compile(r"^\s*Time\b"))
    expect(tab.locator("tbody tr").first.locator("th")).to_have_text("129x67x31:bf16:nn")
    tab.get_by_role("link", name="Next page").click()
    tab.get_by_role("link", name="First page").wait_for()
    expect(tab.locator("tbody tr")).to_have_count(5)
    expect(tab.locator("tbody tr").last.locator("td.n").first, "what is not timed comes last").to_have_text("–")
    assert tab.evaluate("window.loaded"), "sorting and turning pages reload nothing"
    tab.get_by_label("Type").select_option("f16")
    tab.get_by_text("12 kernels, ").wait_for()
    expect(head, "a filter keeps the order").to_have_text(re.compile(r"^\s*Time\b"))
    tab.go_back()
    tab.get_by_role("link", name="First page").wait_for()
    tab.go_back()
    tab.wait_for_url("**/kernels?sort=us")
    tab.get_by_role("link", name="Next page").wait_for()

    tab.get_by_label("Shape").fill("n=")
    tab.get_by_text("the shape is 'n='").wait_for()
    visits.expect_complaint("422")
    tab.get_by_label("Shape").fill("n=67")
    tab.locator("#fault:empty").wait_for(state="attached")
    expect(tab).to_have_url(re.compile("shape=n%3D67"))


def test_on_a_telephone_a_row_is_a_card_and_still_a_row_of_a_table(service: Service, visits: Visits) -> None:
    searched_kernel(service.store, "7x67x31:f16:nt", us=10.0)
    searched_kernel(service.store, "1..16384x65537x16411:bf16:tt:act=gelu_tanh:alpha:beta:bias", us=1234567.8)
    tab = visits.open("/kernels")
    tab.set_viewport_size(TELEPHONE)
    table = tab.get_by_role("table", name="Kernels with their times and ratios")
    assert table.get_by_role("columnheader").count() == 11
    row = table.get_by_role("row").filter(has=tab.get_by_role("rowheader", name="7x67x31:f16:nt"))
    cells = row.get_by_role("cell")
    assert cells.nth(5).inner_text() == "10.00"
    labels = cells.evaluate_all("all => all.map(cell => getComputedStyle(cell, '::before').content)")
    assert labels[5] == '"Time, µs a call" / ""', "shown, but read to nobody twice"
    assert row.bounding_box() != row.get_by_role("rowheader").bounding_box()
    tops = cells.evaluate_all("all => new Set(all.map(cell => cell.getBoundingClientRect().top)).size")
    assert tops > 1, "cells lie below each other"
    assert tab.evaluate(SCROLLED_TABLES) == []
    tab.get_by_role("link", name="Time", exact=True).press("Enter")
    tab.wait_for_url("**/kernels?sort=us")
    expect(table.get_by_role("rowheader").first).to_have_text("7x67x31:f16:nt")


def test_a_kernel_its_code_and_a_comparison(
    service: Service, visits: Visits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_kernel_page, "CODE_BYTES", 120_000)  # axe looks at every line
    signer = Signer.load_or_create(tmp_path / "key")
    service.state.public_key = signer.public
    kernel = compiled_kernel(service.store, signer)
    problem = str(kernel.gemm)
    default = searched_kernel(
        service.store, problem, us=15.0, device=A100, role="fallback", config=kernel.config.with_(raster=4)
    )
    older = A100.with_(environment=(("driver", "535.1"), ("tvm", "0.26.0")))
    searched_kernel(service.store, problem, us=11.0, device=older, config=kernel.config.with_(raster=8))
    searched_kernel(service.store, problem, us=3.0)
    tab = visits.open(f"/kernels/{kernel.id}")
    without = visits.transferred
    tab.locator("#explanation").scroll_into_view_if_needed()
    tab.locator("#explanation svg").first.wait_for()
    assert visits.transferred > without + 10_000, "what is fetched later counts"
    assert tab.title() == f"Kernel of {problem} · tirgemm"
    assert tab.locator("svg.samples").count() == 2
    visits.check("kernel")

    tab.get_by_role("link", name="side by side").click()
    tab.get_by_role("heading", name="Code of", level=1).wait_for()
    code = tab.locator(".code [data-kind=sass] [data-line]")
    source = code.first.get_attribute("data-line")
    code.first.click()
    expect(tab.locator(f".code [data-kind=cuda] .on[data-line='{source}']")).to_have_count(1)
    marked = tab.locator(".code .on")
    assert {marked.nth(at).get_attribute("data-line") for at in range(marked.count())} == {source}
    visits.check("kernel_code")
    marked_by_keyboard(tab)

    tab.go_back()
    tab.get_by_role("link", name="Compare with the default").click()
    tab.get_by_role("heading", name="Compare kernels").wait_for()
    assert "B takes 1.500 times as long as A (95 %: " in tab.get_by_role("main").inner_text()
    tab.locator("[hx-get]").scroll_into_view_if_needed()
    tab.locator("#figures svg").wait_for()
    assert f"kernel {default.id}" in tab.locator("#figures").inner_text()
    visits.check("compare")
    other = compiled_kernel(service.store, signer, "64x128x512:bf16:nt")
    tab = visits.open(f"/compare/code?kernel={kernel.id}&kernel={other.id}")
    tab.get_by_text("rows are the same in all").first.click()
    visits.check("compare_code")
    visits.open(f"/kernels/{kernel.id}/explain")
    visits.check("kernel_explanation")


def test_kernels_are_chosen_to_be_compared_by_ticks_or_by_their_ids(service: Service, visits: Visits) -> None:
    kernels = [searched_kernel(service.store, f"{m}x67x31:f16:nt", us=10.0 + m) for m in (1, 3, 5)]
    tab = visits.open("/compare")
    visits.check("compare_form")
    for label, kernel in zip(("Kernel A", "Kernel B"), kernels, strict=False):
        tab.get_by_label(label).fill(kernel.id)
    tab.get_by_role("button", name="Compare", exact=True).click()
    tab.get_by_role("heading", name="Times, sustained").wait_for()
    assert tab.get_by_role("rowheader", name=re.compile("^[AB]$")).count() == 2

    tab = visits.open("/kernels")
    ticks = tab.get_by_role("checkbox")
    for at in range(3):
        ticks.nth(at).check()
    tab.get_by_role("button", name="Compare those that are ticked").click()
    tab.wait_for_url("**/compare?*")
    expect(tab.get_by_role("rowheader", name=re.compile("^[ABC]$"))).to_have_count(3)
    tab = visits.open(f"/compare?kernel={kernels[0].id}&kernel={kernels[1].id}")
    visits.check("compare_problems")
    tab.go_back()
    tab.goto("/kernels")
    tab.get_by_role("checkbox").first.check()
    tab.get_by_role("button", name="Compare those that are ticked").click()
    tab.get_by_role("alert").wait_for()
    visits.expect_complaint("422")
    visits.check("compare_choice")


def marked_by_keyboard(tab: Page) -> None:
    """From the PTX by keys alone to the lines that are marked, and what is said of them."""
    said = tab.get_by_role("status")
    tab.get_by_role("region", name="Lines of the PTX").focus()
    tab.keyboard.press("Tab")
    numbers = tab.locator(".code [data-kind=ptx] a")
    expect(numbers.first).to_be_focused()
    expect(tab.locator(".code [data-kind=ptx] a[tabindex='0']")).to_have_count(1)
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("ArrowDown")
    expect(numbers.nth(2)).to_be_focused()
    tab.keyboard.press("Enter")
    source = numbers.nth(2).inner_text()
    expect(said).to_have_text(re.compile(rf"^Line {source} of the CUDA source. Lines marked: \d+ of the PTX"))
    expect(tab.locator(f".code [data-kind=cuda] .on[data-line='{source}']")).to_have_count(1)
    tab.keyboard.press("End")
    expect(numbers.last).to_be_focused()
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.closest('[data-kind=ptx]')") is None, "one stop a text"


def test_pinning_and_deleting_a_kernel(service: Service, visits: Visits) -> None:
    kernel = searched_kernel(service.store)
    tab = visits.open(f"/kernels/{kernel.id}")
    tab.get_by_role("button", name="Pin", exact=True).click()
    tab.get_by_role("button", name="Unpin").click()
    tab.get_by_text("Delete this kernel").click()
    tab.get_by_role("button", name="Delete it").click()
    tab.wait_for_url("**/kernels")
    assert service.store.kernel_by_id(kernel.id) is None
