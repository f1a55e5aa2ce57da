"""The ladder measured on a made-up GPU: rows, what is left out and why, and what is drawn of them."""

from __future__ import annotations

import json
import re
from concurrent.futures import Future
from dataclasses import dataclass, field
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from benchmarks.history import History
from tests.helpers.scripts import script
from tirgemm.bench.ladder_report import RungFigures, described, fastest, reported, steps
from tirgemm.bench.ladder_run import LadderRun
from tirgemm.bench.results import ResultsFile, environment, load
from tirgemm.bench.step_race import RACES
from tirgemm.config import Config
from tirgemm.errors import BuildFailed, InvalidRequest
from tirgemm.families.simt import ladder
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.launch import Launch
from tirgemm.service import cli
from tirgemm.service.commands import ladder as command
from tirgemm.service.views.ladder_page import page
from tirgemm.service.views.ladder_terminal import bar, figures, view
from tirgemm.tuning.build.binary import Binary
from tirgemm.tuning.measure import MeasurementCrashed
from tirgemm.tuning.measure.requests import RaceOptions
from tirgemm.tuning.records import Candidate, SampleSet, Status
from tirgemm.tuning.records.memory_store import MemoryStore

check: Any = script("benchmarks/check.py")
render: Any = script("benchmarks/render.py")
tables: Any = script("benchmarks/ladder_tables.py")
ROOT = Path(__file__).resolve().parents[2]
GEMM = Gemm.parse("4096x4096x4096:f32:nn")
BIG = Gemm.parse("16384x16384x16384:f32:nn")
H200 = named_device("sm_90a")
NAMES = [rung.name for rung in ladder.RUNGS]


@dataclass
class MadeUp:
    """Workbench and measurer in one: a package is its rung's name, which takes as long as ``us`` says, else 1000 us."""

    us: dict[str, float] = field(default_factory=dict)
    wrong: str = ""
    unbuildable: str = ""
    dies: str = ""
    """The rung under which every run dies, or all of them (*)."""
    device: Any = H200
    store: MemoryStore = field(default_factory=MemoryStore)
    timed: list[dict[str, Any]] = field(default_factory=list)

    @property
    def measurer(self) -> MadeUp:
        return self

    def baselines(self) -> tuple[str, ...]:
        return ("torch.matmul", "cublaslt_best", "triton")

    def build(self, gemm: Gemm, config: Config) -> Future[Binary]:
        future: Future[Binary] = Future()
        if self.name_of(gemm, config) == self.unbuildable:
            future.set_exception(BuildFailed("NVRTC refuses it"))
        else:
            resources = {"registers": 128, "spill_bytes": 0, "shared_bytes": 1024}
            future.set_result(Binary(b"", "so", Launch((), (), ()), {"kernel.ll": ""}, (), resources))
        return future

    def package(self, gemm: Gemm, config: Config, binary: Binary) -> bytes:
        del binary
        return self.name_of(gemm, config).encode()

    def name_of(self, gemm: Gemm, config: Config) -> str:
        return next((step.name for step in steps(gemm, self.device) if step.config == config), "tuned")

    def verify(self, package: bytes, *, level: str, seed: int) -> Any:
        assert (level, seed) == ("candidate", 5)
        return SimpleNamespace(passed=package.decode() != self.wrong, error=0.5)

    def time(
        self, package: bytes, options: RaceOptions, *, against: dict[str, bytes], baselines: tuple[str, ...], **_: Any
    ) -> SampleSet:
        if self.dies in ("*", *(data.decode() for data in (package, *against.values()))):
            raise MeasurementCrashed("the measuring process died: signal 11")
        run = {"package": package.decode(), "shared": options.shared, "against": against, "baselines": baselines}
        self.timed.append(run)

        def taken(name: str) -> tuple[float, ...]:
            return tuple(self.us.get(name, 1000.0) * (1 + 0.001 * number) for number in range(6))

        others = {name: taken(data.decode()) for name, data in against.items()}
        beside = {name: taken(name) for name in baselines}
        conditions = {
            "at": "2026-11-21",
            "shared": options.shared,
            "clock_mhz": 1980,
            "throttled": [],
            "power_w": 600,
        }
        return SampleSet(taken(package.decode()), "selection", others | beside, conditions)


