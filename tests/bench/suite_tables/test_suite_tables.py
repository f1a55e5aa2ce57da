"""Tables over the suites and the reasons in them, and the check of what benches write, on made-up results files."""

from __future__ import annotations

import gzip
import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest

from benchmarks import suite_tables
from tests.bench.suite_tables.made_up_results import GPU, SUITES, cells, config, contest
from tests.bench.test_results import COMMIT, check, faults, plant, render
from tirgemm import Gemm
from tirgemm.bench.results import FORMAT, MeasuredKernel, ResultsFile, environment, load, measured_row, unmeasured_row
from tirgemm.tuning.measure.baselines.torch_baseline import PINNED
from tirgemm.tuning.records import Candidate, SampleSet, Status
from tirgemm.tuning_db import transfer
from tirgemm.tuning_db.data_folder import open_database
from tirgemm.tuning_db.store import SqlStore


def test_large_outputs_of_short_k_stand_beside_writing_alone(tmp_path: Path) -> None:
    assert suite_tables.stores(tmp_path / "gpu", tmp_path).startswith("Not measured yet: `tirgemm bench holes")
    path = tmp_path / "gpu" / "holes.sustained.json"
    file = ResultsFile(
        path, "holes", "sustained", environment(GPU, None, COMMIT) | {"torch_settings": PINNED}, resume=False
    )
    about = {"bytes": 10**9, "at": "now", "write_us": [300.0, 250.0, 200.0]}
    read = file.add_stream(SampleSet((200.0,) * 3, "selection", {}, about))
    for text in ("1024x1024x1024:f16:nt", "7168x9216x64:f16:nt"):
        file.put(*contest(text, read)[1:])
    assert load(path)["streams"][0]["write_gbps"] == pytest.approx(4000.0)
    table = suite_tables.stores(tmp_path / "gpu", tmp_path)
    assert cells(table, "`7168x9216x64:f16:nt`")[1:] == ["132.1", "10.00", "13212", "330.3%"]
    assert "1024x1024x1024" not in table
    assert "write_gbps" not in " ".join(faults(path))
    document = load(path)
    document["streams"][0]["write_gbps"] = 4100.0
    path.write_text(json.dumps(document))
    assert "write_gbps of stream 0" in " ".join(faults(path))


def test_the_summary_has_means_by_suite_group_and_over_the_four_suites(folder: Path) -> None:
    table = suite_tables.summary(folder, folder.parents[1])
    assert table.index("sustained;") < table.index("isolated;")
    square = math.sqrt(0.96 * 1.05)
    assert cells(table, "**square**") == [
        f"{square:.3f} (0.960)",
        f"{square / 1.1:.3f} ({0.96 / 1.1:.3f})",
        "",
        f"{math.sqrt(0.91):.3f} (0.910)",
        f"{math.sqrt(0.91 / 0.96 / 1.05):.3f} ({0.91 / 0.96:.3f})",
    ]
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
    assert "skipped: n is odd \\| TMA" in suite_tables.shapes(folder, folder.parents[1])
    (folder / "llama.sustained.json").unlink()
    assert "mean over" not in suite_tables.summary(folder, folder.parents[1]).partition("isolated;")[0]


def test_bandwidth_counts_the_shapes_of_many_weights_and_lists_the_others(folder: Path) -> None:
    table = suite_tables.bandwidth(folder, folder.parents[1])
    large, small = Gemm.parse("16x24576x1536:f16:nt"), Gemm.parse("16x576x7168:f16:nt")
    share = large.nbytes / 10.0 / 1e3 / 4000
    assert cells(table, f"`{large}`")[-1] == f"{share:.1%}"
    assert cells(table, f"`{small}`")[-3:] == [f"{small.nbytes / 4e6:.2f}", f"{small.nbytes / 1e4:.0f}", ""]
    other = Gemm.parse("1x28672x4096:f16:nt").nbytes / 10.0 / 1e3 / 4000
    mean = math.sqrt(share * other)
    assert cells(table, "**all of at least 25 MB of weights**")[-1] == f"**{mean:.1%}** (least {share:.1%}, 2 shapes)"


