"""The list of spaces, a space, a candidate and a timeline in a real browser."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.browser.visits import Visits
from tests.helpers import recorded_space
from tests.helpers.recorded_space import DEVICE, FAILED, GEMM
from tests.service.pages.timeline_records import RECORDED, put_recording, recorded_kernel
from tests.service.support import Service
from tirgemm.gemm import Gemm


def test_from_the_list_through_a_space_to_a_candidate(service: Service, visits: Visits) -> None:
    service.store.put_device(DEVICE)
    long = Gemm.parse("33x65x47:f16:tt:act=gelu_tanh:alpha:beta:bias")
    recorded_space.record(service.state.database, [*recorded_space.measured(long), *recorded_space.every()])
    tab = visits.open("/spaces")
    visits.check("spaces")
    assert tab.locator("tbody tr").count() == 50, "behind its own space the list has those that were shipped"
    tab.get_by_label("Problem holds").fill(":bf16:tn:bias")
    tab.get_by_role("button", name="Filter").click()
    tab.get_by_role("link", name=str(GEMM)).click()
    tab.wait_for_url(re.compile(r"/spaces/.*device="))
    visits.check("space")

    tab.get_by_label("Knob across").select_option("tile_n")
    tab.get_by_label("Knob down").select_option("tile_m")
    tab.get_by_role("button", name="Show").click()
    tab.wait_for_url(re.compile("knob=tile_n&knob=tile_m"))
    heat = tab.get_by_role("group", name="Heat map of tile_m by tile_n")
    expect(heat.get_by_role("link")).to_have_count(22)
    lines = tab.get_by_role("group", name="Parallel coordinates of 63 candidates over 3 knobs")
    expect(lines.get_by_role("link")).to_have_count(63)
    lines.get_by_role("link").last.press("Enter")
    tab.wait_for_url("**/candidates/**")
    tab.go_back()
    tab.wait_for_url(re.compile("knob=tile_n&knob=tile_m"))
    heat.get_by_role("link", name="tile_n 16, tile_m 256: no time; 1 failed").press("Enter")
    tab.wait_for_url("**/candidates/**")
    assert FAILED.message in tab.get_by_role("main").inner_text()

    tab.go_back()
    tab.get_by_role("link", name="Next page").click()
    failed = tab.get_by_role("row").filter(has_text=FAILED.message)
    expect(failed.get_by_role("cell").nth(1), "before the knobs").to_have_text(f"build failed: {FAILED.message}")
    expect(tab.get_by_role("row").last.get_by_role("cell").first).to_have_text("63")
    tab.go_back()
    tab.get_by_role("row").filter(has_text="measured").first.get_by_role("link").click()
    tab.wait_for_url("**/candidates/**")
    visits.check("candidate")
    tab.get_by_role("link", name=str(GEMM)).click()
    tab.wait_for_url("**/spaces/**")


def test_a_timeline_that_was_recorded_and_one_that_was_not(service: Service, visits: Visits) -> None:
    kernel_id = recorded_kernel(service)
    tab = visits.open(f"/kernels/{kernel_id}/timeline")
    assert "It is not this kernel's" in tab.get_by_role("main").inner_text()
    visits.check("timeline-illustrated")
    put_recording(service, kernel_id, RECORDED)
    tab.reload()
    visits.check("timeline")
    with tab.expect_download() as download:
        tab.get_by_role("link", name="Download the trace for Perfetto").click()
    assert download.value.suggested_filename == f"{kernel_id}.trace.json"
