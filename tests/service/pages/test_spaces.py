"""The pages of recorded candidates: a space in pictures, a candidate, their documents, addresses and refusals."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.helpers import recorded_space
from tests.helpers.recorded_space import DEFAULT, DEVICE, FAILED, FASTEST_US, GEMM, PRUNED, REGIME, STAGES, WRONG
from tests.service.pages.browser import Browser
from tests.service.support import Service, serving
from tests.waiting import PATIENCE_S
from tirgemm.config import Config
from tirgemm.gemm import Gemm
from tirgemm.service.views.spaces import importance
from tirgemm.service.views.spaces.family_space import MAX_LINES
from tirgemm.timings import Timing, Timings
from tirgemm.tuning.records import Candidate, KernelRecord
from tirgemm.tuning.search.knob_importance import KnobImportance
from tirgemm.tuning_db.shipped.records import ShippedRecords

LONGEST = Gemm.parse(
    "1..8192x4096x4104:bf16:tn:acc=f32:out=f32:batch=8:lda=8200:align=4:alpha:beta:bias:act=gelu:deterministic"
)
SPACE = f"/spaces/{GEMM}"
FASTEST = recorded_space.config(tile_m=64, tile_n=16, stages=3)
# What the content security policy forbids within a page.
FORBIDDEN = re.compile(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=|javascript:")


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that has the candidates of one problem, and nothing shipped; tests that add some have problems of
    their own."""
    folder = tmp_path_factory.mktemp("spaces")
    with serving(folder) as actual:
        actual.state.store.shipped = ShippedRecords(folder / "none")
        actual.store.put_device(DEVICE)
        recorded_space.record(actual.state.database, recorded_space.every())
        yield actual


@pytest.fixture(scope="module")
def browser(space: Service) -> Iterator[Browser]:
    with Browser(space.url) as actual:
        yield actual


def _tuned(space: Service, n: int, *more: Candidate) -> Gemm:
    """A problem of size ``n`` that has the same candidates, and ``more``."""
    gemm = Gemm.parse(f"129x{n}x517:bf16:tn:bias")
    candidates = {each.config: each.with_(gemm=gemm) for each in (*recorded_space.every(), *more)}
    recorded_space.record(space.state.database, list(candidates.values()))
    return gemm


def _document(service: Service, path: str, **query: str | list[str]) -> dict[str, Any]:
    answer = service.http.get(path, params=query or None)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def _all_pages(browser: Browser, page: str) -> str:
    """A page of a space with those behind it."""
    following = re.search(r'<a rel="next" href="([^"]+)"', page)
    return page + (_all_pages(browser, browser.open(unescape(following[1])).text) if following else "")


def _candidate(config: Config, gemm: Gemm = GEMM) -> str:
    asked = urlencode({"gemm": str(gemm), "device": DEVICE.key, "regime": REGIME})
    return f"/candidates/{config.digest}?{asked}"


# -- addresses -------------------------------------------------------------------------------------


@pytest.mark.parametrize("gemm", [GEMM, LONGEST], ids=str)
def test_links_lead_from_the_list_to_a_space_to_a_candidate_and_back(
    space: Service, browser: Browser, gemm: Gemm
) -> None:
    space.store.add_candidate(PRUNED.with_(gemm=gemm))
    listed = next(each for each in _document(space, "/spaces")["spaces"] if each["gemm"] == str(gemm))
    page = browser.open(listed["url"])
    assert f"Space of {gemm}" in unescape(page.text)
    (link,) = set(re.findall(rf'href="(/candidates/{PRUNED.config.digest}\?[^"]+)"', _all_pages(browser, page.text)))
    candidate = browser.open(unescape(link))
    assert f"Candidate {PRUNED.config.digest}" in candidate.text
    assert '<a href="/spaces" aria-current="page">' in candidate.text, "it belongs to that section"
    (back,) = re.findall(r'href="(/spaces/[^"]+)"', candidate.text)
    assert f"Space of {gemm}" in unescape(browser.open(unescape(back)).text)


