"""Timelines on a Hopper GPU: kernels with time stamps are right, and what they record lies within their time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tirgemm.analysis.timeline.recording import Recording
from tirgemm.bench.results import environment
from tirgemm.detect import devices
from tirgemm.families import family_named
from tirgemm.gemm import Gemm
from tirgemm.service import cli
from tirgemm.tuning.timed_kernel import record, timed_kernel

GPUS = [device for device in devices() if device.kind == "cuda" and device.arch == "sm_90a"]
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not GPUS, reason="this machine has no Hopper GPU")]


@pytest.mark.parametrize(
    "text", ["4096x4096x4096:f16:nt", "128x4096x7168:f16:nt", "777x1003x123:f16:nt:beta", "1..512x4096x4096:bf16:nn"]
)
def test_a_kernel_records_its_timeline(text: str, tmp_path: Path) -> None:
    gemm, (gpu, *_) = Gemm.parse(text), GPUS
    config = family_named("wgmma").default(gemm, gpu, "sustained")
    recording = record(timed_kernel(gemm, config, gpu), gpu, environment(gpu, None), blocks=1000)
    assert recording.measured
    assert recording.environment["driver"]
    assert list(recording.faults()) == []
    assert {track.role for track in recording.tracks} >= {"producer", "consumer 0"}
    assert all(track.recorded for track in recording.tracks)
    assert 1 < len({track.sm for track in recording.tracks}) <= gpu.units
    assert 200 < recording.cycles_per_us <= 1.05 * gpu.clock_mhz
    for track in recording.tracks:
        busy = sum(span.length for span in track.steps)
        assert 0 < busy <= track.ended.cycles - track.begun.cycles
    # A floor that no kernel is under: the multiplications at the tensor cores' highest rate.
    peak = dict(gpu.peak_tflops).get("f16", 0.0)
    if peak:
        assert recording.length > 2 * gemm.m_max * gemm.n * gemm.k / peak / 1e6
    file = tmp_path / "kernel.timeline.json.gz"
    recording.write(file)
    assert Recording.read(file) == recording


def test_the_command_records_draws_and_exports(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "kernel.json.gz"
    shape = ("1024x1024x1024:f16:nt", "--family", "wgmma", "--as-written")
    assert cli.main(["explain", *shape, "--timeline", str(file), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)["timeline"]
    assert (document["source"], document["unit"]) == ("device", "us")
    assert Recording.read(file).length == document["length"]
    assert (tmp_path / "kernel.html").exists()
    assert json.loads((tmp_path / "kernel.trace.json").read_text())["otherData"]["source"] == "device"
