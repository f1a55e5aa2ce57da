"""``tirgemm explain`` of timelines: recorded, drawn and exported."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.timeline_recordings import _emulated, _recording
from tirgemm.analysis.figures.timeline_chart import timeline_svg
from tirgemm.analysis.timeline.perfetto import perfetto
from tirgemm.analysis.timeline.recording import Recording
from tirgemm.device import Device
from tirgemm.hardware import named_device
from tirgemm.service import cli
from tirgemm.service.explain.page import timeline_page
from tirgemm.tuning.timed_kernel import TimedKernel

_H200 = named_device("sm_90a")


def _run(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str, str]:
    code = cli.main(["explain", *options])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_command_draws_and_exports_what_was_recorded_elsewhere(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "kernel.json.gz"
    _emulated().write(file)
    code, out, err = _run(capsys, "--timeline", str(file))
    assert (code, err) == (0, "")
    assert "emulated, nothing was measured" in out
    assert (tmp_path / "kernel.html").read_text() == timeline_page(_emulated())
    assert json.loads((tmp_path / "kernel.trace.json").read_text()) == json.loads(json.dumps(perfetto(_emulated())))
    code, out, _ = _run(capsys, "--timeline", str(file), "--json")
    document = json.loads(out)["timeline"]
    assert (code, document["source"], document["unit"]) == (0, "emulator", "steps of the emulator")
    assert document["page"] == str(tmp_path / "kernel.html")


def test_what_is_drawn_already_is_not_written_again_and_else_a_folder_that_cannot_be_written_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file, page = tmp_path / "kernel.json", tmp_path / "kernel.html"
    _emulated().write(file)
    assert _run(capsys, "--timeline", str(file))[0] == 0
    # Root may write everywhere.
    monkeypatch.setattr(os, "access", lambda path, _mode: Path(path) != tmp_path)
    written = {each: (each.stat().st_mtime_ns, each.stat().st_ino) for each in tmp_path.iterdir()}
    code, _, err = _run(capsys, "--timeline", str(file))
    assert (code, err) == (0, "")
    assert {each: (each.stat().st_mtime_ns, each.stat().st_ino) for each in tmp_path.iterdir()} == written
    page.write_text("older")
    code, _, err = _run(capsys, "--timeline", str(file))
    assert code == 2
    assert f"is {page}, which this user cannot write for want of access to {tmp_path};" in " ".join(err.split())
    assert page.read_text() == "older"


def test_a_page_that_cannot_be_written_is_refused_before_anything_is_recorded(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "kernel.html").mkdir()
    code, _, err = _run(capsys, "256x128x64:f16:nt", "--device", "cpu", "--timeline", str(tmp_path / "kernel.json"))
    assert code == 2
    assert f"is {tmp_path / 'kernel.html'}, which is a folder" in " ".join(err.split())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("256x128x64:f16:nt", "--device", "sm_90a", "--timeline", "a.json"), "device sm_90a is none"),
        (("256x128x64:f16:nt", "--device", "cpu", "--timeline", "a.json"), "device cpu is none"),
        (("256x128x64:f16:nt", "--device", "cuda:99", "--timeline", "a.json"), "device cuda:99 is not on this machine"),
        (("256x128x64:f16:nt", "--timeline", "a.svg"), "named NAME.json.gz or NAME.json, not 'a.svg'"),
        (("--timeline", "absent.json"), "absent.json cannot be read as a recording"),
        (("--timeline", "absent.json"), "recording: No such file or directory"),
        (("256x128x64:f16:nt", "--timeline", "absent/a.json"), "there is no folder absent; make it first"),
    ],
)
def test_the_command_says_why_it_records_nothing(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], words: str
) -> None:
    code, _, err = _run(capsys, *options)
    assert code != 0
    assert words in " ".join(err.split())


_EXPLAINED = ("1024x1024x512:f16:nt", "--device", "sm_90a", "--family", "wgmma", "--as-written")


def test_the_command_records_the_kernel_that_it_explains(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given: list[TimedKernel] = []

    def record(kernel: TimedKernel, device: Device, environment: dict[str, Any], *, m: int) -> Recording:
        given.append(kernel)
        assert (device, m) == (_H200, 1024)
        assert {"device", "tirgemm", "commit", "date"} <= set(environment)
        return _recording()

    monkeypatch.setattr("tirgemm.service.commands.explain._recording_gpu", lambda _: _H200)
    monkeypatch.setattr("tirgemm.tuning.timed_kernel.record", record)
    file, page = tmp_path / "kernel.json.gz", tmp_path / "page.html"
    code, out, err = _run(capsys, *_EXPLAINED, "--timeline", str(file), "--html", str(page), "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["timeline"] == {
        "recording": str(file),
        "page": str(tmp_path / "kernel.html"),
        "trace": str(tmp_path / "kernel.trace.json"),
        "source": "device",
        "length": 1.95,
        "unit": "us",
    }
    assert dict(given[0].config.knobs) == document["config"]
    assert Recording.read(file) == _recording()
    assert timeline_svg(_recording()) in page.read_text()
    assert (tmp_path / "kernel.trace.json").exists()


def test_the_command_records_on_no_gpu_of_another_kind(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tirgemm.service.commands.explain._recording_gpu", lambda _: named_device("sm_80"))
    code, _, err = _run(capsys, *_EXPLAINED, "--timeline", str(tmp_path / "kernel.json"))
    assert code != 0
    assert "the kernel is for cuda:sm_90a" in " ".join(err.split())
    assert list(tmp_path.iterdir()) == []