@pytest.mark.parametrize(
    "path",
    ["/spaces", SPACE, f"{SPACE}?family=mma&knob=tile_m&knob=tile_n", _candidate(PRUNED.config), _candidate(FASTEST)],
    ids=["list", "space", "knobs", "pruned", "measured"],
)
def test_pages_hold_nothing_that_the_policy_forbids(space: Service, browser: Browser, path: str) -> None:
    answer = browser.open(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert not FORBIDDEN.search(answer.text)
    assert space.http.get(path).headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("path", "status", "told"),
    [
        ("/spaces?dtype=i8", 422, "query.dtype"),
        ("/spaces?gemm=%00", 422, "query.gemm"),
        ("/spaces?after=elsewhere", 404, "after is 'elsewhere'"),
        ("/spaces?colour=red", 422, "'colour'"),
        ("/spaces/12x", 422, "'12x'"),
        ("/spaces/7x7x7", 404, "7x7x7:f16:nt"),
        (f"{SPACE}?regime=isolated", 422, "recorded are 63 on"),
        (f"{SPACE}?device=cpu", 422, "on cpu"),
        (f"{SPACE}?family=wgmma", 422, "there are mma"),
        (f"{SPACE}?knob=colour", 422, "'colour'"),
        (f"{SPACE}?knob=tile_m&knob=tile_m", 422, "choose two"),
        (f"{SPACE}?knob=tile_m&knob=tile_n&knob=stages", 422, "query.knob"),
        (f"{SPACE}?after=0123456789abcdef", 404, "0123456789abcdef"),
        (f"/candidates/0123?gemm={GEMM}&device={DEVICE.key}", 404, "'0123'"),
        ("/candidates/0123", 422, "query.gemm"),
    ],
)
def test_what_is_not_there_is_told_with_its_name(
    space: Service, browser: Browser, path: str, status: int, told: str
) -> None:
    answer = space.http.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert told in answer.json()["detail"]
    page = browser.open(path)
    assert page.status_code == status
    assert told in unescape(page.text)


# -- a space ---------------------------------------------------------------------------------------


def test_a_heat_map_has_the_fastest_and_the_counts_of_each_cell(space: Service) -> None:
    heat = _document(space, SPACE, knob=["stages", "tile_m"])["heat_map"]
    cells = {(cell["x"], cell["y"]): cell for cell in heat["cells"]}
    assert heat["x"] == {"knob": "stages", "values": [2, 3, 4, 5]}
    assert heat["y"] == {"knob": "tile_m", "values": [16, 32, 64, 128, 256]}
    assert heat["best_us"] == pytest.approx(FASTEST_US)
    for tile_m, stages in itertools.product(recorded_space.TILES_M, STAGES):
        cell = cells[stages, tile_m]
        assert cell["us"] == pytest.approx(recorded_space.expected_us(tile_m, stages))
        assert (cell["measured"], cell["failed"], cell["pruned"]) == (5, 0, 0)
    for lost, counts in ((FAILED, (0, 1, 0)), (WRONG, (0, 1, 0)), (PRUNED, (0, 0, 1))):
        cell = cells.pop((lost.config["stages"], lost.config["tile_m"]))
        assert (cell["measured"], cell["failed"], cell["pruned"]) == counts
        assert (cell["us"], cell["config_hash"]) == (None, lost.config.digest)
    assert len(cells) == 12


def test_a_cell_leads_to_its_fastest_and_says_in_words_what_failed(space: Service, browser: Browser) -> None:
    best = recorded_space.config(tile_m=64, tile_n=32, stages=4)
    gemm = _tuned(space, 1033, recorded_space.candidate(best, 18.0))
    page = unescape(browser.open(f"/spaces/{gemm}?knob=stages&knob=tile_m").text)
    cells = dict(re.findall(r'<a href="([^"]+)" class="cell[^"]*" aria-label="([^"]+)"', page))
    assert cells[_candidate(best, gemm)] == "stages 4, tile_m 64: fastest 18.00 µs; 5 measured"
    assert cells[_candidate(FAILED.config, gemm)] == "stages 2, tile_m 256: no time; 1 failed"
    assert cells[_candidate(PRUNED.config, gemm)] == "stages 5, tile_m 256: no time; 1 pruned"


