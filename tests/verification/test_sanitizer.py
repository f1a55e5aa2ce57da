"""Kernels under the sanitizer: what is asked of it, and what its output says."""

from __future__ import annotations

import time
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.verification.wgmma_sample import cases
from tirgemm.artifact import Signer
from tirgemm.config import Config
from tirgemm.hardware import named_device
from verification import alterations, mutants, sanitized_call, sanitizer
from verification.altered import KNOB
from verification.evidence import EvidenceFile
from verification.sanitizer import CLEAN, FOUND, SanitizerReport

H200 = named_device("sm_90a")


# -- mutants under the sanitizer -------------------------------------------------------------------


def test_what_nothing_caught_is_sanitized_together_and_alone_where_that_is_not_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = cases()[0]
    jobs = [
        mutants.MutantRun(case, alterations.Mutant(name, name, "here")) for name in ("", "drop:1", "drop:2", "drop:3")
    ]
    jobs[0] = mutants.MutantRun(case, mutants.UNALTERED)
    file = EvidenceFile(tmp_path / "wgmma.mutants.json.gz", "mutants", "wgmma", H200, commit="abc")
    for job, status in zip(jobs, ("passed", "not caught", "not caught", "hang"), strict=True):
        file.add(job.key, job.row | {"status": status})
    calls: list[tuple[str, int]] = []

    def check(tool: str, packages: list[Path], key: str, uuid: str, _: float) -> dict[str, SanitizerReport]:
        assert (key, uuid) == ("key", "GPU-2")
        calls.append((tool, len(packages)))
        dirty = tool == "racecheck" and any("drop-2" in package.stem for package in packages)
        report = SanitizerReport(FOUND, 1, ("a race",)) if dirty else SanitizerReport(CLEAN)
        return {package.stem: report for package in packages}

    class Bench:
        device = SimpleNamespace(uuid="GPU-2")
        signer = SimpleNamespace(public="key")

        def build(self, *_: object) -> Future[None]:
            made: Future[None] = Future()
            made.set_result(None)
            return made

        def package(self, _: object, config: Config, *__: object) -> bytes:
            return str(config[KNOB]).encode()

    monkeypatch.setattr(sanitizer, "check", check)
    bench = cast(Any, Bench())
    mutants.sanitized(bench, jobs, file, 1, 8, time.monotonic() - 1)
    assert not calls
    mutants.sanitized(bench, jobs, file, 1, 8, time.monotonic() + 300)
    assert [file.rows[job.key]["status"] for job in jobs] == ["passed", "not caught", "racecheck", "hang"]
    assert calls == [("racecheck", 3), *[("racecheck", 1)] * 3, ("memcheck", 2), ("synccheck", 2)]
    mutants.sanitized(bench, jobs, file, 1, 8, time.monotonic() + 300)
    assert len(calls) == 6

    file.add(jobs[0].key, jobs[0].row | {"status": "passed, tools failed", "tools": {"racecheck": "timed_out"}})
    for job in jobs[1:3]:
        file.add(job.key, job.row | {"status": "not caught"})
    calls.clear()
    mutants.sanitized(bench, jobs, file, 1, 1, time.monotonic() + 300)
    assert [file.rows[job.key]["status"] for job in jobs] == ["passed", "not caught", "racecheck", "hang"]
    assert {count for _, count in calls} == {1}
    assert sum(tool == "racecheck" for tool, _ in calls) == 3, "none again: each was alone"


def test_the_sanitizer_s_process_calls_on_the_gpu_that_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[object] = []

    def started(command: list[str]) -> Any:
        assert sanitized_call.main(command[command.index("verification.sanitized_call") + 1 :]) == 0
        return SimpleNamespace(communicate=lambda **_: ("", None))

    monkeypatch.setattr(sanitizer, "program", lambda: "compute-sanitizer")
    monkeypatch.setattr(sanitizer, "help_text", lambda: "")
    monkeypatch.setattr(sanitizer, "started", started)
    monkeypatch.setattr(sanitizer, "require_usable", lambda *_: None)
    monkeypatch.setattr(sanitized_call, "without_torch", lambda: None)
    monkeypatch.setattr(sanitized_call, "gpu_of", said.append)
    monkeypatch.setattr(sanitized_call, "Gpu", lambda device: device)
    monkeypatch.setattr(sanitized_call, "load", lambda file, **_: said.append(Path(file).stem))
    monkeypatch.setattr(sanitized_call, "called", lambda *_: "right")
    sanitizer.check("memcheck", [tmp_path / "a.tirgemm"], Signer.generate().public, "GPU-7", 1.0)
    assert said == ["GPU-7", "a"]


# -- sanitizer -------------------------------------------------------------------------------------

HELP = """
General options:
  --print-limit arg                     ...
Memcheck-specific options:
  --check-bulk-copy arg (=yes)          ...
Racecheck-specific options:
  --check-warpgroup-mma arg (=no)       ...
"""


def test_optional_checks_are_asked_for_where_the_version_has_them() -> None:
    assert sanitizer.options("memcheck", HELP) == ["--check-bulk-copy", "yes"]
    assert sanitizer.options("racecheck", HELP) == ["--check-warpgroup-mma", "yes"]
    assert sanitizer.options("racecheck", "no such option") == []


@pytest.mark.parametrize(
    ("output", "status"),
    [
        ("== begin k\n== end k right\n========= ERROR SUMMARY: 0 errors\n", "clean"),
        (
            "== begin k\n== end k right\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n",
            "clean",
        ),
        (
            "== begin k\n========= Invalid __shared__ write of size 4 bytes\n== end k right\n========= ERROR "
            "SUMMARY: 1 error\n",
            "found",
        ),
        (
            "== begin k\n== end k right\n========= Error: Race reported between Write access\n========= RACECHECK "
            "SUMMARY: 1 hazard\n",
            "found",
        ),
        ("== begin k\n== end k 3 of 9 compared are wrong\n========= ERROR SUMMARY: 0 errors\n", "found"),
        ("Device not supported\n", "failed"),
        ("== begin k\n== end k right\n", "failed"),
    ],
)
def test_words_of_the_sanitizer_are_told_apart(output: str, status: str) -> None:
    assert sanitizer.reports(output, ["k"])["k"].status == status
    assert sanitizer.reports("== begin k\n", ["k"], late=True)["k"].status == "timed_out"
