"""Tables over the suites, the reasons in them and the check of what benches write, on made-up results files."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest

from benchmarks import suite_tables
from benchmarks.reasons import Floors, reasons, spread
from service.results import ResultsFile, environment, load, measured_row, unmeasured_row
from tests.unit.test_results import check, plant, render
from tirgemm import Config, Device, Gemm
from tirgemm.tuning.measured_configs import Entry, MeasuredConfigs, Session
from tirgemm.tuning.records import SampleSet, Status

GPU = Device(
    "cuda", "sm_90a", "NVIDIA H200", 132, 2**37, uuid="GPU-1", environment=(("python", "3.12"), ("tvm", "0.27"))
)
KNOBS = {"tile_m": 128, "tile_n": 128, "split": 1, "swap": 0, "load": "tma", "schedule": "cooperative"}
SUITES = {
    "square": ["1024x1024x1024:f16:nt", "8192x8192x8192:f16:nt"],
    "deepgemm": ["16x24576x1536:f16:nt", "16x576x7168:f16:nt", "128x4096x7168:f16:nt"],
    "llama": ["1x28672x4096:f16:nt"],
    "skinny": ["64x64x8192:f16:nt"],
    "odd": ["1025x1024x1024:f16:nt", "1024x1025x1024:f16:nt"],
}
# Speed of default and tuned over torch.matmul; the tuned one takes 10 us.
SPEEDS = {
    "1024x1024x1024:f16:nt": (0.91, 0.96), "8192x8192x8192:f16:nt": (1.0, 1.05), "16x24576x1536:f16:nt": (1.1, 1.21),
    "16x576x7168:f16:nt": (1.0, 1.0), "128x4096x7168:f16:nt": (1.2, 1.2), "1x28672x4096:f16:nt": (1.5, 1.6),
    "64x64x8192:f16:nt": (2.0, 2.0), "1025x1024x1024:f16:nt": (0.98, 0.99), "1024x1025x1024:f16:nt": (4.0, 5.0),
}  # fmt: skip


def config(**changes: Any) -> Config:
    return Config("wgmma", tuple((KNOBS | changes).items()))


def contest(text: str, read_gbps: float, count: int = 50, **knobs: Any) -> list[dict[str, Any]]:
    """The default's and the tuned row of one run."""
    default, tuned = SPEEDS[text]
    baselines = {"torch.matmul": (10.0 * tuned,) * count, "cublaslt_best": (10.0 * tuned / 1.1,) * count}
    conditions = {"clock_mhz": 1410, "power_w": 690.0, "throttled": ["power_cap"]}
    about = {"at": "2026-11-21T13:00:00+00:00", "read_gbps": read_gbps, "swapped": False}
    ours = {"default": (10.0 * tuned / default,) * count, "tuned": (9.9, 10.1) * (count // 2)}
    return [
        measured_row(
            Gemm.parse(text), config(tile_k=64 + 64 * (variant == "tuned"), **knobs), variant,
            SampleSet(raw, "selection", baselines | ({"default": ours["default"]} if variant == "tuned" else {}), conditions),
            error=0.5, workspace_bytes=0, artifact_sha256="a" * 64, conditions=about,
        )
        for variant, raw in ours.items()
    ]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A device's results: every suite in both regimes, the isolated ones compressed."""
    for regime, ending in (("sustained", "json"), ("isolated", "json.gz")):
        for name, gemms in SUITES.items():
            (tmp_path / f"{name}.json").write_text(json.dumps({"name": name, "source": "made up", "gemms": gemms}))
            path = tmp_path / "results" / "gpu" / f"{name}.{regime}.{ending}"
            file = ResultsFile(path, name, regime, environment(GPU, None), resume=False)
            read = file.add_stream(SampleSet((250.0,) * 3, "selection", {}, {"bytes": 10**9, "at": "now"}))
            for text in gemms:
                file.put(*contest(text, read, load="repack" if "1025" in text else "tma"))
            file.arrange([Gemm.parse(text) for text in gemms], ["default", "tuned"])
    (tmp_path / "odd.json").write_text(
        json.dumps({"name": "odd", "source": "x", "gemms": SUITES["odd"], "groups": {"odd m": SUITES["odd"][:1]}})
    )
    return tmp_path / "results" / "gpu"


def cells(table: str, first: str) -> list[str]:
    """The cells of the first line that begins with a cell."""
    line = next(line for line in table.splitlines() if line.startswith(f"| {first} |"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_the_summary_has_means_by_suite_group_and_over_the_four_suites(folder: Path) -> None:
    table = suite_tables.summary(folder, folder.parents[1])
    assert table.index("sustained;") < table.index("isolated;")
    square = math.sqrt(0.96 * 1.05)
    assert cells(table, "**square**") == [
        f"{square:.3f} (0.960)", f"{square / 1.1:.3f} ({0.96 / 1.1:.3f})", "", f"{math.sqrt(0.91):.3f} (0.910)",
        f"{math.sqrt(0.91 / 0.96 / 1.05):.3f} ({0.91 / 0.96:.3f})",
    ]  # fmt: skip
    assert cells(table, "from 4096 on")[0] == "1.050 (1.050)"
    assert cells(table, "odd m")[0] == "0.990 (0.990)"
    deepgemm = (1.21 * 1.0 * 1.2) ** (1 / 3)
    mean = statistics.geometric_mean([square, deepgemm, 1.6, 2.0])
    assert cells(table, "**mean over square, deepgemm, llama, skinny**")[0] == f"**{mean:.3f}** (0.960)"


def test_shapes_without_a_measurement_are_not_passed_over(folder: Path) -> None:
    path = folder / "odd.sustained.json"
    file = ResultsFile(path, "odd", "sustained", load(path)["environment"], resume=True)
    gemm = Gemm.parse(SUITES["odd"][1])
    file.put(unmeasured_row(gemm, None, "tuned", "skipped", "n is odd | TMA"))
    assert cells(suite_tables.summary(folder, folder.parents[1]), "**odd**")[0] == "0.990 (0.990; 1 of 2)"
    assert cells(suite_tables.behind(folder, folder.parents[1]), f"`{gemm}`")[-3:-1] == ["skipped", "n is odd \\"]
    assert "skipped: n is odd" in suite_tables.shapes(folder, folder.parents[1])
    (folder / "llama.sustained.json").unlink()
    assert "mean over" not in suite_tables.summary(folder, folder.parents[1]).partition("isolated;")[0]


def test_the_worst_shapes_come_first(folder: Path) -> None:
    lines = suite_tables.worst(folder, folder.parents[1]).splitlines()[2:]
    deepgemm = [line for line in lines if line.startswith("| deepgemm | sustained")]
    assert [line.split("`")[1] for line in deepgemm] == [SUITES["deepgemm"][i] for i in (1, 2, 0)]


def test_bandwidth_counts_the_shapes_of_many_weights_and_lists_the_others(folder: Path) -> None:
    table = suite_tables.bandwidth(folder, folder.parents[1])
    large, small = Gemm.parse("16x24576x1536:f16:nt"), Gemm.parse("16x576x7168:f16:nt")
    share = large.nbytes / 10.0 / 1e3 / 4000
    assert cells(table, f"`{large}`")[-1] == f"{share:.1%}"
    assert cells(table, f"`{small}`")[-3:] == [f"{small.nbytes / 4e6:.2f}", f"{small.nbytes / 1e4:.0f}", ""]
    other = Gemm.parse("1x28672x4096:f16:nt").nbytes / 10.0 / 1e3 / 4000
    mean = math.sqrt(share * other)
    assert cells(table, "**all of at least 25 MB of weights**")[-1] == f"**{mean:.1%}** (least {share:.1%}, 2 shapes)"


def test_every_shape_behind_a_baseline_is_listed_with_a_reason(folder: Path) -> None:
    table = suite_tables.behind(folder, folder.parents[1])
    assert table.startswith("Slower than a baseline: 4 of 9 in sustained; 4 of 9 in isolated.")
    row = cells(table, "`1024x1024x1024:f16:nt`")
    assert row[:2] == ["square", "sustained"]
    assert row[4] == "torch.matmul 0.960, cublaslt_best 0.873"
    assert "one wave of 64 tiles on 132 SMs" in row[5]
    assert cells(table, "`16x576x7168:f16:nt`")[4] == "cublaslt_best 0.909", "a draw with torch.matmul is no loss"
    assert "rows that TMA cannot load: load=repack" in cells(table, "`1025x1024x1024:f16:nt`")[5]
    assert "8192x8192" in table
    assert "64x64x8192" not in table


@pytest.mark.parametrize(
    ("gemm", "knobs", "us", "read", "throttled", "says"),
    [
        ("64x64x8192:f16:nt", {"split": 8}, 3.0, 4000.0, [], "launch-bound: 3.00 us, the fastest shape of all takes 2.00 us"),
        ("1024x1024x1024:f16:nt", {"split": 1}, 9.0, 4000.0, [], "one wave of 64 tiles on 132 SMs"),
        ("16x576x7168:f16:nt", {"tile_n": 32, "split": 4}, 9.0, 4000.0, [], "one wave of 72 tiles in 4 parts of k on 132 SMs"),
        ("16x576x7168:f16:nt", {"tile_m": 64, "tile_n": 16, "swap": 1, "split": 4}, 9.0, 4000.0, [], "one wave of 36 tiles"),
        ("2048x2048x1024:f16:nt", {}, 90.0, 4000.0, [], "256 tiles in 2 waves, 97% full"),
        ("2048x1536x1024:f16:nt", {}, 90.0, 4000.0, [], "192 tiles in 2 waves, 73% full"),
        ("2048x1536x1024:f16:nt", {"schedule": "stream"}, 90.0, 4000.0, [], "nothing in the data"),
        ("2048x1536x1024:f16:nt", {"resident": 2, "tile_n": 64}, 90.0, 4000.0, [], "384 tiles in 2 waves, 73% full"),
        ("16x24576x1536:f16:nt", {}, 22.0, 4000.0, [], "bound by memory: its bytes take 19.08 us at 4000 GB/s"),
        ("8192x8192x8192:f16:nt", {}, 1500.0, 4000.0, ["power_cap"], "power-capped at 1410 MHz"),
        ("1025x1024x1024:f16:nt", {"load": "copy"}, 90.0, 4000.0, [], "rows that TMA cannot load: load=copy"),
    ],
)  # fmt: skip
def test_reasons_are_what_the_numbers_say(
    gemm: str, knobs: dict[str, Any], us: float, read: float, throttled: list[str], says: str
) -> None:
    row = {
        "gemm": gemm, "median_us": us, "samples_us": [us] * 9, "throttled": throttled, "clock_mhz": 1410,
        "config": config(**knobs).to_json(), "conditions": {"read_gbps": read},
    }  # fmt: skip
    found = reasons(row, Floors(2.0, 132))
    if "97%" in says:
        assert "waves" not in found, "nearly full waves are no reason"
    else:
        assert says in found
    if not throttled:
        assert "power" not in found


def test_spread_is_the_quartiles_distance() -> None:
    assert spread({"samples_us": [10.0, 10.0, 10.0]}) == 0.0
    assert spread({"samples_us": [9.0, 10.0, 11.0]}) == pytest.approx(0.2)
    assert spread({"samples_us": [9.0]}) == 0.0


def test_markers_name_the_tables_of_a_device(folder: Path) -> None:
    for name in suite_tables.TABLES:
        text = f"<!-- results:gpu/{name} -->\n<!-- /results:gpu/{name} -->\n"
        written = render.rendered(text, folder.parent, folder.parents[1])
        assert suite_tables.TABLES[name](folder, folder.parents[1]) in written
        assert written == render.rendered(written, folder.parent, folder.parents[1])
        widths = {
            block: {line.count(" | ") for line in block.splitlines() if line.startswith("|")}
            for block in written.split("\n\n")
        }
        assert all(len(found) < 2 for found in widths.values()), "lines of one table have the same cells"
    with pytest.raises(render.MarkerError, match="names no folder"):
        render.rendered("<!-- results:cpu/summary -->\n<!-- /results:cpu/summary -->", folder.parent, folder.parents[1])
    one = "<!-- results:gpu/square.isolated -->\n<!-- /results:gpu/square.isolated -->"
    assert "8192x8192x8192" in render.rendered(one, folder.parent, folder.parents[1]), "a compressed file is found"


def test_what_the_bench_writes_passes_the_check(folder: Path) -> None:
    paths = check.tracked(folder)
    assert len(paths) == 10
    assert [s for path in paths for s in check.problems(path, folder.parents[1])] == []


@pytest.mark.parametrize(
    ("where", "value", "says"),
    [
        (("streams", 0, "read_gbps"), 5000.0, "read_gbps of stream 0 is 5000.0"),
        (("streams", 0, "samples_us"), [100.0], "median_us of stream 0"),
        (("rows", 0, "conditions", "read_gbps"), 4800.0, "read_gbps 4800.0 was not measured"),
        (("rows", 1, "baselines", "default", "samples_us"), [9.0] * 50, "samples of default differ"),
        (("rows", 1, "baselines", "torch.matmul", "samples_us"), [9.0] * 50, "samples of torch.matmul differ"),
        (("rows", 1, "samples_us"), [10.0] * 49, "49 samples are fewer than 50"),
    ],
)  # fmt: skip
def test_the_check_finds_what_was_planted_in_a_contest(
    folder: Path, where: tuple[Any, ...], value: Any, says: str
) -> None:
    path = folder / "square.isolated.json"
    document = load(folder / "square.isolated.json.gz")
    plant(document, where, value)
    path.write_text(json.dumps(document))
    found = check.problems(path, folder.parents[1])
    assert any(says in sentence for sentence in found), found


def test_the_check_reads_a_searchs_file(tmp_path: Path) -> None:
    path = tmp_path / "configs.json.gz"
    found = MeasuredConfigs(GPU, "torch.matmul", [{}])
    found.add(Session(Gemm.parse("1x2x3"), "sustained", 0, 0.0), [Entry(0, config(), Status.MEASURED, 2.0)])
    found.save(path)
    assert check.problems(path) == []
    found.add(Session(Gemm.parse("1x2x3"), "sustained", 0, 0.0), [Entry(0, config(), Status.WRONG, 2.0)])
    found.save(path)
    assert "took 2.0 us" in check.problems(path)[0]
    path.write_bytes(path.read_bytes()[:-9])
    assert check.problems(path)