def test_the_two_most_important_knobs_are_shown_where_none_is_chosen(space: Service) -> None:
    document = _document(space, SPACE)
    importance = document["importance"]
    assert [share["knob"] for share in importance["shares"]][:2] == ["tile_m", "stages"]
    assert importance["shares"][0]["share"] > 0.8
    assert (importance["candidates"], importance["refusal"]) == (60, None)
    # The one with fewer values across: a page is scrolled down.
    assert [document["heat_map"][axis]["knob"] for axis in "xy"] == ["stages", "tile_m"]
    assert _document(space, SPACE, knob="tile_n")["heat_map"]["y"]["knob"] == "tile_m"


def test_requests_at_once_wait_for_one_computation_of_importance(
    space: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go = threading.Event(), threading.Event()
    computed: list[int] = []

    def slow(times: dict[Config, float]) -> KnobImportance:
        computed.append(len(times))
        begun.set()
        assert go.wait(PATIENCE_S)
        return KnobImportance(len(times), 0.5, ())

    monkeypatch.setattr(importance, "knob_importance", slow)
    path = f"/spaces/{_tuned(space, 1053, recorded_space.candidate(recorded_space.config(tile_m=8), 3.0))}"
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(_document, space, path) for _ in range(4)]
        assert begun.wait(PATIENCE_S)
        go.set()
        answers = [future.result(timeout=PATIENCE_S)["importance"] for future in asked]
    assert [answer["explained"] for answer in answers] == [0.5] * 4
    assert len(computed) == 1


def test_a_family_with_few_candidates_or_knobs_says_so(space: Service, browser: Browser) -> None:
    lone = Config("simt", (("block_m", 8), ("pad", 4)))
    path = f"/spaces/{_tuned(space, 1035, recorded_space.candidate(lone, 50.0))}"
    document = _document(space, path, family="simt")
    assert document["heat_map"] is None
    assert document["importance"] == {
        "candidates": 1,
        "explained": None,
        "shares": [],
        "refusal": "1 measured candidates are too few: it takes 40",
    }
    page = browser.open(f"{path}?family=simt").text
    assert "it takes 40" in page
    assert "do not differ in two knobs" in page


def test_lines_pass_through_the_values_and_the_fastest_tenth_is_on_top(space: Service, browser: Browser) -> None:
    parallel = _document(space, SPACE)["parallel"]
    assert [axis["knob"] for axis in parallel["axes"]] == ["tile_m", "tile_n", "stages"]
    lines = {line["config_hash"]: line for line in parallel["lines"]}
    assert (len(lines), parallel["candidates"], parallel["fast"]) == (63, 63, 6)
    for candidate in recorded_space.every():
        places = lines[candidate.config.digest]["places"]
        values = [axis["values"][place] for axis, place in zip(parallel["axes"], places, strict=True)]
        assert values == [candidate.config[axis["knob"]] for axis in parallel["axes"]]
    times = sorted(line["us"] for line in lines.values() if line["us"])
    assert [line["us"] for line in parallel["lines"][-6:]] == pytest.approx(times[:6][::-1])
    assert [line["is_fast"] for line in parallel["lines"]] == [False] * 57 + [True] * 6
    drawn = re.findall(
        r'<a href="([^"]+)" aria-label="[^"]+"><path d="M[^"]+" class="hit"/><path d="M[^"]+" class="(\w+)"/></a>',
        browser.open(SPACE).text,
    )
    assert [kind for _, kind in drawn] == ["lost"] * 3 + ["line"] * 54 + ["fast"] * 6
    assert browser.open(unescape(drawn[-1][0])).status_code == 200
    fastest = f"/candidates/{parallel['lines'][-1]['config_hash']}?"
    assert drawn[-1][0].startswith(fastest), "a line leads to its candidate"


