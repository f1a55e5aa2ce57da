"""The results file, its check with planted wrong numbers, and its rendering."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks.history import History
from benchmarks.suite_tables import of_suite
from tests.helpers.scripts import script
from tirgemm import Config, Device, Gemm
from tirgemm.bench.results import (
    MAX_SAMPLES,
    MeasuredKernel,
    ResultsFile,
    baseline_candidates,
    device_folder,
    dump,
    environment,
    measured_row,
    spread,
    unmeasured_row,
)
from tirgemm.bench.suite_file import Suite
from tirgemm.errors import InvalidRequest
from tirgemm.tuning.records import SampleSet

ROOT = Path(__file__).resolve().parents[2]
SHAPES = ("63x65x67:f16:nt", "1x127x33:f16:nn", "513x3x9:f16:nt")
CPU = Device(
    "cpu",
    "x86-64-v3",
    "Some CPU @ 3.1 GHz",
    3,
    2**33,
    features=("avx2",),
    uuid="cpu-1",
    environment=(("python", "3.11.7"), ("tvm", "0.27.0")),
)
CONFIG = Config("x86", (("tile_m", 6), ("pack", "b")))
COMMIT = "c" * 40


check: Any = script("benchmarks/check.py")
render: Any = script("benchmarks/render.py")


def faults(path: Path, suites: Path = ROOT / "benchmarks" / "suites") -> list[str]:
    """What the check says of a file, whose commits it cannot look up."""
    actual: list[str] = check.faults(path, suites, history=History(Path("/")))
    return actual


@pytest.fixture
def suites(tmp_path: Path) -> Path:
    folder = tmp_path / "suites"
    folder.mkdir()
    (folder / "tiny.json").write_text(
        json.dumps({"name": "tiny", "source": "made up", "gemms": SHAPES, "groups": {"thin": [SHAPES[1]]}})
    )
    return folder


def samples(*ours: float, numpy: tuple[float, ...]) -> SampleSet:
    conditions = {"clock_mhz": 3100, "power_w": None, "throttled": False}
    return SampleSet(ours, "selection", {"numpy_f32": numpy}, conditions)


def row(text: str, *actual: SampleSet, variant: str = "default") -> dict[str, Any]:
    return measured_row(
        Gemm.parse(text),
        CONFIG,
        variant,
        actual,
        MeasuredKernel(0.25, 64, "a" * 64, "b" * 64),
    )


@pytest.fixture
def results(tmp_path: Path) -> ResultsFile:
    file = ResultsFile(
        tmp_path / "cpu" / "tiny.sustained.json", "tiny", "sustained", environment(CPU, None, COMMIT), resume=False
    )
    file.put(row(SHAPES[1], samples(1.5, 2.25, numpy=(7.0,)), samples(1.75, numpy=(7.125,))))
    file.put(row(SHAPES[0], samples(10.0, 11.0, numpy=(20.5,)), samples(13.0, numpy=(22.25, 30.0))))
    file.put(unmeasured_row(Gemm.parse(SHAPES[2]), None, "default", "skipped", "no family | writes it"))
    file.arrange([Gemm.parse(text) for text in SHAPES], ["default", "tuned"])
    return file


def test_every_figure_follows_from_the_samples(results: ResultsFile, suites: Path) -> None:
    first, second, third = results.rows
    assert [r["gemm"] for r in results.rows] == list(SHAPES)
    assert (first["median_us"], first["baselines"]["numpy_f32"]["ratio"]) == (11.0, 22.25 / 11.0)
    assert first["tflops"] == pytest.approx(2 * 63 * 65 * 67 / 11e-6 / 1e12)
    assert (third["status"], third["median_us"], third["baselines"]) == ("skipped", None, {})
    actual = results.document["summary"]["default"]["numpy_f32"]
    ratios = [22.25 / 11.0, 7.0625 / 1.75]
    assert actual == {"geomean": pytest.approx(math.sqrt(math.prod(ratios))), "min": min(ratios), "count": 2}
    assert faults(results.path, suites) == []
    assert second["clock_mhz"] == 3100
    assert {(r["commit"], bool(r["at"])) for r in results.rows} == {(COMMIT, True)}


def test_a_row_says_what_each_race_gave_and_how_far_they_lie_apart(results: ResultsFile) -> None:
    first, second = results.rows[0]["races"]
    assert (first["samples"], first["median_us"], first["baselines"]["numpy_f32"]["ratio"]) == (2, 10.5, 20.5 / 10.5)
    assert (second["samples"], second["median_us"], second["baselines"]["numpy_f32"]["ratio"]) == (1, 13, 26.125 / 13)
    assert spread(results.rows[0]) == pytest.approx(13 / 10.5 - 1)


def plant(document: dict[str, Any], where: tuple[Any, ...], value: Any) -> None:
    for part in where[:-1]:
        document = document[part]
    document[where[-1]] = value


@pytest.mark.parametrize(
    ("where", "value", "says"),
    [
        (("rows", 0, "median_us"), 10.9, "median_us is 10.9"),
        (("rows", 0, "tflops"), 99.0, "tflops is 99.0"),
        (("rows", 0, "samples_us", 1), 12.0, "median_us is 11.0"),
        (("rows", 0, "baselines", "numpy_f32", "ratio"), 2.5, "ratio to numpy_f32 is 2.5"),
        (("rows", 0, "baselines", "numpy_f32", "median_us"), 23.0, "median_us of numpy_f32 is 23.0"),
        (("rows", 0, "error"), 1.5, "error is 1.5"),
        (("rows", 0, "error"), None, "error is None"),
        (("rows", 0, "config_hash"), "0" * 16, "config_hash"),
        (("rows", 0, "config", "knobs", "tile_m"), 8, "config_hash"),
        (("rows", 0, "races"), [], "raced 0 times; at least 2"),
        (("rows", 0, "races", 0, "median_us"), 10.4, "races are not what its samples give"),
        (("rows", 0, "races", 1, "baselines", "numpy_f32", "samples"), 1, "races are not what its samples give"),
        (("rows", 0, "races", 1, "baselines", "numpy_f32", "ratio"), 2.0, "races are not what its samples give"),
        (("rows", 0, "commit"), None, "1 rows: it does not say at which commit and when"),
        (("rows", 2, "at"), None, "1 rows: it does not say at which commit and when"),
        (("rows", 0, "source_sha256"), None, "1 rows: it has no source hash"),
        (("format",), 1, "its format is 1, not 2"),
        (("rows", 0, "status"), "fast", "status 'fast'"),
        (("rows", 0, "samples_us"), [], "no samples"),
        (("rows", 2, "median_us"), 1.0, "skipped and has figures"),
        (("rows", 2, "message"), "", "does not say why"),
        (("rows", 2, "gemm"), SHAPES[0], "513x3x9:f16:nt has no row in variant default"),
        (("rows", 2, "gemm"), "7x7x7:f16:nt", "7x7x7:f16:nt is not in suite tiny"),
        (("summary", "default", "numpy_f32", "geomean"), 3.0, "geomean of default against numpy_f32 is 3.0"),
        (("summary", "default", "numpy_f32", "min"), 2.5, "min of default"),
        (("summary", "default", "numpy_f32", "count"), 3, "count of default"),
        (("summary", "tuned"), {"numpy_f32": {"geomean": 2, "min": 2, "count": 1}}, "the summary is over"),
        (("environment",), {}, "environment lacks device"),
        (("regime",), "isolated", "the name tiny.isolated.json"),
        (("rows",), [], "it has no rows"),
        (("rows", 0), {"gemm": SHAPES[0]}, "not a results file"),
    ],
)
def test_the_check_finds_what_was_planted(
    results: ResultsFile, suites: Path, where: tuple[Any, ...], value: Any, says: str
) -> None:
    document = json.loads(results.path.read_text())
    plant(document, where, value)
    results.path.write_text(json.dumps(document))
    assert any(says in sentence for sentence in faults(results.path, suites)), faults(results.path, suites)


def test_the_check_finds_a_row_of_the_default_s_config_that_is_not_the_default(
    results: ResultsFile, suites: Path
) -> None:
    default = samples(10.0, 11.0, 13.0, numpy=(20.5, 22.25, 30.0))
    beside = SampleSet(default.samples_us, "selection", default.baselines | {"default": default.samples_us})
    results.put(row(SHAPES[0], beside, variant="tuned"), row(SHAPES[1], samples(1.5, numpy=(7.0,)), variant="tuned"))
    actual = [sentence for sentence in faults(results.path, suites) if "a ratio of 1" in sentence]
    assert actual == [f"{SHAPES[1]}, tuned: it is the default's config, but not the default's samples at a ratio of 1"]
    document = json.loads(results.path.read_text())
    for entry in document["rows"]:
        if entry["variant"] == "tuned":
            # Raced at another time, when each row had a default of its own.
            entry["conditions"]["at"] = "2026-11-29T18:00:00+00:00"
    slower, foreign = document["rows"][-2:]
    slower["samples_us"] = slower["baselines"]["default"]["samples_us"] = [20.0, 22.0, 26.0]
    foreign["baselines"]["default"] = slower["baselines"]["default"]
    results.path.write_text(json.dumps(document))
    assert [sentence for sentence in faults(results.path, suites) if "a ratio of 1" in sentence] == actual
    lines = [line for line in of_suite(results.document, suites).splitlines() if "| tuned |" in line]
    assert [line.split(" | ")[2] for line in lines[:2]] == ["the default is the best"] * 2
    assert " | 11.00 | " in lines[0]
    assert " | 1.000 | " in lines[0]


def test_the_check_finds_a_double_row_and_a_file_that_is_none(
    results: ResultsFile, suites: Path, tmp_path: Path
) -> None:
    document = json.loads(results.path.read_text())
    document["rows"].append(document["rows"][0])
    results.path.write_text(json.dumps(document))
    assert any("2 rows have the key" in sentence for sentence in faults(results.path, suites))
    (tmp_path / "no.json").write_text("[1]")
    assert "not a results file" in faults(tmp_path / "no.json", suites)[0]
    assert check.main([str(results.path)]) == 1


def test_the_tracked_results_are_right_and_the_tracked_tables_are_theirs(capsys: pytest.CaptureFixture[str]) -> None:
    """Figures, suites, commits where the history is here, and the sources of a few kernels of every evidence file."""
    assert check.main([]) == 0, capsys.readouterr().out
    assert ("commits are not checked" in capsys.readouterr().out) == bool(History(ROOT).unknown)
    assert render.main(["--check"]) == 0


def test_what_waits_to_be_finished_is_right_but_for_the_rows_that_it_lacks() -> None:
    """A suite that is whole belongs to the results."""
    for path in sorted((ROOT / "benchmarks/unfinished").glob("*/*.gz")):
        sentences = faults(path)
        assert [each for each in sentences if "has no row in variant" not in each] == [], path.name
        assert bool(sentences) == path.name.endswith(".json.gz"), path.name


def test_a_file_is_resumed_only_on_the_machine_that_began_it(results: ResultsFile) -> None:
    place = results.document["environment"]
    again = ResultsFile(results.path, "tiny", "sustained", place | {"date": "later", "commit": "other"}, resume=True)
    assert again.find(Gemm.parse(SHAPES[0]), "default") == results.rows[0]
    assert again.find(Gemm.parse(SHAPES[2]), "default") is None, "a skipped shape is measured again"
    assert ResultsFile(results.path, "tiny", "sustained", place, resume=False).rows == []
    old = json.loads(results.path.read_text()) | {"format": 1}
    results.path.write_text(json.dumps(old))
    with pytest.raises(InvalidRequest, match="has format 1, not 2"):
        ResultsFile(results.path, "tiny", "sustained", place, resume=True)
    results.path.write_text(json.dumps(old | {"format": 2}))
    with pytest.raises(InvalidRequest, match=r"tvm was 0\.27\.0, is 0\.28"):
        ResultsFile(results.path, "tiny", "sustained", place | {"tvm": "0.28"}, resume=True)
    results.path.write_text("{}")
    with pytest.raises(InvalidRequest, match="is not a results file"):
        ResultsFile(results.path, "tiny", "sustained", place, resume=True)


def test_a_row_replaces_the_one_of_its_shape_and_variant(results: ResultsFile) -> None:
    results.put(row(SHAPES[0], samples(5.0, numpy=(6.0,)), variant="tuned"))
    results.put(row(SHAPES[0], samples(4.0, numpy=(6.0,)), variant="tuned"))
    tuned = [r for r in json.loads(results.path.read_text())["rows"] if r["variant"] == "tuned"]
    assert [r["median_us"] for r in tuned] == [4.0]
    assert results.document["summary"]["tuned"]["numpy_f32"] == {"geomean": pytest.approx(1.5), "min": 1.5, "count": 1}
    assert not list(results.path.parent.glob(".part-*"))


def test_many_samples_are_thinned_evenly_and_stay_on_one_line() -> None:
    many = tuple(1.0 + i / 1e4 for i in range(1000))
    cells = row(SHAPES[0], SampleSet(many, baselines={"numpy_f32": many, "absent": ()}))
    assert len(cells["samples_us"]) == MAX_SAMPLES
    assert cells["median_us"] == pytest.approx(1.05, abs=1e-3)
    assert list(cells["baselines"]) == ["numpy_f32"]
    text = dump({"rows": [cells]})
    assert json.loads(text) == {"rows": [cells]}
    assert text.count("\n") < 60


def test_a_table_stands_between_its_markers(results: ResultsFile, suites: Path, tmp_path: Path) -> None:
    text = "before\n<!-- results:tiny -->\nold\n<!-- /results:tiny -->\nafter\n"
    assert results.path.parent.name == "cpu"
    written = render.rendered(text, tmp_path, suites)
    assert written == render.rendered(written, tmp_path, suites)
    assert "old" not in written
    assert "| `63x65x67:f16:nt` | default | x86: tile_m 6, pack b | 11.00 | 23.8% |" in written
    assert "skipped: no family \\| writes it" in written
    assert "2.857 (2.023; 2 of 3)" in written
    assert "| thin, geometric mean" in written
    width = {line.count(" | ") for line in written.splitlines() if line.startswith("|")}
    assert len(width) == 1, "every line of the table has the same cells"
    for bad in (
        "<!-- results:cpu/none -->\n<!-- /results:cpu/none -->",
        "<!-- results:none -->\n<!-- /results:none -->",
        "<!-- results:banks/none -->\n<!-- /results:banks/none -->",
        "<!-- results:tiny -->\nnever closed",
        "<!-- results:tiny -->\n<!-- /results -->",
        "<!-- results: -->\n<!-- /results: -->",
    ):
        with pytest.raises(render.MarkerError):
            render.rendered(bad, tmp_path, suites)


def test_render_check_says_what_is_out_of_date_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("no marker\n")
    assert render.main(["--check", str(page)]) == 0
    page.write_text("<!-- results:a/b.c -->\n<!-- /results:a/b.c -->\n")
    assert render.main(["--check", str(page)]) == 2
    assert "names no table" in capsys.readouterr().err


def test_every_way_of_a_baseline_has_its_time_of_the_finals_or_of_the_first_look() -> None:
    choice = {
        "labels": [{"call": "plain"}, {"call": "padded"}, {"call": "slow"}],
        "screened_us": [20.0, 11.0, None],
        "finals_us": {"1": 10.0, "0": 19.0},
    }
    assert baseline_candidates(choice) == [
        {"call": "plain", "us": 19.0},
        {"call": "padded", "us": 10.0},
        {"call": "slow", "us": None},
    ]


def test_every_suite_can_be_read_and_names_its_source() -> None:
    actual = {path.stem: Suite.read(path) for path in (ROOT / "benchmarks" / "suites").glob("*.json")}
    counts = {"square": 8, "deepgemm": 63, "llama": 72, "skinny": 21, "odd": 16, "x86": 6}
    assert {name: len(actual[name].gemms) for name in counts} == counts
    for name, suite in actual.items():
        assert suite.name == name
        assert len(set(suite.gemms)) == len(suite.gemms)
        assert len(suite.source) > 20
    assert "1023x1021x1027:f16:nt" in map(str, actual["x86"].gemms)
    assert {gemm.m_max for gemm in actual["x86"].gemms} >= {1, 16}, (
        "where a library's product of few rows may be faster"
    )


def test_a_suite_that_is_none_is_refused_by_the_member_that_is_wrong(tmp_path: Path) -> None:
    whole = {"name": "x", "source": "y", "gemms": ["5x3x7"]}
    for text, words in (
        ("{}", "it has no member 'name'"),
        ("[]", r"it is \[\]"),
        ("nothing", "Expecting value"),
        ("[" * 99_999, "recursion"),
        (json.dumps({"name": "x", "gemms": []}), "it has no member 'source'"),
        (json.dumps(whole | {"name": 7}), "name is 7; it must be a text"),
        (json.dumps(whole | {"gemms": 3}), "gemms is 3; it must be a list"),
        (json.dumps(whole | {"gemms": "5x3x7"}), "gemms is '5x3x7'; it must be a list"),
    ):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(InvalidRequest, match=rf"bad\.json is not a suite \(an object with .*: .*{words}"):
            Suite.read(tmp_path / "bad.json")
    with pytest.raises(InvalidRequest, match="is not a suite"):
        Suite.read(tmp_path / "absent.json")


def test_a_device_has_a_folder_that_names_it() -> None:
    assert device_folder(CPU) == "some-cpu-3-1-ghz-3"
    gpu = Device("cuda", "sm_90a", "NVIDIA H200", 132, 2**37, uuid="GPU-1")
    assert device_folder(gpu) == "nvidia-h200"


def test_a_wrong_figure_of_the_calls_is_found(tmp_path: Path) -> None:
    source = ROOT / "benchmarks" / "results" / "nvidia-h200" / "calls.json"
    document = json.loads(source.read_text())
    assert faults(source) == []
    document["rows"][0]["median_us"] /= 2
    wrong = tmp_path / "calls.json"
    wrong.write_text(json.dumps(document))
    assert any("median_us" in sentence for sentence in faults(wrong))
