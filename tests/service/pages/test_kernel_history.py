"""A kernel's history: what each was built by and under, and the drawing of their times."""

from __future__ import annotations

import re

from tests.service.pages.browser import HTML
from tests.service.pages.page_records import A100, H200, WGMMA, compiled_kernel, searched_kernel
from tests.service.support import Service
from tirgemm import __version__
from tirgemm.artifact import Signer
from tirgemm.service.views.kernels.history_drawing import HistoryPoint, history_drawing
from tirgemm.tuning.driver.nvrtc import nvrtc_version


def test_the_environment_has_the_versions_of_tirgemm_and_of_the_compiler(service: Service) -> None:
    signer = Signer.generate()
    service.state.public_key = signer.public
    kernel = compiled_kernel(service.store, signer)
    other = searched_kernel(service.store, str(kernel.gemm), us=11.0, device=A100, config=WGMMA)
    read = service.http.get(f"/kernels/{kernel.id}").json()
    assert read["environment"]["tirgemm"] == __version__
    assert read["environment"]["nvrtc"].startswith(nvrtc_version())
    # The other's artifact is none, and says nothing of who built it.
    changed = service.http.get(f"/kernels/{kernel.id}").json()["history"][0]["changed"]
    assert changed == {"tirgemm": None, "nvrtc": None}
    assert "nvrtc not recorded, tirgemm not recorded" in service.http.get(f"/kernels/{kernel.id}", headers=HTML).text
    there = service.http.get(f"/kernels/{other.id}").json()["history"][0]["changed"]
    assert there["tirgemm"] == __version__, "what this side lacks is told too"


def test_the_times_are_drawn_with_what_became_another(service: Service) -> None:
    kernel = searched_kernel(service.store)
    older = H200.with_(environment=(("driver", "535.1"), ("tvm", "0.27.0"), ("cuda", "13.0")))
    searched_kernel(service.store, us=11.0, device=older, config=WGMMA.with_(tile_m=64))
    html = service.http.get(f"/kernels/{kernel.id}", headers=HTML).text
    drawn = html.partition('<svg class="history"')[2].partition("</svg>")[0]
    assert drawn.count("<circle") == 2
    assert drawn.count('class="own"') == 1
    assert "this one 10.00" in drawn
    assert "driver " in drawn
    alone = searched_kernel(service.store, "131x67x31:f16:nt")
    assert '<svg class="history"' not in service.http.get(f"/kernels/{alone.id}", headers=HTML).text


def test_points_are_in_the_order_of_their_days_and_changes_stand_between_them() -> None:
    points = [
        HistoryPoint("2026-03-01T10:00:00", 8.0, {"driver": "590.1", "tvm": "0.27"}, own=True),
        HistoryPoint("2026-01-01T10:00:00", 12.0, {"driver": "535.1", "tvm": "0.26"}, own=False),
        HistoryPoint("2026-02-01T10:00:00", None, {"driver": "535.1", "tvm": "0.26"}, own=False),
        HistoryPoint("2026-02-02T10:00:00", 10.0, {"driver": "535.1", "tvm": "0.27"}, own=False),
    ]
    drawn = str(history_drawing(points))
    assert "3 kernels from 2026-01-01 to 2026-03-01" in drawn
    assert "the oldest 12.00, the newest 8.000, the fastest 8.000; this one 8.000" in drawn
    tips = re.findall(r'cx="([0-9.]+)"[^>]*><title>([^<]+)</title>', drawn)
    assert [tip.partition(",")[0] for _, tip in tips] == ["12.00 µs", "10.00 µs", "8.000 µs"]
    xs = [float(x) for x, _ in tips]
    assert xs == sorted(xs)
    labels = re.findall(r'<text x="([0-9.]+)" y="[0-9.]+">((?:tvm|driver) [^<]+)</text>', drawn)
    assert [words for _, words in labels] == ["tvm 0.27", "driver 590.1"]
    assert xs[0] < float(labels[0][0]) < xs[1] < float(labels[1][0]) < xs[2]
    assert not history_drawing(points[1:3])