def test_of_very_many_candidates_some_lines_are_drawn_and_all_of_the_fastest_tenth(space: Service) -> None:
    gemm = Gemm.parse("64x64x64:f16:nt")
    many = [recorded_space.candidate(recorded_space.config(raster=at), 5.0 + at, gemm) for at in range(600)]
    recorded_space.record(space.state.database, many)
    parallel = _document(space, f"/spaces/{gemm}")["parallel"]
    assert (parallel["candidates"], parallel["fast"], len(parallel["lines"])) == (600, 60, MAX_LINES)
    assert [line["us"] for line in parallel["lines"][-60:]] == [5.0 + at for at in range(60)][::-1]
    assert max(line["us"] for line in parallel["lines"]) > 600


def test_candidates_are_listed_fastest_first_50_at_a_time(space: Service) -> None:
    first = _document(space, SPACE)
    second = _document(space, SPACE, after=first["next"])
    rows = first["candidates"] + second["candidates"]
    assert (len(first["candidates"]), first["first"], second["first"], second["next"]) == (50, 1, 51, None)
    assert len({row["config_hash"] for row in rows}) == 63
    times = [row["us"] for row in rows if row["us"]]
    assert times == sorted(times)
    assert rows[0]["slower"] == pytest.approx(1.0)
    assert rows[59]["slower"] == pytest.approx(times[-1] / times[0])
    assert [row["status"] for row in rows[60:]] == ["build_failed", "wrong", "pruned"]
    assert rows[60]["reason"] == FAILED.message
    assert rows[62]["reason"] == f"{PRUNED.rule}: {PRUNED.message}"


@pytest.mark.parametrize("address", [f"{SPACE}?family=mma&knob=tile_m&knob=tile_n", "/spaces?dtype=f32"])
def test_pages_behind_the_first_lead_back_to_it(space: Service, browser: Browser, address: str) -> None:
    for m in range(1, 52):
        space.store.add_candidate(PRUNED.with_(gemm=Gemm.parse(f"{m}x5x7:f32:nn")))
    first = browser.open(address).text
    assert "First page" not in first
    (onward,) = re.findall(r'<a rel="next" href="([^"]+)"', first)
    (back,) = re.findall(r'<a href="([^"]+)">First page</a>', browser.open(unescape(onward)).text)
    assert browser.open(unescape(back)).text == first


def test_times_of_runs_under_other_clocks_are_made_comparable(space: Service) -> None:
    """Where the reference took half as long again, so does a candidate that is as fast as the fastest."""
    slow = recorded_space.candidate(recorded_space.config(tile_m=64, tile_n=16, stages=6), 1.5 * FASTEST_US)
    (samples,) = slow.sample_sets
    slow = slow.with_(sample_sets=(samples.beside("torch.matmul", (45.0, 45.0)),))
    rows = _document(space, f"/spaces/{_tuned(space, 1037, slow)}")["candidates"]
    assert [row["us"] for row in rows] == sorted(row["us"] for row in rows)
    assert {row["config_hash"]: row["slower"] for row in rows}[slow.config.digest] == pytest.approx(1.0)


# -- a candidate -----------------------------------------------------------------------------------


def test_a_pruned_candidate_names_its_rule_and_a_failed_one_its_message(space: Service, browser: Browser) -> None:
    document = _document(space, _candidate(PRUNED.config))
    assert (document["status"], document["rule"], document["us"], document["rank"]) == (
        "pruned",
        "shared_memory",
        None,
        None,
    )
    page = browser.open(_candidate(PRUNED.config)).text
    assert "by the rule <code>shared_memory</code>: a block needs 327680 bytes" in page
    assert "it was not measured" in page
    failed = unescape(browser.open(_candidate(FAILED.config)).text)
    assert 'class="status bad">build failed</span>: ptxas: 300 registers are too many' in failed