def rows_of(
    made_up: MadeUp, gemm: Gemm = GEMM, known: list[dict[str, Any]] | None = None, **options: Any
) -> list[dict[str, Any]]:
    run = LadderRun(cast(Any, made_up), seed=5, **options)
    return run.measure(gemm, "sustained", known or [])


def entry(entries: list[RungFigures], name: str) -> RungFigures:
    return next(actual for actual in entries if actual.step.name == name)


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


# -- what is drawn -----------------------------------------------------------------------------------


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


# -- the command -------------------------------------------------------------------------------------


def test_a_dry_run_describes_the_ladder_without_a_gpu(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    options = ["--dry-run", "--device", "sm_86", "--json", "--html", str(tmp_path / "ladder.html"), "--alpha-beta"]
    assert cli.main(["ladder", "4096", "4096", "4096", *options]) == 0
    document = json.loads(capsys.readouterr().out)
    (actual,) = document["ladders"]
    assert actual["gemm"] == "4096x4096x4096:f32:nn:alpha:beta"
    rungs = {rung["name"]: rung for rung in actual["rungs"]}
    assert list(rungs) == NAMES
    assert rungs["tile_1d"]["loads_per_fma"]["shared_elements"] == 1.125
    assert rungs["coalesced"]["knobs"] == {"lanes_n": [1, 32]}
    assert {rung["median_us"] for rung in rungs.values()} == {None}
    assert "coalesced" in (tmp_path / "ladder.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["4096", "4096", "4096", "--device", "cpu"], "--dry-run shows it without"),
        (["4096", "4096", "4096", "--device", "sm_80"], "only named"),
        (["4096", "4096"], "give M, N and K, or --suite"),
        (["1", "2", "3", "--suite", "ladder"], "both given"),
        (["0", "2", "3", "--dry-run"], "m is 0"),
        (["1", "2", "3", "--dry-run", "--device", "cpu"], "name one of sm_80"),
        (["1", "2", "3", "--dry-run", "--regime", "warm"], "regime is 'warm'; it must be one of sustained, isolated"),
        (["1", "2", "3", "--dry-run", "--html", "/nowhere/ladder.html"], "there is no folder /nowhere; make it first"),
        (["1", "2", "3", "--dry-run", "--out", "x.json"], "--dry-run measures nothing: leave out --output"),
        (["1", "2", "3", "--dry-run", "--baselines", "none"], "leave out --baselines"),
        (["--from-results", "x", "--dry-run"], "--from-results measures nothing: leave out --dry-run"),
        (["--from-results", "x", "--suite", "ladder"], "leave out --suite"),
        (["1", "2", "3", "--resume"], "there is no file to go on with: leave out --resume"),
        (["--suite", "ladder", "--dtype", "f16", "--dry-run"], "has problems of its own: leave out --dtype"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ladder", *arguments]) == 2
    assert words in " ".join(capsys.readouterr().err.split())


def stored(folder: Path, name: str, us: dict[str, float], gemm: Gemm = GEMM) -> Path:
    """A results file of the ladder at made-up times."""
    about = environment(H200, None) | {"commit": "0123456789abcdef"}
    file = ResultsFile(folder / name, "ladder", "sustained", about, resume=False)
    file.put(*rows_of(MadeUp(us), gemm))
    return folder / name


def test_stored_results_are_drawn_without_a_gpu(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = stored(tmp_path, "ladder.sustained.json.gz", {"zorder": 1500.0, "default": 800.0, "torch.matmul": 900.0})
    html = tmp_path / "ladder.html"
    assert cli.main(["ladder", "--from-results", str(file), "--html", str(html)]) == 0
    told = capsys.readouterr().out
    assert "NVIDIA H200, sustained, measured at commit 0123456789ab on 2" in " ".join(told.split())
    (bar_line,) = [line for line in told.splitlines() if line.startswith("default")]
    assert bar_line.split()[-3:] == ["171.37", "1.250", "1.125"]
    text = html.read_text()
    assert "measured at commit 0123456789ab" in text
    lengths = [float(each) for each in re.findall(r'<rect class="ours" width="([\d.]+)%"', text)]
    assert len(lengths) == len(NAMES)
    assert max(lengths) == lengths[NAMES.index("default")] == 100
    assert lengths[NAMES.index("zorder")] == pytest.approx(100 * 800 / 1500, abs=0.1)


def test_a_folder_of_stored_results_has_all_devices_and_a_problem_chooses_among_them(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    stored(tmp_path / "one", "ladder.sustained.json", {})
    stored(tmp_path / "two", "ladder.isolated.json", {}, Gemm.parse("2048x2048x2048:f32:nn"))
    (tmp_path / "two" / "simt.sustained.json").write_text("{}")
    assert cli.main(["ladder", "--from-results", str(tmp_path), "--json"]) == 0
    gemms = [each["ladders"][0]["gemm"] for each in json.loads(capsys.readouterr().out)["results"]]
    assert gemms == [str(GEMM), "2048x2048x2048:f32:nn"]
    assert cli.main(["ladder", "2048", "2048", "2048", "--from-results", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["device"]["model"] == "NVIDIA H200"
    assert [each["gemm"] for each in document["ladders"]] == gemms[1:]
    assert cli.main(["ladder", "1", "2", "3", "--from-results", str(tmp_path)]) == 2
    assert f"has no ladder of 1x2x3:f32:nn; it has {GEMM}, 2048x2048x2048:f32:nn" in capsys.readouterr().err


def test_results_that_cannot_be_drawn_are_told_by_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(where: str) -> str:
        assert cli.main(["ladder", "--from-results", where]) == 2
        return " ".join(capsys.readouterr().err.split())

    assert f"there is no results file {tmp_path / 'x.json'}" in refused(str(tmp_path / "x.json"))
    assert f"{tmp_path} has no results file of the ladder" in refused(str(tmp_path))
    file = stored(tmp_path, "ladder.sustained.json", {})
    document = json.loads(file.read_text())
    file.write_text(json.dumps(document | {"format": 1}))
    assert "has format 1; this version of tirgemm reads 2" in refused(str(file))
    file.write_text(json.dumps(document | {"suite": "llama", "rows": []}))
    assert "has no row of the ladder: its suite is 'llama'" in refused(str(file))
    for broken in ("[", "[1]", json.dumps({**document, "environment": {}})):
        file.write_text(broken)
        assert "is not a results file" in refused(str(file))
    monkeypatch.setattr(resources, "files", lambda _: tmp_path)
    assert "comes with no results of the ladder" in refused("shipped")
    stored(tmp_path / "measured" / "gpu", "ladder.sustained.json", {})
    assert cli.main(["ladder", "--from-results", "shipped"]) == 0
    assert str(GEMM) in capsys.readouterr().out


def test_a_suite_goes_into_a_results_file_that_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made_up = MadeUp(device=H200.with_(uuid="GPU-1"))
    monkeypatch.setattr(command, "_target", lambda *_: made_up.device)
    monkeypatch.setattr("tirgemm.tuning.workbench.Workbench", lambda *_, **__: Opened(made_up))
    suite = tmp_path / "two.json"
    suite.write_text(json.dumps({"name": "two", "source": "x", "gemms": [str(GEMM), str(BIG)]}))
    file = tmp_path / "two.sustained.json"
    options = [
        "--suite",
        str(suite),
        "--out",
        str(file),
        "--data",
        str(tmp_path / "data"),
        "--seed",
        "5",
        "--commit",
        "c",
    ]
    assert cli.main(["ladder", *options]) == 0
    assert len(made_up.timed) == 2 * RACES
    rows = load(file)["rows"]
    assert [(row["gemm"], row["variant"]) for row in rows] == [(str(g), name) for g in (GEMM, BIG) for name in NAMES]
    assert cli.main(["ladder", *options, "--resume"]) == 0
    assert len(made_up.timed) == 2 * RACES
    assert "torch.matmul" in capsys.readouterr().out
    document = json.loads(file.read_text())
    for row in document["rows"]:
        if row["gemm"] == str(BIG):
            row["status"] = "skipped"
    file.write_text(json.dumps(document))
    assert cli.main(["ladder", *options, "--resume"]) == 0
    assert len(made_up.timed) == 3 * RACES, "a problem of which nothing was measured is not done"


class Opened:
    """What a workbench is as a context."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __enter__(self) -> Any:
        return self.inner

    def __exit__(self, *_: object) -> None:
        pass


def test_what_is_described_has_no_figures() -> None:
    assert all(actual.us is None and actual.not_slower is None for actual in described(GEMM, H200))
