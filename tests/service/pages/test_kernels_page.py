"""The table of kernels: filters, orders and pages; as a page and as a document; orders served by indexes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete
from sqlalchemy.dialects import sqlite

from tests.service.pages.browser import HTML
from tests.service.pages.page_records import A100, searched_kernel
from tests.service.support import Service, serving
from tirgemm.config import Config
from tirgemm.service.http.state import ServiceState
from tirgemm.service.settings import Settings
from tirgemm.service.views.kernels.kernel_table import SORTS, TableFilter, count_kernels, page_statements
from tirgemm.service.views.kernels.shape_filter import ShapeFilter
from tirgemm.tuning.records.store import Store
from tirgemm.tuning_db.models import KernelFigureRow


def listed(service: Service, query: str = "") -> dict[str, Any]:
    answer = service.http.get(f"/kernels{query}")
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def problems(service: Service, query: str) -> list[str]:
    return [kernel["gemm"] for kernel in listed(service, query)["kernels"]]


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Three timed kernels that differ in all that can be filtered by, and two that nobody ran; tests only look."""
    with serving(tmp_path_factory.mktemp("several"), worker=False) as service:
        _fill(service.store)
        yield service


def _fill(store: Store) -> None:
    searched_kernel(store, "129x67x31:f16:nt", us=10.0, default_us=12.0)
    searched_kernel(store, "1..64x67x33:bf16:nn", us=30.0, default_us=90.0, device=A100, regime="isolated")
    other = Config("simt", (("block_m", 64),))
    searched_kernel(store, "1290x68x31:f16:nt", us=20.0, default_us=20.0, config=other, role="fallback")
    for m in (17, 18):
        searched_kernel(store, f"{m}x19x23:f32:tn", role="unverified")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["18x19x23:f32:tn", "17x19x23:f32:tn", "1290x68x31:f16:nt", "1..64x67x33:bf16:nn", "129x67x31:f16:nt"]),
        ("?shape=129x67x31:f16:nt", ["129x67x31:f16:nt"]),
        ("?shape=129", ["1290x68x31:f16:nt", "129x67x31:f16:nt"]),
        ("?shape=129x", ["129x67x31:f16:nt"]),
        ("?shape=1..64x67x33:b", ["1..64x67x33:bf16:nn"]),
        ("?shape=n%3D67", ["1..64x67x33:bf16:nn", "129x67x31:f16:nt"]),
        ("?shape=m%3D17,%20k%3D33", ["1..64x67x33:bf16:nn"]),
        ("?dtype=bf16", ["1..64x67x33:bf16:nn"]),
        ("?family=simt", ["1290x68x31:f16:nt"]),
        ("?device=sm_80", ["1..64x67x33:bf16:nn"]),
        ("?regime=isolated", ["1..64x67x33:bf16:nn"]),
        ("?role=unverified", ["18x19x23:f32:tn", "17x19x23:f32:tn"]),
        ("?family=simt&role=tuned", []),
        (
            "?sort=us",
            ["129x67x31:f16:nt", "1290x68x31:f16:nt", "1..64x67x33:bf16:nn", "18x19x23:f32:tn", "17x19x23:f32:tn"],
        ),
        (
            "?sort=-us",
            ["1..64x67x33:bf16:nn", "1290x68x31:f16:nt", "129x67x31:f16:nt", "18x19x23:f32:tn", "17x19x23:f32:tn"],
        ),
        (
            "?sort=default_ratio",
            ["1290x68x31:f16:nt", "129x67x31:f16:nt", "1..64x67x33:bf16:nn", "18x19x23:f32:tn", "17x19x23:f32:tn"],
        ),
        (
            "?sort=work",
            ["17x19x23:f32:tn", "18x19x23:f32:tn", "1..64x67x33:bf16:nn", "129x67x31:f16:nt", "1290x68x31:f16:nt"],
        ),
    ],
)
def test_filters_and_orders(several: Service, query: str, expected: list[str]) -> None:
    assert problems(several, query) == expected
    assert listed(several, query)["total"] == len(expected)