def test_the_shapes_show_how_far_their_races_lie_apart(folder: Path) -> None:
    path = folder / "square.isolated.json.gz"
    gemm = Gemm.parse(SUITES["square"][1])
    file = ResultsFile(path, "square", "isolated", load(path)["environment"], resume=True)
    races = [SampleSet((us,) * 50, "selection", {"torch.matmul": (12.0,) * 50}) for us in (10.0, 10.4)]
    row = measured_row(gemm, config(), "tuned", races, MeasuredKernel(0.5, 0, "a" * 64, "b" * 64))
    file.put(row)
    table = suite_tables.shapes(folder, folder.parents[1]).partition("square: NVIDIA H200, isolated")[2]
    assert cells(table, f"`{gemm}`")[1:3] == ["10.20", "4.0%"]
    old = load(path) | {"format": 1}
    path.write_bytes(gzip.compress(json.dumps(old).encode()))
    assert "square: NVIDIA H200, isolated" not in suite_tables.shapes(folder, folder.parents[1]), "it is not published"


def test_sources_of_proposals_are_averaged_over_spaces_and_seeds(tmp_path: Path) -> None:
    def row(space: str, *over: list[float]) -> dict[str, Any]:
        return {"space": space, "points": 9, "source": "half", "over_optimum": over}

    rows = [row("simt, complete", [2.0, 1.0]), row("a alone", [1.0, 1.0], [4.0, 1.0])]
    rows += [row("b alone", [4.0, 1.0], [16.0, 1.0]), row("b with others", [2.0, 1.0])]
    (tmp_path / "proposal_sources.json").write_text(json.dumps({"trials": [8, 16], "rows": rows}))
    lines = suite_tables.proposals(tmp_path, tmp_path).splitlines()
    assert lines[0] == "| space | source | 8 trials | 16 trials |"
    assert lines[2:] == [
        "| simt, complete; 1 x 1 searches | half | 2.000 | 1.000 |",
        "| recorded configs of `wgmma`, alone; 2 x 2 searches | half | 4.000 | 1.000 |",
        "| recorded configs of `wgmma`, with others; 1 x 1 searches | half | 2.000 | 1.000 |",
    ]


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
        assert all(len(actual) < 2 for actual in widths.values()), "lines of one table have the same cells"
    other = render.rendered(
        "<!-- results:cpu/summary -->\n<!-- /results:cpu/summary -->", folder.parent, folder.parents[1]
    )
    assert "Not measured yet: `tirgemm bench square" in other


def test_what_the_bench_writes_passes_the_check(folder: Path) -> None:
    paths = check.tracked(folder)
    assert len(paths) == 10
    assert [s for path in paths for s in faults(path, folder.parents[1])] == []


@pytest.mark.parametrize(
    ("where", "value", "says"),
    [
        (("streams", 0, "read_gbps"), 5000.0, "read_gbps of stream 0 is 5000.0"),
        (("streams", 0, "samples_us"), [100.0], "median_us of stream 0"),
        (("rows", 0, "conditions", "read_gbps"), 4800.0, "read_gbps 4800.0 was not measured"),
        (("rows", 1, "baselines", "default", "samples_us"), [9.0] * 100, "samples of default differ"),
        (("rows", 1, "baselines", "torch.matmul", "samples_us"), [9.0] * 100, "samples of torch.matmul differ"),
        (("rows", 1, "races", 0, "samples"), 49, "a race of 49 samples has fewer than 50"),
    ],
)
def test_the_check_finds_what_was_planted_in_a_contest(
    folder: Path, where: tuple[Any, ...], value: Any, says: str
) -> None:
    path = folder / "square.isolated.json"
    document = load(folder / "square.isolated.json.gz")
    plant(document, where, value)
    path.write_text(json.dumps(document))
    actual = faults(path, folder.parents[1])
    assert any(says in sentence for sentence in actual), actual


