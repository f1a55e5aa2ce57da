"""``tirgemm tune``: what it passes on, what it prints, how it is interrupted; and the live view's arithmetic."""

from __future__ import annotations

import io
import json
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from service import cli
from service.commands.live import SearchState, Watch
from tests.unit.artifact_samples import CONFIG, cpu, packed
from tirgemm import Gemm
from tirgemm.artifact import Trust, load
from tirgemm.errors import Cancelled
from tirgemm.tuning.records import Certificate, KernelRecord

SHAPE = "33x17x19:f16:nt"
EVENTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("started", {"gemm": SHAPE, "budget": {"trials": 4, "seconds": 9.0}}),
    ("fallback", {"kernel": "1", "config": "x86(a=1)", "timings": {"sustained": {"median_us": 12.0}, "default": {}}}),
    ("batch", {"proposed": 4, "trials": 4, "pruned": {"registers": 7, "too_small": 2}}),
    ("candidate", {"status": "measured", "trials": 4, "of": 4, "us": 9.0, "best_us": 9.0, "best": "x86(a=2)"}),
    ("candidate", {"status": "crashed", "trials": 4, "of": 4, "us": None, "best_us": 9.0, "best": "x86(a=2)"}),
    ("candidate", {"status": "measured", "trials": 4, "of": 4, "us": 6.0, "best_us": 6.0, "best": "x86(a=3)"}),
    ("selected", {"kernel": "2", "config": "x86(a=3)", "timings": {}}),
    ("done", {"kernel": "2", "config": "x86(a=3)", "timings": {}}),
)


def record(gemm: Gemm) -> KernelRecord:
    timing = {
        "median_us": 6.0,
        "samples": 3,
        "baselines": {"default": {"median_us": 12.0, "ratio": 2.0}},
        "conditions": {},
    }
    certificate = Certificate("a" * 64, True, ({"name": "exact"},), "numpy fp64")
    return KernelRecord(
        gemm, cpu(), "sustained", "tuned", CONFIG, "a" * 64, "b" * 64, 10, certificate,
        {"sustained": timing, "isolated": {"error": "no"}, "default": {"config": "x86(a=1)"}}, 4, "now", "2",
    )  # fmt: skip


class FakeTune:
    """Stands for ``tirgemm.tune``: tells EVENTS, or waits to be cancelled."""

    def __init__(self) -> None:
        self.keywords: dict[str, Any] = {}
        self.interrupted = False

    def __call__(self, gemm: Gemm, device: Any, regime: str, budget: Any, **keywords: Any) -> Any:
        self.keywords = keywords | {"gemm": gemm, "device": device, "regime": regime, "budget": budget}
        if self.interrupted:
            os.kill(os.getpid(), signal.SIGINT)
            assert keywords["cancel"].wait(10)
            raise Cancelled("tuning was cancelled; 3 records are kept")
        for kind, data in EVENTS:
            keywords["on_event"](kind, data)
        data = packed(gemm, signer=keywords["signer"])
        return SimpleNamespace(record=record(gemm), package=data, save=lambda path: Path(path).write_bytes(data))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeTune:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    found = FakeTune()
    monkeypatch.setattr("tirgemm.tuning.tune.tune", found)
    return found


def test_tune_passes_its_options_on_and_prints_one_document(fake: FakeTune, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--trials", "4", "--seconds", "9", "--seed", "5", "--family", "x86", "--regime", "isolated"]
    assert cli.main(["tune", SHAPE, "--data", "data", *options, "-o", "k.tirgemm", "--device", "cpu", "--json"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    found = json.loads(said.out)
    assert (found["role"], found["config_hash"], found["file"]) == ("tuned", CONFIG.digest, "k.tirgemm")
    assert found["search"]["statuses"] == {"measured": 2, "crashed": 1}
    assert found["search"]["pruned"] == {"registers": 7, "too_small": 2}
    given = fake.keywords
    assert (str(given["gemm"]), given["device"].kind, given["regime"]) == (SHAPE, "cpu", "isolated")
    assert (given["budget"].trials, given["budget"].seconds, given["seed"], given["families"]) == (4, 9.0, 5, ["x86"])
    assert Trust.default().keys == frozenset(), "tuning trusts nobody by itself"
    assert load(Path("k.tirgemm"), trust=Trust.of(found["signer"])).gemm == Gemm.parse(SHAPE)


def test_tune_takes_folder_database_and_locks_from_the_variables_that_an_image_sets(
    fake: FakeTune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIRGEMM_DATA", str(tmp_path / "volume"))
    monkeypatch.setenv("TIRGEMM_DB", f"sqlite:///{tmp_path / 'other.db'}")
    monkeypatch.setenv("TIRGEMM_LOCK_DIR", str(tmp_path / "locks"))
    assert cli.main(["tune", SHAPE, "--device", "cpu", "--json"]) == 0
    assert (tmp_path / "volume" / "signing.key").exists()
    assert (tmp_path / "other.db").exists()
    assert fake.keywords["lock_dir"] == tmp_path / "locks"


def test_tune_shows_the_figures_and_trusts_its_key_when_told(
    fake: FakeTune, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["tune", SHAPE, "--data", "data", "--trust", "-o", "k.tirgemm"]) == 0
    said = capsys.readouterr()
    assert "tuned; certified" in said.out
    assert "2.000" in said.out
    assert "best 9.00 us  x86(a=2)" in said.err
    assert "best 6.00 us  x86(a=3)" in said.err
    assert said.err.count("best") == 2, "a candidate that is no better is not told"
    assert Trust.default().keys == {fake.keywords["signer"].public}
    assert cli.main(["verify", "k.tirgemm", "--no-run"]) == 0


def test_the_first_interrupt_cancels_and_keeps_the_records(fake: FakeTune, capsys: pytest.CaptureFixture[str]) -> None:
    fake.interrupted = True
    before = signal.getsignal(signal.SIGINT)
    assert cli.main(["tune", SHAPE, "--data", "data"]) == 1
    assert "3 records are kept" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["0x1x1"], "gemm field m is 0"),
        ([SHAPE, "--device", "abacus"], "device 'abacus' is unknown"),
        ([SHAPE, "--seconds", "-1"], "budget seconds is -1"),
        ([SHAPE, "--seed", "-1"], "--seed"),
    ],
)
def test_bad_input_is_refused_before_anything_is_made(
    fake: FakeTune, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert cli.main(["tune", *arguments, "--data", "data"]) == 2
    assert says in capsys.readouterr().err
    assert not Path("data").exists()
    assert not fake.keywords


def test_the_live_view_shows_the_best_the_statuses_and_the_rules() -> None:
    now = [0.0]
    state = SearchState(Gemm.parse(SHAPE), clock=lambda: now[0])
    for kind, data in EVENTS[:-2]:
        now[0] += 1.5
        state(kind, data)
    assert (state.stage, state.elapsed, state.default_us) == ("searching", 9.0, 12.0)
    shown = io.StringIO()
    Console(file=shown, width=120).print(state)
    text = shown.getvalue()
    for words in (
        "33x17x19:f16:nt",
        "6.00 us",
        "2.00 of the default's speed",
        "2 measured, 1 crashed",
        "4/4",
        "registers 7, too_small 2",
    ):
        assert words in text


def test_the_live_view_redraws_on_a_terminal() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    with Watch(SearchState(Gemm.parse(SHAPE)), console) as watch:
        for kind, data in EVENTS:
            watch(kind, data)
        time.sleep(0.3)
    assert "x86(a=3)" in screen.getvalue()
