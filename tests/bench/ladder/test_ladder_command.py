"""`tirgemm ladder`: described without a GPU, drawn from stored results, measured into a results file."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from tests.bench.ladder.made_up_ladder import BIG, GEMM, H200, NAMES, MadeUp, rows_of
from tirgemm.bench.results import ResultsFile, environment, load
from tirgemm.bench.step_race import RACES
from tirgemm.gemm import Gemm
from tirgemm.service import cli
from tirgemm.service.commands import ladder as command


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
