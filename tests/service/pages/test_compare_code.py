"""What the machine code of kernels says side by side, in one roofline, and what two devices' times do."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest

from tests.service.pages.browser import HTML
from tests.service.pages.page_records import A100, H200, compiled_kernel, searched_kernel
from tests.service.support import Service
from tirgemm.artifact import Signer
from tirgemm.service.views.kernels.code_differences import CountRow, count_rows
from tirgemm.service.views.kernels.kernel_comparison import common_roofline


def test_rows_that_differ_come_first_and_what_is_not_counted_is_none_of_it() -> None:
    a, b = {"FFMA": 512, "BAR.SYNC": 2, "LDS.128": 16}, {"FFMA": 512, "BAR.SYNC": 4, "HMMA": 8}
    assert count_rows([a, b, {}]) == (
        CountRow("BAR.SYNC", (2, 4, None), True),
        CountRow("LDS.128", (16, 0, None), True),
        CountRow("HMMA", (0, 8, None), True),
        CountRow("FFMA", (512, 512, None), False),
    )
    assert count_rows([{"bytes": 10, "registers": 40}, {"bytes": 10}], absent=None) == (
        CountRow("bytes", (10, 10), False),
        CountRow("registers", (40, None), None),
    )


def explained(tflops: float, intensity: float, model: str = "A100") -> dict[str, Any]:
    ceilings = [{"name": "compute", "rate": 300.0}, {"name": "dram", "rate": 1500.0}]
    roofline = {"ceilings": ceilings, "tflops": tflops, "peak": "f16 tensor", "intensity": {"dram": intensity}}
    return {"roofline": roofline, "device": {"model": model}}


def test_two_kernels_are_two_dots_in_one_roofline() -> None:
    picture = common_roofline({"A": explained(120.0, 90.0), "B": explained(60.0, 40.0)})
    assert picture is not None
    assert picture.count("<circle") == 2
    assert len(set(re.findall(r'<circle cx="([0-9.]+)" cy="([0-9.]+)"', picture))) == 2
    assert set(re.findall(r"<text[^>]*>([AB])\b", picture)) == {"A", "B"}
    same = common_roofline({"A": explained(120.0, 90.0), "B": explained(120.0, 90.0)})
    assert same is not None
    assert (same.count("<circle"), ">A, B</text>" in same) == (1, True)
    assert common_roofline({"A": {"roofline": None, "device": {"model": "A100"}}}) is None


def test_the_machine_code_of_two_kernels_differs_by_opcode(service: Service) -> None:
    signer = Signer.generate()
    service.state.public_key = signer.public
    one, two = (compiled_kernel(service.store, signer, gemm) for gemm in ("64x64x512:f16:nt", "64x128x512:bf16:nt"))
    path = f"/compare/code?kernel={one.id}&kernel={two.id}"
    read = service.http.get(path).json()
    assert read["missing"] == {}
    assert read["roofline"].count("<circle") == 2
    opcodes = {row["name"]: row for row in read["opcodes"]}
    assert opcodes["BAR.SYNC.DEFER_BLOCKING"]["values"][0] > 0
    differing = [row["name"] for row in read["opcodes"] if row["differs"]]
    assert differing == [row["name"] for row in read["opcodes"][: len(differing)]], "what differs comes first"
    assert 0 < len(differing) < len(read["opcodes"])
    html = service.http.get(path, headers=HTML).text
    head = html.partition('id="figures"')[0]
    for letter, kernel in (("A", one), ("B", two)):
        assert f'{letter}: <a href="/kernels/{kernel.id}">{kernel.gemm}</a>, tuned, sustained, on ' in head
    assert f'<a href="/compare?kernel={one.id}&amp;kernel={two.id}">' in head, "the way back"
    shown, _, hidden = html.partition("Instructions by opcode")[2].partition("<details>")
    for name in opcodes:
        assert f"{name}</th>" in (shown if name in differing else hidden), name
    assert shown.count("≠") == len(differing)


def test_of_two_devices_there_is_a_ratio_and_the_sentence_that_they_differ(service: Service) -> None:
    near = searched_kernel(service.store, us=10.0, device=H200)
    far = searched_kernel(service.store, us=40.0, device=A100)
    path = f"/compare?kernel={near.id}&kernel={far.id}"
    pair = service.http.get(path).json()["kernels"][1]["against_first"]
    assert (pair["ratio"], pair["same_run"]) == (pytest.approx(4.0), False)
    html = unescape(service.http.get(path, headers=HTML).text)
    assert "B takes 4.000 times as long as A, but they are for different devices" in html
    assert '<td role="cell" class="n" data-label="Time over A\'s">4.000</td>' in html
    other = searched_kernel(service.store, "131x67x31:f16:nt", us=40.0)
    pair = service.http.get(f"/compare?kernel={near.id}&kernel={other.id}").json()["kernels"][1]["against_first"]
    words = "The times of A and B say nothing of which is faster: they solve different problems."
    assert (pair["ratio"], pair["verdict"]) == (None, words)


def test_kernels_of_the_table_are_ticked_to_be_compared(service: Service) -> None:
    kernels = [searched_kernel(service.store, f"{m}x67x31:f16:nt") for m in (1, 3, 5)]
    table = service.http.get("/kernels", headers=HTML).text
    ticks = re.findall(r'<input type="checkbox" name="kernel" value="([0-9a-f]+)" form="compare"', table)
    assert ticks == [kernel.id for kernel in kernels[::-1]]
    assert '<form id="compare" method="get" action="/compare"' in table
    compared = service.http.get("/compare", params={"kernel": ticks})
    assert [kernel["letter"] for kernel in compared.json()["kernels"]] == ["A", "B", "C"]
