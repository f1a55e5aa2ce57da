"""Every command's output at every width: it fits, nothing is cut, and a pipe has it without padding; in a terminal,
too."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from tests.cli.test_cli_tune import FakeTune, fake
from tests.helpers.artifact_samples import SIGNER, certified
from tests.helpers.fake_service import FakeService
from tests.helpers.scripts import script
from tests.helpers.stored_candidates import GEMM, Made, compiled_for_a_gpu, made
from tests.helpers.terminal import on_terminal
from tirgemm._client import http
from tirgemm._terminal import console
from tirgemm.artifact import Trust
from tirgemm.service import cli

__all__ = ["fake"]
ROOT = Path(__file__).resolve().parents[2]
WIDTHS = (40, 80, 120, 200)
# What a line of a table or of a tree is drawn with.
_DRAWN = re.compile(r"[─└├│]+")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("widths")


@pytest.fixture(scope="module")
def stored(folder: Path) -> Made:
    return made(folder / "data" / "tirgemm")


@pytest.fixture(autouse=True)
def home(folder: Path, stored: Made, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:  # noqa: ARG001
    for name in ("CONFIG", "CACHE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(folder / name.lower()))
    monkeypatch.chdir(folder)
    Trust.default().add(SIGNER.public)
    (folder / "kernel.tirgemm").write_bytes(certified(GEMM))
    yield folder
    console.MODE.json = False


def words(text: str) -> Counter[str]:
    return Counter(_DRAWN.sub(" ", text).split())


def assert_whole(run: Callable[[], str], monkeypatch: pytest.MonkeyPatch, *, changes: bool = False) -> None:
    """What ``run`` prints fits every width, and has at each all the words that a pipe gets.

    ``changes``: a narrow console gets another table, so that no word is asked for.
    """
    monkeypatch.delenv("COLUMNS", raising=False)
    piped = run()
    assert piped.strip()
    assert not re.search(r"[ \t]+$", piped, re.MULTILINE), "a pipe gets no padding"
    for width in WIDTHS:
        monkeypatch.setenv("COLUMNS", str(width))
        said = run()
        for line in said.splitlines():
            to_paste = line.startswith("to use it: tirgemm ")
            assert to_paste or cell_len(line) <= width or len(_DRAWN.sub(" ", line).split()) == 1, (width, line)
        assert "…" not in said
        if not changes:
            assert words(piped) - words(said) == Counter(), width


COMMANDS: dict[str, tuple[str, ...]] = {
    "devices": ("devices",),
    "version": ("version",),
    "--version": ("--version",),
    "verify": ("verify", "kernel.tirgemm", "--no-run"),
    "export": ("export", "kernel.tirgemm", "out.so"),
    "explain": ("explain", "129x67x31:f16:nt", "--device", "sm_80", "--family", "simt", "--as-written"),
    "explain of tiles": ("explain", "512x512x512:f16:nt", "--device", "sm_90a", "--family", "wgmma", "--as-written"),
    "show": ("show", "kernel.tirgemm"),
    "compare": ("compare", "{fast}", "{slow}"),
    "db info": ("db", "info"),
    "db check": ("db", "check", "--data", "empty"),
    "db export": ("db", "export", "records.jsonl.gz"),
    "trust list": ("trust", "list"),
    "kernels show": ("kernels", "show", "{fast}"),
    "db gc": ("db", "gc", "--dry-run"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_fits_and_is_whole(
    name: str, stored: Made, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "db check":
        from tirgemm.tuning_db.data_folder import open_store

        with open_store(Path("empty")):
            pass
    arguments = [word.format(fast=stored.fast.id, slow=stored.slow.id) for word in COMMANDS[name]]

    def run() -> str:
        assert cli.main(arguments) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    assert_whole(run, monkeypatch)


@pytest.mark.parametrize(
    "arguments", [("candidates", str(GEMM)), ("kernels", "list"), ("ladder", "512", "512", "512", "--dry-run")]
)
def test_what_is_laid_out_otherwise_on_a_narrow_console_fits(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run() -> str:
        assert cli.main(list(arguments)) == 0
        return capsys.readouterr().out

    assert_whole(run, monkeypatch, changes=True)


def test_a_call_fits(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run() -> str:
        assert cli.main(["call", "kernel.tirgemm"]) == 0
        return capsys.readouterr().out

    assert_whole(run, monkeypatch, changes=True)


def test_get_fits_and_is_whole(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    service, real = FakeService(), http.ServiceConnection

    def session(url: str, **options: Any) -> http.ServiceConnection:
        return real(url, **options | {"transport": service, "patience": 0.05})

    monkeypatch.setattr("tirgemm.client.ServiceConnection", session)

    def run() -> str:
        assert cli.main(["get", str(service.gemm), "--trust", SIGNER.public]) == 0
        return capsys.readouterr().out

    assert_whole(run, monkeypatch)


def test_tune_fits_and_is_whole(
    fake: FakeTune,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert fake is not None

    def run() -> str:
        assert cli.main(["tune", str(GEMM), "--data", "tuned", "-o", "k.tirgemm"]) == 0
        return capsys.readouterr().out

    assert_whole(run, monkeypatch)


def test_bench_fits_and_is_whole(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from tirgemm.service.commands.bench import _show

    actual = {"geomean": 1.234, "min": 0.987, "count": 17}
    summary = {
        variant: dict.fromkeys(("default", "torch.matmul", "cublaslt_best"), actual) for variant in ("default", "tuned")
    }

    def run() -> str:
        _show("x86, sustained: benchmarks/results/amd-epyc-2/x86.sustained.json", summary)
        return capsys.readouterr().out

    assert_whole(run, monkeypatch)


def test_the_report_of_machine_code_fits_and_is_whole(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu = compiled_for_a_gpu(folder)

    def run() -> str:
        assert cli.main(["show", str(gpu)]) == 0
        assert cli.main(["compare", str(gpu), str(gpu)]) == 0
        return capsys.readouterr().out

    assert_whole(run, monkeypatch)


def test_the_measured_ladder_fits(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.bench.ladder.made_up_ladder import GEMM as PROBLEM
    from tests.bench.ladder.made_up_ladder import MadeUp, rows_of
    from tirgemm.bench.ladder_report import reported
    from tirgemm.service.views.ladder_terminal import view

    baselines = {"torch.matmul": 152.7, "cublaslt_best": 160.25}
    entries = reported(rows_of(MadeUp({"naive": 9000.0, "torch.matmul": 900.0})), PROBLEM)

    def run() -> str:
        console.out.print(view(PROBLEM, entries, baselines))
        return capsys.readouterr().out

    assert_whole(run, monkeypatch, changes=True)
    monkeypatch.setenv("COLUMNS", "80")
    assert re.search(r"^naive .*▏? +15\.23 ", run(), re.MULTILINE)


def test_the_demos_table_fits_and_names_what_it_leaves_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    demo = script("scripts/demo.py")
    row = {
        "gemm": "384x1000x640:f16:nt",
        "config": "x86(tile_m=14, vectors=2)",
        "tuned_us": 12.3,
        "default_us": 20.0,
        "baselines": {"numpy_f32": 300.0, "torch.linear": 100.0},
        "error_over_bound": 0.01,
        "call_us": 14.0,
        "certified": True,
        "why_default": "the default stays: the best of the others is 1.010 times as fast, but only at least 0.990",
        "busy": "timed while the machine was busy (a load average of 9.00 on 2 CPUs): times and ratios may be far off",
    }

    def run() -> str:
        demo.show([row, row | {"gemm": "255x257x259:f16:nn", "baselines": {"numpy_f32": 1.0}}])
        return capsys.readouterr().out

    assert_whole(run, monkeypatch, changes=True)
    monkeypatch.setenv("COLUMNS", "80")
    narrow = run()
    assert "certified" in narrow
    assert "Not shown in 80 columns of text: error" in narrow


@pytest.mark.parametrize("columns", [50, 100])
def test_a_terminal_is_filled_and_not_exceeded(columns: int, folder: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    environment |= {"TERM": "xterm-256color", "XDG_DATA_HOME": str(folder / "data")}
    for arguments in (["devices"], ["show", "kernel.tirgemm"], ["candidates", str(GEMM)]):
        command = [sys.executable, "-m", "tirgemm.service.cli", *arguments]
        code, seen = on_terminal(command, columns, environment | {"PYTHONPATH": str(ROOT)}, folder)
        assert code == 0
        assert "\x1b[" in seen, "a terminal gets colours"
        lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen).splitlines()
        assert all(cell_len(line) <= columns or len(line.split()) == 1 for line in lines), arguments
        assert max(map(cell_len, lines)) > 0.7 * columns, "the width is used"