def test_a_measured_candidate_is_beside_the_default_and_the_fastest(space: Service, browser: Browser) -> None:
    mine = recorded_space.config(tile_m=16, tile_n=32, stages=2)
    gemm = _tuned(space, 1039, recorded_space.candidate(DEFAULT, 40.0))
    document = _document(space, _candidate(mine, gemm))
    us = recorded_space.expected_us(16, 2)
    assert document["us"] == pytest.approx(us)
    # Only the default is slower than the five with the worst of both knobs.
    assert document["rank"] in range(56, 61)
    assert document["measured"] == 61
    assert document["fastest"]["us"] == pytest.approx(FASTEST_US)
    knobs = {row["knob"]: row for row in document["knobs"]}
    assert list(knobs) == [name for name, _ in DEFAULT.knobs]
    assert knobs["tile_m"]["value"] == 16
    assert knobs["tile_m"]["fastest"] == 64
    assert all(document["meanings"][name] for name in knobs)
    (taken,) = document["sample_sets"]
    assert (taken["reason"], taken["samples"], taken["us"]) == ("search", 5, pytest.approx(us))
    assert taken["baselines"] == [{"name": "torch.matmul", "us": 30.0, "ratio": pytest.approx(30.0 / us)}]
    page = browser.open(_candidate(mine, gemm)).text
    assert unescape(page).count("this one, search") == 1
    assert "1700" in page
    assert "650.5" in page


def test_a_problems_default_is_the_best_familys(space: Service) -> None:
    from tirgemm.families import supporting
    from tirgemm.families.choice import ranked_defaults

    gemm = _tuned(space, 1041)
    default = ranked_defaults(supporting(gemm, DEVICE), gemm, DEVICE, REGIME)[0][1]
    document = _document(space, _candidate(FAILED.config, gemm))
    assert document["default"] == {
        "config_hash": default.digest,
        "config": str(default),
        "family": default.family,
        "us": None,
        "is_recorded": False,
    }
    space.store.add_candidate(recorded_space.candidate(default, 17.0, gemm))
    document = _document(space, _candidate(FAILED.config, gemm))
    assert (document["default"]["us"], document["default"]["is_recorded"]) == (17.0, True)


def test_a_device_that_is_known_by_its_key_alone_has_no_default_and_no_meanings(space: Service) -> None:
    key, gemm = "cuda:sm_89:unheard-of:9", Gemm.parse("129x1043x517:bf16:tn:bias")
    space.store.add_candidate(PRUNED.with_(device_key=key, gemm=gemm))
    document = _document(space, f"/candidates/{PRUNED.config.digest}", gemm=str(gemm), device=key)
    assert (document["default"], document["meanings"]) == (None, {})


def test_a_candidate_leads_to_the_kernel_that_was_made_of_it(space: Service, browser: Browser) -> None:
    candidate = recorded_space.measured()[7].with_(kernel_sha256="ab" * 32)
    other = recorded_space.measured()[8].with_(kernel_sha256="cd" * 32)
    gemm = _tuned(space, 1045, candidate, other)
    kernel = space.store.put_kernel(
        KernelRecord(
            gemm,
            DEVICE,
            "sustained",
            "tuned",
            candidate.config,
            "ab" * 32,
            space.store.put_blob(b"artifact"),
            8,
            None,
            Timings({"sustained": Timing(20.0)}),
        )
    )
    path = _candidate(candidate.config, gemm)
    assert [made["id"] for made in _document(space, path)["kernels"]] == [kernel.id]
    for page in (path, f"/spaces/{gemm}"):
        assert f'href="/kernels/{kernel.id}"' in browser.open(page).text
    for without in (other, FAILED):
        assert _document(space, _candidate(without.config, gemm))["kernels"] == []
