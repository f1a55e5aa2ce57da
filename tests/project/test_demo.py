"""``make demo``: the device that it takes, and what its table says of the kernels."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from tests.helpers.artifact_samples import CONFIG
from tests.helpers.scripts import script
from tirgemm.detect import device as detect
from tirgemm.errors import DeviceUnavailable
from tirgemm.hardware import named_device
from tirgemm.timings import SelectionReason, Timings

REASON = "the default stays: the best of the others is 1.010 times as fast, but only at least 0.990"
ROW: dict[str, Any] = {
    "gemm": "64x64x64:f16:nt",
    "config": str(CONFIG),
    "tuned_us": 12.0,
    "default_us": 12.0,
    "baselines": {"numpy_f32": 30.0},
    "error_over_bound": 0.5,
    "why_default": "",
    "busy": None,
    "call_us": 20.0,
    "certified": True,
}


@pytest.mark.parametrize(("arch", "kind"), [("sm_89", "cuda"), ("sm_75", "cpu"), ("sm_120", "cpu")])
def test_a_gpu_that_no_kernels_are_made_for_is_left_alone(arch: str, kind: str) -> None:
    gpu = replace(named_device("sm_89"), arch=arch, uuid="GPU-1")
    assert script("scripts/demo.py").demo_device(gpu).kind == kind


def test_the_table_says_why_the_default_stays_and_what_was_timed_on_a_busy_machine(
    capsys: pytest.CaptureFixture[str],
) -> None:
    busy = "timed while the machine was busy (a load average of 9.00 on 2 CPUs)"
    script("scripts/demo.py").show([ROW, ROW | {"gemm": "1x2x3:f16:nt", "why_default": REASON, "busy": busy}])
    said = " ".join(capsys.readouterr().out.split())
    assert f"64x64x64:f16:nt: {CONFIG} 1x2x3:f16:nt: {CONFIG}; {REASON} 1 of 2 were {busy}" in said


def test_the_default_has_a_reason_and_another_kernel_none() -> None:
    why = script("scripts/demo_client.py").why_default
    timings = Timings({}, str(CONFIG), SelectionReason(REASON))
    assert why(SimpleNamespace(config=CONFIG, timings=timings)) == REASON
    assert why(SimpleNamespace(config=CONFIG, timings=replace(timings, default="sample(rows=9)"))) == ""


def test_the_second_environment_is_made_anew_for_a_gpu_that_came_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo = script("scripts/demo.py")
    monkeypatch.setattr(demo, "CLIENT_VENV", tmp_path)
    monkeypatch.setattr(demo, "STATE", tmp_path)
    monkeypatch.setattr(demo.subprocess, "run", Mock(side_effect=DeviceUnavailable("set up")))
    (tmp_path / ".installed-cpu").touch()
    os.utime(tmp_path / ".installed-cpu", (2**32, 2**32))
    assert demo.client_environment(detect("cpu")) == tmp_path / "bin" / "python"
    with pytest.raises(DeviceUnavailable, match="set up"):
        demo.client_environment(named_device("sm_89"))


@pytest.mark.parametrize(
    ("ends", "status", "line"),
    [
        (KeyboardInterrupt(), 130, "demo: interrupted; the next `make demo` goes on from what is in .demo\n"),
        (DeviceUnavailable("no worker has it"), 1, "demo: no worker has it\n"),
    ],
)
def test_what_ends_it_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ends: BaseException,
    status: int,
    line: str,
) -> None:
    demo = script("scripts/demo.py")
    monkeypatch.setattr(demo, "demo_device", Mock(side_effect=ends))
    assert demo.main() == status
    assert capsys.readouterr().err == line
