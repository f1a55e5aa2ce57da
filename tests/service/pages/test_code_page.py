"""The page of a kernel's code: how much of it a page holds, and where the numbers of its lines lead."""

from __future__ import annotations

import re

import pytest

from tests.service.pages.browser import HTML
from tests.service.pages.code_faults import endless
from tests.service.pages.page_records import compiled_kernel
from tests.service.support import Service
from tirgemm.artifact import Signer
from tirgemm.service.http.pages import one_kernel_page
from tirgemm.service.pages.assets import assets
from tirgemm.service.views.kernels.code_budget import lines_that_fit
from tirgemm.service.views.kernels.code_lines import CodeLine, CodeText


@pytest.fixture
def code(service: Service) -> str:
    """The address of the code of a kernel that was compiled here."""
    signer = Signer.generate()
    service.state.public_key = signer.public
    return f"/kernels/{compiled_kernel(service.store, signer).id}/code"


def test_the_largest_code_is_cut_to_a_megabyte_and_the_rest_is_a_link_away(
    service: Service, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_kernel_page, "linked_text", endless)
    own = sum(len(assets()[name].content) for name in ("style.css", "kernels.js", "icon.svg"))
    html = service.http.get(code, headers=HTML)
    assert 800_000 < len(html.content) < 1_000_000 - own
    answer = service.http.get(code)
    assert len(answer.content) < 1_000_000
    texts = {text["kind"]: text for text in answer.json()["texts"]}
    assert (len(texts["script"]["lines"]), texts["script"]["left_out"]) == (9, 0)
    counts = [len(texts[kind]["lines"]) for kind in ("cuda", "ptx", "sass")]
    assert max(counts) - min(counts) < 0.1 * max(counts), counts
    for kind in ("cuda", "ptx", "sass"):
        left_out = texts[kind]["left_out"]
        assert left_out == 20_000 - len(texts[kind]["lines"]) > 0
        assert f'{left_out:,} more lines are in the <a href="{code}/{kind}">plain text</a>' in html.text


def test_what_a_short_text_does_not_need_is_the_others() -> None:
    line = CodeLine("x" * 54)  # 100 bytes at most
    long, short = CodeText("ptx", (line,) * 50), CodeText("cuda", (line,) * 3)
    assert lines_that_fit([long, short, long], 2300) == [10, 3, 10]
    assert lines_that_fit([long, short], 10_000) == [50, 3]
    assert lines_that_fit([CodeText("ptx", missing="no compiler"), short], 250) == [0, 2]
    assert lines_that_fit([CodeText("ptx", (CodeLine("x" * 5000), line))], 1000) == [0]


def test_every_number_of_a_line_is_a_link_to_a_line_that_is_shown(
    service: Service, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_kernel_page, "CODE_BYTES", 120_000)
    html = service.http.get(code, headers=HTML).text
    assert "Choose a number" in html
    assert "This is kernel.cubin, which is what runs" in html
    assert "more lines are in" in html
    targets = re.findall(r'<a class="g" href="#([^"]+)">(\d+)</a>', html)
    assert len(targets) == html.count("data-line=") > 50
    assert {kind for kind in ("cuda", "sass", "ptx") if any(kind in target for target, _ in targets)} > {"cuda"}
    for target, number in targets:
        assert f'id="{target}"' in html
        assert target.endswith(f"-{number}")