def test_the_check_reads_a_records_file(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl.gz"
    right = Candidate(
        Gemm.parse("1x2x3"), GPU.key, "sustained", config(), Status.MEASURED, sample_sets=(SampleSet((2.0,)),)
    )
    with open_database(tmp_path, None) as db:
        SqlStore(db).add_candidate(right)
        raced = SampleSet((2.0,), "report")
        SqlStore(db).add_candidate(right.with_(gemm=Gemm.parse("3x2x3"), sample_sets=(raced,)))
        transfer.export_records(db, path)
        assert check.faults(path) == []
        SqlStore(db).add_candidate(right.with_(gemm=Gemm.parse("2x2x3"), sample_sets=()))
        transfer.export_records(db, path)
    (sentence,) = check.faults(path)
    assert "2x2x3" in sentence
    assert "is measured and took None us" in sentence
    path.write_bytes(path.read_bytes()[:-9])
    assert faults(path)


def ratio_row(text: str, variant: str, **ratios: float) -> dict[str, Any]:
    return {"gemm": text, "variant": variant, "baselines": {name: {"ratio": ratio} for name, ratio in ratios.items()}}


def written(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    about = environment(GPU, None, COMMIT)
    document = {"format": FORMAT, "suite": name, "regime": "sustained", "environment": about, "rows": rows}
    (folder / f"{name}.sustained.json").write_text(json.dumps(document))


def test_kernel_sets_are_shown_by_n_and_k_with_the_m_where_they_lose_most(folder: Path) -> None:
    assert suite_tables.sets(folder, folder.parents[1]) == "Not measured yet: `python benchmarks/kernel_sets/race.py`."
    rows = [
        ratio_row("1x96x64:f16:nt", "set", tuned=0.9, cublaslt_best=1.2),
        ratio_row("5x96x64:f16:nt", "set", tuned=1.0, cublaslt_best=1.2),
        ratio_row("8x32x64:f16:nt", "set", tuned=0.96),
    ]
    written(folder, "rows", [row | {"conditions": {"effort": "quick"}} for row in rows])
    table = suite_tables.sets(folder, folder.parents[1])
    assert "; both asked for with effort quick; geometric" in table
    assert cells(table, "96 x 64") == ["2", "0.949 (0.900)", "1.200 (1.200)", "1"]
    assert cells(table, "32 x 64") == ["1", "0.960 (0.960)", "", "8"]
    assert cells(table, "**all**")[:2] == ["3", "0.952 (0.900)"]


def test_invariant_kernels_are_summed_up_by_the_suite_of_their_shapes(folder: Path) -> None:
    assert "Not measured yet" in suite_tables.invariant(folder, folder.parents[1])
    rows = [
        ratio_row(f"{SUITES['llama'][0]}:invariant", "tuned", unrestricted=0.8),
        ratio_row(f"{SUITES['deepgemm'][0]}:invariant", "tuned", unrestricted=1.0, triton_invariant=2.0),
        ratio_row(f"{SUITES['deepgemm'][1]}:invariant", "tuned", unrestricted=0.9, triton_invariant=2.0),
        ratio_row(f"{SUITES['llama'][0]}:invariant", "default", unrestricted=0.7),
    ]
    written(folder, "invariant", rows)
    lines = suite_tables.invariant(folder, folder.parents[1]).splitlines()
    assert [line for line in lines if "; " in line][1:] == [
        "| llama; 1 | tuned | 0.800 (0.800) |  |  |  |",
        "| deepgemm; 2 | tuned | 0.949 (0.900) |  |  | 2.000 (2.000) |",
        "| **all**; 3 | tuned | 0.896 (0.800) |  |  | 2.000 (2.000; 2 of 3) |",
        "| llama; 1 | default | 0.700 (0.700) |  |  |  |",
        "| **all**; 1 | default | 0.700 (0.700) |  |  |  |",
    ]


def test_zero_shot_stands_for_a_default_that_was_not_measured(folder: Path) -> None:
    before = suite_tables.summary(folder, folder.parents[1])
    path = folder / "llama.sustained.json"
    document = load(path)
    renamed = [row | {"variant": row["variant"].replace("default", "zero_shot")} for row in document["rows"]]
    path.write_text(json.dumps(document | {"rows": renamed}))
    assert cells(before, "**llama**")[3] == "1.500 (1.500)"
    assert suite_tables.summary(folder, folder.parents[1]) == before
