"""``tirgemm candidates``: every recorded candidate with its time, its knobs, or why it was left out; and as CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

import pytest

from tests.helpers.artifact_samples import cpu
from tests.helpers.command_line import Run
from tests.helpers.stored_candidates import FAST, GEMM, Made, made
from tirgemm.service import cli
from tirgemm.tuning.records import Candidate, SampleSet, Status
from tirgemm.tuning_db.data_folder import open_store
from tirgemm.tuning_db.shipped.records import ShippedRecords


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return made(tmp_path_factory.mktemp("data"))


@pytest.fixture
def run(stored: Made, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("COLUMNS", "160")

    def call(*arguments: str, data: Path = stored.data) -> tuple[int, str, str]:
        code = cli.main(["candidates", *arguments, "--data", str(data)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def test_the_fastest_comes_first_with_its_interval_and_the_knobs_that_differ(run: Run) -> None:
    code, out, err = run(str(GEMM))
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == f"{GEMM} on {cpu().key}, sustained: 3 measured, 1 wrong, 1 pruned"
    heads = next(line for line in lines if line.lstrip().startswith("us "))
    assert heads.split() == ["us", "95", "%", "interval", "taken", "in", "error", "MHz", "rows", "order"]
    rows = [line.split() for line in lines if "selection" in line or "search " in line]
    assert [(row[0], row[4]) for row in rows[:3]] == [("8.00", "selection"), ("9.00", "search"), ("10.00", "selection")]
    low, high = float(rows[0][1]), float(rows[0][3])
    assert 7.9 < low <= 8.0 <= high < 8.1
    assert rows[0][5:] == ["0.25", "2600", "4", "rows"]
    assert "the same in all 3: family=sample, pad=0" in out
    assert "registers: 64 rows need 70 registers; the CPU has 32" in out
    assert lines.index(next(x for x in lines if x.startswith("wrong"))) < lines.index(
        next(x for x in lines if x.startswith("pruned"))
    )


def test_csv_has_a_line_for_each_and_every_figure(run: Run) -> None:
    code, out, err = run(str(GEMM), "--csv")
    assert (code, err) == (0, "")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["status"] for row in rows] == ["measured", "measured", "measured", "wrong", "pruned"]
    first = rows[0]
    assert (first["gemm"], first["device"], first["regime"], first["family"]) == (
        str(GEMM),
        cpu().key,
        "sustained",
        "sample",
    )
    assert (first["knob_rows"], first["knob_order"], first["knob_pad"]) == ("4", "rows", "0")
    assert (float(first["selection_us"]), float(first["search_us"])) == (8.0, 8.8)
    assert float(first["selection_low_us"]) <= 8.0 <= float(first["selection_high_us"])
    assert (first["selection_samples"], first["selection_clock_mhz"], first["search_at"]) == (
        "41",
        "2600",
        "2026-08-01T11:00:00+00:00",
    )
    assert (first["error_over_bound"], first["config_hash"], first["predicted_us"]) == ("0.25", FAST.digest, "9.0")
    assert (rows[1]["selection_us"], float(rows[1]["search_us"])) == ("", 9.0)
    assert (rows[4]["rule"], rows[4]["message"]) == ("registers", "64 rows need 70 registers; the CPU has 32")
    assert all(None not in row and None not in row.values() for row in rows), "every line has every column"


def test_json_has_the_raw_samples_too(run: Run) -> None:
    document = json.loads(run(str(GEMM), "--json")[1])
    first = document["candidates"][0]
    assert (first["config"], first["status"]) == (dict(FAST.knobs), "measured")
    assert first["times"]["selection"]["value"] == 8.0
    assert sorted(len(samples["samples_us"]) for samples in first["sample_sets"]) == [41, 41]


def test_the_device_is_named_by_key_kind_or_architecture(run: Run, tmp_path: Path) -> None:
    for name in (cpu().key, "cpu", cpu().arch):
        assert run(str(GEMM), "--device", name)[0] == 0
    code, out, err = run(str(GEMM), "--device", "cuda")
    assert (code, out) == (2, "")
    assert f"no device has candidates of {GEMM} on cuda, sustained; recorded are 5 on {cpu().key}, sustained" in err
    assert "no candidate of 1x2x3:f16:nt is recorded here" in run("1x2x3")[2]
    assert "no device has candidates of" in run(str(GEMM), "--regime", "isolated")[2]
    assert "regime is 'fast'; it must be one of" in run(str(GEMM), "--regime", "fast")[2]
    code, _, err = run(str(GEMM), data=tmp_path)
    assert (code, "holds no tuning database" in err) == (2, True)
    assert not list(tmp_path.iterdir()), "looking made nothing"
    with open_store(tmp_path) as store:
        for key in ("cuda:sm_80:a:1", "cuda:sm_90a:b:1"):
            store.add_candidate(
                Candidate(
                    GEMM, key, "sustained", FAST, Status.MEASURED, error=math.inf, sample_sets=(SampleSet((1.0,)),)
                )
            )
    code, _, err = run(str(GEMM), data=tmp_path)
    assert (code, "more than one device has candidates of" in err) == (2, True)
    code, out, _ = run(str(GEMM), "--device", "sm_80", "--json", data=tmp_path)
    document = json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert (document["device"], document["candidates"][0]["error_over_bound"]) == ("cuda:sm_80:a:1", None)


def test_shipped_candidates_are_listed_and_marked(run: Run) -> None:
    shape = "4096x4096x4096:f16:nt"
    document = json.loads(run(shape, "--json")[1])
    assert document["device"] == "cuda:sm_90a:nvidia-h200:132", "the only device that has some"
    assert len(document["candidates"]) > 200
    assert all(candidate["shipped"] for candidate in document["candidates"])
    assert all(candidate["times"] for candidate in document["candidates"]), "some were only raced"
    own = json.loads(run(str(GEMM), "--json")[1])
    assert not any(candidate["shipped"] for candidate in own["candidates"])
    out = run(shape)[1]
    rows_shown = [line.split() for line in out.splitlines() if "search, shipped" in line]
    assert {row[1] for row in rows_shown} == {"-"}, "a median alone has no interval"
    rows = list(csv.DictReader(io.StringIO(run(shape, "--csv")[1])))
    assert {row["shipped"] for row in rows} == {"yes"}
    assert {row["shipped"] for row in csv.DictReader(io.StringIO(run(str(GEMM), "--csv")[1]))} == {""}


def test_an_own_candidate_stands_for_the_shipped_one_of_its_config(run: Run, tmp_path: Path) -> None:
    file = ShippedRecords().of("cuda:sm_90a:nvidia-h200:132")
    assert file is not None
    shape = "4096x4096x4096:f16:nt"
    first = file.candidates("cuda:sm_90a:nvidia-h200:132", shape, "sustained")[0]
    with open_store(tmp_path) as store:
        store.add_candidate(first.with_(sample_sets=(SampleSet((1.0,)),)))
    actual = json.loads(run(shape, "--json", data=tmp_path)[1])["candidates"]
    (mine,) = [candidate for candidate in actual if candidate["config_hash"] == first.config.digest]
    assert (mine["shipped"], mine["times"]["search"]["value"]) == (False, 1.0)
    assert sum(not candidate["shipped"] for candidate in actual) == 1
