"""Ceilings that were measured: where they come from, which kernels they bound, and that the report names them so."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.mma_ceiling import KINDS
from tirgemm.analysis.roofline import MeasuredRate, Measurements, measured_for
from tirgemm.analysis.sass.program import parse
from tirgemm.device import Device
from tirgemm.errors import InvalidRequest, MeasurementFailed
from tirgemm.families import family_named
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.service import cli
from tirgemm.service.explain.rates import rates_in_results, rates_in_store
from tirgemm.service.explain.report_text import roofline as roofline_section
from tirgemm.timings import NotTimed, StreamTiming, Timing, Timings
from tirgemm.tuning import finish
from tirgemm.tuning.explain import chosen, explain
from tirgemm.tuning.records import KernelRecord, SampleSet
from tirgemm.tuning.records.memory_store import MemoryStore

H200 = named_device("sm_90a")
GEMM = Gemm.parse("256x256x256:f16:nt")
STREAM = StreamTiming(10**6, 0.25, 20, 4000.0, "2026-08-01T12:00:00+00:00")
RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "nvidia-h200"


def kernel(store: MemoryStore, device: Device = H200, stream: StreamTiming | NotTimed | None = None) -> KernelRecord:
    config = family_named("simt").default(GEMM, device, "sustained")
    timings = Timings({"sustained": Timing(8.0)}, stream=stream)
    digest = hashlib.sha256(b"kernel").hexdigest()
    return store.put_kernel(
        KernelRecord(GEMM, device, "sustained", "tuned", config, digest, store.put_blob(b"x"), 1, None, timings)
    )


def results(folder: Path, device: Device = H200, **members: Any) -> Path:
    document = {"format": 1, "environment": {"device_key": device.key}} | members
    (folder / f"{len(list(folder.iterdir()))}.json").write_text(json.dumps(document))
    return folder


def function(*words: str) -> Any:
    lines = [f"        /*{16 * at:04x}*/   {word} ;\n" for at, word in enumerate((*words, "EXIT"))]
    return parse('\t.target\tsm_90a\n\t.section\t.text.k,"ax",@progbits\n' + "".join(lines))[0]


def test_a_kernels_own_stream_comes_before_the_newest_of_its_device() -> None:
    store = MemoryStore()
    assert rates_in_store(store, H200) == {}
    own = kernel(store, stream=STREAM)
    kernel(store, device=named_device("sm_80"), stream=replace(STREAM, read_gbps=1000.0))
    newest = kernel(store, stream=replace(STREAM, read_gbps=4100.0))
    kernel(store)
    kernel(store, stream=NotTimed("the measuring process died"))
    assert rates_in_store(store, H200)["dram"].rate == 4100.0
    assert newest.id in rates_in_store(store, H200)["dram"].taken
    assert rates_in_store(store, H200, own)["dram"].rate == 4000.0


def test_results_of_the_device_give_the_median_stream_and_the_regimes_ceiling_of_mma(tmp_path: Path) -> None:
    results(tmp_path, streams=[{"read_gbps": 4500.0}, {"read_gbps": 4400.0}])
    results(tmp_path, streams=[{"read_gbps": 4560.0}])
    results(tmp_path, device=named_device("sm_80"), streams=[{"read_gbps": 1.0}])
    summary = {kind: {"sustained": 600.0, "isolated": 650.0} for kind in KINDS}
    results(tmp_path, suite="mma_ceiling", summary=summary)
    actual = rates_in_results(tmp_path, H200, "isolated")
    assert actual["dram"].rate == 4500.0
    assert {name: rate.rate for name, rate in actual.items() if name != "dram"} == {
        "mma.sync:f16:f32": 650.0,
        "mma.sync:bf16:f32": 650.0,
        "mma.sync:f16:f16": 650.0,
    }


def test_the_kept_results_of_the_h200_have_its_rate_of_mma() -> None:
    rates = rates_in_results(RESULTS, H200, "sustained")
    assert 500 < rates["mma.sync:f16:f32"].rate < dict(H200.peak_tflops)["f16"]


def test_a_folder_without_rates_of_the_device_is_refused(tmp_path: Path) -> None:
    results(tmp_path, device=named_device("sm_80"), streams=[{"read_gbps": 1.0}])
    with pytest.raises(InvalidRequest, match="no results file with a rate that was measured on cuda:sm_90a"):
        rates_in_results(tmp_path, H200, "sustained")
    with pytest.raises(InvalidRequest, match="no results file"):
        rates_in_results(tmp_path / "none", H200, "sustained")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(InvalidRequest, match=r"broken\.json is not a results file"):
        rates_in_results(tmp_path, H200, "sustained")
    shapeless: tuple[dict[str, Any], ...] = (
        {"streams": [{"read": 1.0}]},
        {"streams": 3},
        {"suite": "mma_ceiling", "summary": {"f16": 3}},
    )
    for number, members in enumerate(shapeless):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(InvalidRequest, match=r"0\.json is not a results file: (KeyError|TypeError)"):
            rates_in_results(results(folder, **members), H200, "sustained")


def test_the_rate_of_an_instruction_bounds_kernels_that_have_it_alone() -> None:
    known = {"dram": MeasuredRate(4000.0, "x"), "mma.sync:f16:f32": MeasuredRate(600.0, "y")}
    hmma, wide = "HMMA.16816.F32 R4, R8, R12, R4", "HGMMA.64x128x16.F32 R24, gdesc[UR4], R24"
    assert measured_for(known, GEMM, function(hmma))["compute"].rate == 600.0
    assert "compute" not in measured_for(known, Gemm.parse("256x256x256:bf16:nt"), function(hmma))
    assert "compute" not in measured_for(known, GEMM, function("FFMA R4, R8, R12, R4"))
    assert "compute" not in measured_for(known, GEMM, function(wide, hmma))


def test_the_report_says_of_every_ceiling_whether_it_was_measured() -> None:
    rates = {"dram": MeasuredRate(4000.0, "by hand"), "mma.sync:f16:f32": MeasuredRate(600.0, "by hand, too")}
    explanation = explain(GEMM, chosen(GEMM, H200, "mma"), H200, measured=Measurements(rates=rates))
    assert explanation.roofline is not None
    assert {c.name: (c.measured, c.taken) for c in explanation.roofline.ceilings} == {
        "compute": (True, "by hand, too"),
        "dram": (True, "by hand"),
        "l2": (False, ""),
        "shared": (False, ""),
    }
    section = roofline_section(explanation)
    assert [cells[2].text for cells in section.rows].count("measured") == 2
    assert "measured: memory (every operand once): by hand" in section.lines


def test_tuning_notes_the_stream_and_is_not_lost_without_it() -> None:
    samples = SampleSet((250.0, 260.0, 240.0), "selection", {}, {"bytes": 10**9, "at": "now"})
    noted = finish._stream(lambda: samples)
    assert noted == StreamTiming(10**9, 250.0, 3, 4000.0, "now")

    def failing() -> SampleSet:
        raise MeasurementFailed("no")

    assert finish._stream(failing) == NotTimed("no")


def test_the_command_takes_measured_rates(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    results(folder, streams=[{"read_gbps": 4321.0}])
    options = ["explain", str(GEMM), "--device", "sm_90a", "--family", "simt", "--data", str(tmp_path / "data")]
    assert cli.main([*options, "--measured", str(folder), "--json"]) == 0
    ceilings = {c["name"]: c for c in json.loads(capsys.readouterr().out)["roofline"]["ceilings"]}
    assert (ceilings["dram"]["rate"], ceilings["dram"]["measured"]) == (4321.0, True)
    assert not ceilings["compute"]["measured"]
    assert cli.main([*options, "--measured", str(tmp_path)]) == 2