@pytest.mark.parametrize("few", [0, 1000])
@pytest.mark.parametrize("sort", ["us", "-us", "-stored", "work"])
def test_pages_hold_every_kernel_once(several: Service, sort: str, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tirgemm.service.http.pages.kernel_table_page.ROWS", 1)
    monkeypatch.setattr("tirgemm.service.http.pages.kernel_table_page.FEW", few)
    whole, address, turned = [], f"?sort={sort}", 0
    while address and turned < 9:
        page = listed(several, address)
        whole += [kernel["gemm"] for kernel in page["kernels"]]
        assert (page["first"] is None) == (turned == 0)
        address, turned = (page["next"] or "").removeprefix("/kernels"), turned + 1
    monkeypatch.undo()
    assert whole == problems(several, f"?sort={sort}")
    assert turned == 5


def test_a_row_has_its_ratios_with_the_spread_of_the_samples(several: Service) -> None:
    row = listed(several, "?shape=129x67x31:f16:nt")["kernels"][0]
    assert (row["us"], row["default"]["name"], row["default"]["ratio"]) == (10.0, "default", 1.2)
    assert (row["baseline"]["name"], row["baseline"]["ratio"]) == ("torch.matmul", pytest.approx(1.1))
    for spread in (row["default"], row["baseline"]):
        assert spread["low"] < spread["ratio"] * 1.01
        assert spread["ratio"] * 0.99 < spread["high"] < spread["ratio"] * 1.1
    page = several.http.get("/kernels?shape=129x67x31:f16:nt", headers=HTML).text
    assert 'aria-label="1.20 times as fast as default, the middle half of the samples' in page


def test_a_page_is_told_by_links_and_a_form_alone(several: Service) -> None:
    page = several.http.get("/kernels?dtype=f16&sort=us", headers=HTML).text
    assert '<option value="f16" selected>' in page
    assert '<a href="/kernels?dtype=f16&amp;sort=-us">' in page, "a second press turns the order round"
    assert '<input type="hidden" name="sort" form="filters" value="us">' in page


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ("?sort=fastest", 422, "sort is 'fastest'; it is one of -stored, stored"),
        ("?shape=n%3D0", 422, "the shape is 'n=0'; it is a problem such as"),
        ("?shape=n%3D1%20n%3D2", 422, "each once"),
        ("?shape=abc%25", 422, "the shape is 'abc%'"),
        ("?role=best", 422, "role"),
        ("?family=%00", 422, "family"),
        ("?after=00ff", 404, "after is '00ff'"),
        ("?colour=red", 422, "colour"),
    ],
)
def test_bad_queries_are_told(several: Service, query: str, status: int, words: str) -> None:
    answer = several.http.get(f"/kernels{query}")
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert words in answer.text


def test_the_schema_says_which_orders_and_shapes_there_are(several: Service) -> None:
    parameters = several.http.get("/openapi.json").json()["paths"]["/kernels"]["get"]["parameters"]
    schemas = {each["name"]: each["schema"] for each in parameters}
    assert schemas["sort"]["enum"] == list(SORTS)
    pattern = re.compile(schemas["shape"]["pattern"])
    sizes = ["n=67", " k=31,n=67 ", "m=1\tk=3 n=5", "n=0", "n=1 n=1", "n=1 n=2", "n=", "n=1k=3", f"n={10**18}", "q=1"]
    texts = ["", " ", "129x", "129X67", "129x67x31:f16:nt", "1..8x67x31", "x67", "abc%", "\u0661x2x3:f16:nt", "129x 67"]
    for shape in (*sizes, *texts, "1" * 512):
        answer = several.http.get("/kernels", params={"shape": shape})
        assert (answer.status_code == 200) == bool(pattern.search(shape)), shape


@pytest.mark.parametrize("sort", SORTS)
def test_every_order_is_served_by_an_index(several: Service, sort: str) -> None:
    wanted = TableFilter(ShapeFilter.parse("n=67"), dtype="f16", family="wgmma", role="tuned")
    for after in (None, (12.0, 2), (None, 2)):
        for statement in page_statements(wanted, sort, after):
            text = statement.limit(50).compile(dialect=sqlite.dialect(), compile_kwargs={"literal_binds": True})
            with several.state.database.read() as connection:
                plan = str(connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}").all())
            assert "TEMP B-TREE" not in plan, f"{text}\n{plan}"


def test_a_kernel_that_an_older_process_stored_is_listed_from_the_next_start_on(tmp_path: Path) -> None:
    for stored in (0, 1):
        state = ServiceState.open(Settings.load(data=tmp_path))
        with closing(state.database), closing(state.explainer):
            assert count_kernels(state.database, TableFilter()) == stored
            searched_kernel(state.store, "129x67x31:f16:nt")
            with state.database.write() as connection:
                connection.execute(delete(KernelFigureRow))
