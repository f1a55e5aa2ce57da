"""The ladder on a terminal, on a page and in the documents' tables."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.bench.ladder.made_up_ladder import BIG, GEMM, H200, NAMES, MadeUp, rows_of
from tests.helpers.scripts import script
from tirgemm.bench.ladder_report import RungFigures, described, reported
from tirgemm.bench.results import ResultsFile, environment
from tirgemm.service.views.ladder_page import page
from tirgemm.service.views.ladder_terminal import bar, view

render: Any = script("benchmarks/render.py")

tables: Any = script("benchmarks/ladder_tables.py")

ROOT = Path(__file__).resolve().parents[3]


def drawn(entries: list[RungFigures], baselines: dict[str, float]) -> str:
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123 - closed with the console
    console.print(view(GEMM, entries, baselines))
    return console.export_text()


def test_the_terminal_shows_tree_figures_and_bars() -> None:
    entries = reported(rows_of(MadeUp({"naive": 9000.0, "torch.matmul": 900.0})), GEMM)
    text = drawn(entries, {"torch.matmul": 152.7})
    assert all(name in text for name in NAMES)
    assert "└── naive" in text
    assert "9.023 ms, 15.23 TFLOP/s" in text
    assert "9.000 x naive" in text
    assert text.count("█") > 100
    assert bar(1.0) == "█" * 40
    assert bar(0.0) == ""
    assert len(bar(0.503)) == 21


class Balanced(HTMLParser):
    """Every tag that opens closes, and nothing is loaded from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not {"src", "href"} & {name for name, _ in attrs}
        self.tags.add(tag)
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not {"src", "href"} & {name for name, _ in attrs}
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_loads_nothing() -> None:
    entries = reported(rows_of(MadeUp({"zorder": 1500.0})), GEMM)
    text = page([([(GEMM, entries, {"torch.matmul": 50.0})], "a <GPU>")])
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    assert not {"script", "link", "img"} & parser.tags
    assert "a &lt;GPU&gt;" in text
    assert text.count('<rect class="') == len(NAMES) + 1, "a bar a rung, and the baseline's"
    assert text.count("<style>") == 1
    assert "style=" not in text
    assert "lanes_n</dt><dd>threads of a warp side by side along n" in text
    assert 'class="bad"' in text


def results_of(folder: Path, *rows: list[dict[str, Any]]) -> tuple[Path, Path]:
    """The folders of results and suites in which a device's ladder has these rows."""
    suites, results = folder / "suites", folder / "results"
    suites.mkdir()
    (suites / "ladder.json").write_text(json.dumps({"name": "ladder", "source": "x", "gemms": [str(GEMM), str(BIG)]}))
    file = ResultsFile(
        results / "gpu" / "ladder.sustained.json", "ladder", "sustained", environment(H200, None), resume=False
    )
    for actual in rows:
        file.put(*actual)
    return results, suites


def test_the_documents_tables_show_the_rows_or_say_that_there_are_none(tmp_path: Path) -> None:
    for name in ("measured", "best", "compiled"):
        assert tables.TABLES[name](tmp_path / "nothing", ROOT / "benchmarks" / "suites").startswith("Not measured yet")
    rows = rows_of(MadeUp({"naive": 9000.0, "zorder": 1500.0, "default": 800.0, "torch.matmul": 900.0}))
    for row in rows:
        row["conditions"] |= {"fma_share": 0.9, "lds_per_fma": 0.0625, "ldg_per_fma": 0.003}
        row["conditions"] |= {"code_beside_parent": "reordered"} if row["variant"] == "register_cache" else {}
    known = rows_of(MadeUp({"naive": 9e6}), BIG, rows_of(MadeUp({"naive": 9e6})))
    results, suites = results_of(tmp_path, rows, known)
    text = tables.TABLES["measured"](results, suites)
    assert "| `zorder` | `float4` | 1.504 |" in text
    assert "| `naive` |  | skipped: a launch takes about" in text
    (zorder, _) = [line for line in text.splitlines() if line.startswith("| `zorder`")]
    assert zorder.endswith("| 0.667 | 0.667 | **no** |")
    best = tables.TABLES["best"](results, suites).splitlines()
    assert best[0].startswith("NVIDIA H200, sustained")
    assert f"`{GEMM}` | `default` | 1.250 × cublaslt_best, 1.125 × torch.matmul |" in best[4]
    compiled = tables.TABLES["compiled"](results, suites)
    assert (
        "| `register_cache` | 128 | 0.900 | 0.0625 | 0.003 | the parent's instructions in another order |" in compiled
    )


def test_a_marker_that_names_no_table_is_told() -> None:
    with pytest.raises(render.MarkerError, match="ladder/what names no table"):
        render.rendered("<!-- results:ladder/what -->\n<!-- /results:ladder/what -->\n")


def test_what_is_described_has_no_figures() -> None:
    assert all(actual.us is None and actual.not_slower is None for actual in described(GEMM, H200))
