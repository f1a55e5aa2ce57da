"""The pages that are single files, of ``tirgemm explain --html`` and ``tirgemm ladder --html``, in a browser."""

from __future__ import annotations

from dataclasses import replace

from tests.browser.visits import Visits
from tirgemm.bench.ladder_report import described
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.service.explain.gather import Report
from tirgemm.service.explain.page import page as explain_page
from tirgemm.service.views.ladder_page import page as ladder_page
from tirgemm.tuning.explain import chosen, explain


def test_an_explanation_has_its_pictures_in_colour(visits: Visits) -> None:
    gemm, device = Gemm.parse("129x67x31:f16:nt"), named_device("sm_80")
    report = Report(explain(gemm, chosen(gemm, device, "simt"), device, compiled=False))
    visits.tab.set_content(explain_page(report))
    colours = visits.tab.locator("svg rect.h0, svg rect.h1").evaluate_all(
        "all => all.map(e => getComputedStyle(e).fill)"
    )
    assert len(set(colours)) == 2
    assert "rgb(0, 0, 0)" not in colours
    visits.check("explain")


def test_a_ladder_has_a_bar_for_each_rung_on_every_screen(visits: Visits) -> None:
    gemm = Gemm.parse("16384x16384x16384:f32:nn:alpha:beta")
    rungs = described(gemm, named_device("sm_90a"))
    measured = [
        replace(
            entry,
            status="measured",
            us=1e6 / (at + 1),
            tflops=at + 1.0,
            shares={"torch.matmul": 0.5, "cublaslt_best": 0.5},
        )
        for at, entry in enumerate(rungs)
    ]
    visits.tab.set_content(ladder_page([([(gemm, measured, {"torch.matmul": 40.0})], "a made-up GPU")]))
    visits.check("ladder")
    visits.tab.set_viewport_size({"width": 390, "height": 844})
    widths = visits.tab.locator("rect.ours").evaluate_all("all => all.map(e => e.getBoundingClientRect().width)")
    bars = widths[: len(rungs)]
    assert bars == sorted(bars)
    assert bars[0] > 0
    assert bars[-1] > 50
