"""``tirgemm tune``: what it passes on, what it prints, and how it is interrupted."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers.artifact_samples import CONFIG, certified, cpu
from tests.waiting import PATIENCE_S
from tirgemm import Gemm
from tirgemm.artifact import Trust, load
from tirgemm.errors import Interrupted
from tirgemm.events import Event, event_from_json
from tirgemm.service import cli
from tirgemm.timings import (
    BaselineTime,
    NotTimed,
    SearchEnd,
    SearchSummary,
    SelectionReason,
    StreamTiming,
    Timing,
    Timings,
)
from tirgemm.tuning.records import Certificate, KernelRecord
from tirgemm.tuning.tuned_kernel import TuneRequest
from tirgemm.tuning.tuning_task import Control

SHAPE = "33x17x19:f16:nt"
# The bandwidth of reading alone, which a GPU's kernel has beside its regimes: a median, and no baselines.
STREAM = StreamTiming(10**9, 239.0, 20, 4.2e3, "2026-08-01T12:00:00+00:00")
EVENTS: tuple[Event, ...] = (
    event_from_json("started", {"gemm": SHAPE, "budget": {"trials": 4, "seconds": 9.0}}),
    event_from_json(
        "fallback", {"kernel": "1", "config": "x86(a=1)", "timings": {"sustained": {"median_us": 12.0}, "default": {}}}
    ),
    event_from_json("batch", {"proposed": 4, "trials": 4, "pruned": {"registers": 7, "too_small": 2}}),
    event_from_json(
        "candidate", {"status": "measured", "trials": 4, "of": 4, "us": 9.0, "best_us": 9.0, "best": "x86(a=2)"}
    ),
    event_from_json(
        "candidate", {"status": "crashed", "trials": 4, "of": 4, "us": None, "best_us": 9.0, "best": "x86(a=2)"}
    ),
    event_from_json(
        "candidate", {"status": "measured", "trials": 4, "of": 4, "us": 6.0, "best_us": 6.0, "best": "x86(a=3)"}
    ),
    event_from_json("selected", {"kernel": "2", "config": "x86(a=3)", "timings": {}}),
    event_from_json("done", {"kernel": "2", "config": "x86(a=3)", "timings": {}}),
)


def record(gemm: Gemm) -> KernelRecord:
    timing = Timing(6.0, 3, {"default": BaselineTime(12.0, 2.0)})
    certificate = Certificate("a" * 64, True, ({"name": "exact"},), "numpy fp64")
    return KernelRecord(
        gemm,
        cpu(),
        "sustained",
        "tuned",
        CONFIG,
        "a" * 64,
        "b" * 64,
        10,
        certificate,
        Timings({"sustained": timing, "isolated": NotTimed("no")}, "x86(a=1)", stream=STREAM),
        4,
        "now",
        "2",
    )


class FakeTune:
    """Stands for ``tirgemm.tune``: tells EVENTS; is interrupted before the event of that number, where one is given.
    ``ended``: how the search of the kernel did."""

    def __init__(self) -> None:
        self.events = EVENTS
        self.ended: SearchEnd | None = None
        self.request: Any = None
        self.keywords: dict[str, Any] = {}
        self.interrupted_at: int | None = None

    def __call__(self, request: TuneRequest, *, control: Control, **keywords: Any) -> Any:
        self.request, self.keywords = request, keywords
        for number, event in enumerate(self.events):
            if number == self.interrupted_at:
                os.kill(os.getpid(), signal.SIGINT)
                assert control.stop.wait(PATIENCE_S)
                if number < 2:
                    raise Interrupted("stopped before its first kernel was certified")
            assert control.on_event is not None
            control.on_event(event)
        data = certified(request.gemm, signer=keywords["signer"])
        kernel = record(request.gemm)
        kernel = replace(kernel, timings=replace(kernel.timings, search=SearchSummary(trials=4, ended=self.ended)))
        return SimpleNamespace(record=kernel, package=data, save=lambda path: Path(path).write_bytes(data))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeTune:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    actual = FakeTune()
    monkeypatch.setattr("tirgemm.tuning.tuned_kernel.tune", actual)
    return actual


def test_tune_passes_its_options_on_and_prints_one_document(fake: FakeTune, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--trials", "4", "--seconds", "9", "--seed", "5", "--family", "x86", "--regime", "isolated"]
    assert cli.main(["tune", SHAPE, "--data", "data", *options, "-o", "k.tirgemm", "--device", "cpu", "--json"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    document = json.loads(said.out)
    assert (document["role"], document["config_hash"], document["file"]) == ("tuned", CONFIG.digest, "k.tirgemm")
    assert document["search"]["statuses"] == {"measured": 2, "crashed": 1}
    assert document["search"]["pruned"] == {"registers": 7, "too_small": 2}
    given = fake.request
    assert (str(given.gemm), given.device.kind, given.regime) == (SHAPE, "cpu", "isolated")
    assert (given.budget.trials, given.budget.seconds, given.seed, given.families) == (4, 9.0, 5, ("x86",))
    assert Trust.default().keys == frozenset(), "tuning trusts nobody by itself"
    assert load(Path("k.tirgemm"), trust=Trust.of(document["signer"])).gemm == Gemm.parse(SHAPE)


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
    assert "best 6.00 us (2.00 x the default)" in said.err
    assert Trust.default().keys == {fake.keywords["signer"].public}
    assert cli.main(["verify", "k.tirgemm", "--no-run"]) == 0


@pytest.mark.usefixtures("fake")
def test_tune_says_why_the_default_stays_and_that_the_machine_was_busy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = "the default stays: the best of the others is 1.010 times as fast, but only at least 0.990"
    busy = Timing(6.0, 3, {"default": BaselineTime(6.0, 1.0)}, {"loadavg": 9.0, "cpus": 2})
    timings = Timings({"sustained": busy}, str(CONFIG), SelectionReason(reason, 1.0))
    plain = record
    monkeypatch.setattr(f"{__name__}.record", lambda gemm: replace(plain(gemm), timings=timings))
    assert cli.main(["tune", SHAPE, "--data", "data"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"tuned; {reason}; certified" in said
    assert said.count("a load average of 9.00 on 2 CPUs") == 1


def test_an_interrupt_ends_the_search_with_what_it_has_and_130(
    fake: FakeTune, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.interrupted_at = 4
    before = signal.getsignal(signal.SIGINT)
    assert cli.main(["tune", SHAPE, "--data", "data", "-o", "k.tirgemm", "--json"]) == 130
    said = capsys.readouterr()
    assert said.err.endswith(
        " s  33x17x19:f16:nt: stopping: selecting the best of 1 measured; press Ctrl-C again to drop it\n"
    )
    document = json.loads(said.out)
    assert (document["interrupted"], document["file"]) == (True, "k.tirgemm")
    assert load(Path("k.tirgemm"), trust=Trust.of(document["signer"])).gemm == Gemm.parse(SHAPE)
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_before_the_first_kernel_says_that_there_is_none(
    fake: FakeTune, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.interrupted_at = 1
    before = signal.getsignal(signal.SIGINT)
    assert cli.main(["tune", SHAPE, "--data", "data", "-o", "k.tirgemm"]) == 130
    said = capsys.readouterr()
    assert "stopping: no kernel is certified yet, so that none will be written\n" in said.err
    assert said.err.endswith("error: stopped before its first kernel was certified\n")
    assert said.out == ""
    assert not Path("k.tirgemm").exists()
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("effort", "ended", "more"),
    [
        ("none", "trials", "a larger --effort goes on"),
        ("quick", "expected_gain", "a larger --effort or --retune go on"),
        ("standard", "seconds", "more --seconds or --retune go on"),
        ("standard", "trials", "more --trials or --retune go on"),
    ],
)
def test_an_answer_from_the_database_says_what_goes_on_from_it(
    fake: FakeTune, capsys: pytest.CaptureFixture[str], effort: str, ended: SearchEnd, more: str
) -> None:
    fake.events, fake.ended = EVENTS[-1:], ended
    bound = [] if effort == "none" else ["--trials", "20"]
    assert cli.main(["tune", SHAPE, "--data", "data", "--device", "cpu", "--effort", effort, *bound]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"from the database: 4 trials on now; {more} from there" in said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["0x1x1"], "gemm field m is 0"),
        ([SHAPE, "--device", "abacus"], "device 'abacus' is unknown"),
        ([SHAPE, "--seconds", "-1"], "budget seconds is -1"),
        ([SHAPE, "--seed", "-1"], "--seed"),
        ([SHAPE, "--effort", "none", "--retune"], "--effort none searches nothing: leave out --retune"),
        ([SHAPE, "-o", "absent/k.tirgemm"], "there is no folder absent; make it first"),
        ([SHAPE, "-o", "."], "--output is ., which is a folder"),
    ],
)
def test_bad_input_is_refused_before_anything_is_made(
    fake: FakeTune, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert cli.main(["tune", *arguments, "--data", "data"]) == 2
    assert says in capsys.readouterr().err
    assert not Path("data").exists()
    assert not fake.keywords
