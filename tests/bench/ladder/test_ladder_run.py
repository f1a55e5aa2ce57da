"""The ladder measured on a made-up GPU: its rows, and what is left out and why."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks.history import History
from tests.bench.ladder.made_up_ladder import BIG, GEMM, H200, NAMES, MadeUp, entry, rows_of
from tests.helpers.scripts import script
from tirgemm.bench.ladder_report import fastest, reported
from tirgemm.bench.ladder_run import LadderRun
from tirgemm.bench.results import ResultsFile, environment
from tirgemm.config import Config
from tirgemm.errors import InvalidRequest
from tirgemm.families.simt import ladder
from tirgemm.gemm import Gemm
from tirgemm.service.views.ladder_terminal import figures
from tirgemm.tuning.records import Candidate, SampleSet, Status
from tirgemm.tuning.records.memory_store import MemoryStore

check: Any = script("benchmarks/check.py")


def test_every_rung_is_measured_in_one_run_beside_cublas(tmp_path: Path) -> None:
    made_up = MadeUp({"naive": 9000.0, "coalesced": 3000.0, "torch.matmul": 900.0})
    rows = rows_of(made_up)
    assert [row["variant"] for row in rows] == NAMES
    timed, again = made_up.timed
    assert timed == again, "two races"
    assert (timed["package"], timed["baselines"], timed["shared"]) == ("naive", ("torch.matmul", "cublaslt_best"), True)
    assert list(timed["against"]) == NAMES[1:]
    by_name = {row["variant"]: row for row in rows}
    assert by_name["coalesced"]["baselines"]["naive"]["ratio"] == pytest.approx(3)
    assert by_name["naive"]["baselines"].keys() == {"torch.matmul", "cublaslt_best"}
    assert by_name["naive"]["conditions"]["registers"] == 128
    file = ResultsFile(
        tmp_path / "ladder.sustained.json", "ladder", "sustained", environment(H200, None, "c"), resume=False
    )
    file.document["environment"] |= {"tvm": "0.27", "python": "3.12", "torch_settings": {"allow_tf32": False}}
    file.put(*rows)
    suite = tmp_path / "suites"
    suite.mkdir()
    (suite / "ladder.json").write_text(json.dumps({"name": "ladder", "source": "x", "gemms": [str(GEMM)]}))
    assert check.faults(file.path, suite, history=History(Path("/"))) == []


def test_a_rung_is_slower_than_its_parent_only_with_the_bound_below_098() -> None:
    made_up = MadeUp({"float4": 1000.0, "vthread": 1015.0, "zorder": 1030.0, "pad_store": 800.0})
    entries = reported(rows_of(made_up), GEMM)
    actual = {name: entry(entries, name).not_slower for name in ("naive", "vthread", "zorder", "pad_store")}
    assert actual == {"naive": None, "vthread": True, "zorder": False, "pad_store": True}
    assert entry(entries, "zorder").gain == pytest.approx(1000 / 1030, rel=1e-4)
    assert entry(entries, "zorder").shares.keys() == {"torch.matmul", "cublaslt_best"}
    assert "SLOWER" in figures(entry(entries, "zorder"))
    best = fastest(entries)
    assert best is not None
    assert best.step.name == "pad_store"


def test_what_fails_is_a_row_and_its_children_have_no_ratio_to_it() -> None:
    rows = {row["variant"]: row for row in rows_of(MadeUp(wrong="tile_1d", unbuildable="zorder"))}
    assert (rows["tile_1d"]["status"], rows["zorder"]["status"]) == ("wrong", "build_failed")
    assert "NVRTC refuses it" in rows["zorder"]["message"]
    assert "tile_1d" not in rows["tile_2d"]["baselines"]
    assert {row["status"] for name, row in rows.items() if name not in ("tile_1d", "zorder")} == {"measured"}
    crashed = rows_of(MadeUp(dies="*"))
    assert {row["status"] for row in crashed} == {"crashed"}
    assert all("signal 11" in row["message"] for row in crashed)
    rows = {row["variant"]: row for row in rows_of(MadeUp(dies="tile_1d"))}
    assert rows["tile_1d"]["status"] == "crashed"
    assert {row["status"] for name, row in rows.items() if name != "tile_1d"} == {"measured"}


def test_a_rung_whose_launches_would_take_too_long_is_left_out_by_its_own_smaller_time() -> None:
    known = rows_of(MadeUp({"naive": 400_000.0, "coalesced": 20_000.0}))
    rows = {row["variant"]: row for row in rows_of(MadeUp(), BIG, known, limit_s=180.0)}
    assert rows["naive"]["status"] == "skipped"
    assert "25.7 s by its time at 4096x4096x4096:f32:nn" in rows["naive"]["message"]
    assert rows["coalesced"]["status"] == "measured"
    assert "naive" not in rows["coalesced"]["baselines"]


def test_problems_that_rungs_do_not_take_are_rows_with_the_reason() -> None:
    small = Gemm.parse("64x64x64:f32:nn")
    rows = {row["variant"]: row for row in rows_of(MadeUp(), small)}
    assert rows["naive"]["status"] == "measured"
    assert (rows["float4"]["status"], rows["default"]["status"]) == ("skipped", "measured")
    assert "needs block_m=128" in rows["float4"]["message"]


def test_unknown_baselines_impossible_limits_and_devices_that_are_only_named_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="cutlass"):
        rows_of(MadeUp(), baselines=["cutlass"])
    with pytest.raises(InvalidRequest, match="measuring a problem are -1; they must be above 0"):
        rows_of(MadeUp(), seconds=-1.0)
    with pytest.raises(InvalidRequest, match="a rung's launches are nan"):
        rows_of(MadeUp(), limit_s=float("nan"))
    with pytest.raises(InvalidRequest, match="only named"):
        LadderRun(cast(Any, SimpleNamespace(device=H200, measurer=None)))


def recorded(*configs: Config) -> MemoryStore:
    """A store in which they are recorded, the fastest first."""
    store = MemoryStore()
    for number, config in enumerate(configs):
        samples = (SampleSet((1000.0 + number,), baselines={"torch.matmul": (900.0,)}),)
        store.add_candidate(Candidate(GEMM, H200.key, "sustained", config, Status.MEASURED, sample_sets=samples))
    return store


def test_the_fastest_recorded_config_is_one_more_rung() -> None:
    default = ladder.config("default", GEMM, H200)
    best = default.with_(pad=8)
    rows = rows_of(MadeUp({"tuned": 900.0}, store=recorded(best, default)), recorded=True)
    assert [row["variant"] for row in rows] == [*NAMES, "tuned"]
    actual = entry(reported(rows, GEMM), "tuned")
    assert actual.step.knobs == {"pad": (4, 8)}
    assert actual.gain == pytest.approx(1000 / 900, rel=1e-3)
    for store, words in ((recorded(default), "nothing faster"), (recorded(), "no config of simt")):
        row = rows_of(MadeUp(store=store), recorded=True)[-1]
        assert (row["variant"], row["status"]) == ("tuned", "skipped")
        assert words in row["message"]
