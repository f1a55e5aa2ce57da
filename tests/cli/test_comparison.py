"""``tirgemm compare``: knobs, times with intervals, machine code; what the figures can and cannot tell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.helpers.artifact_samples import SIGNER, certified, fake_cubin, packed
from tests.helpers.command_line import Run, own_folders, runner
from tests.helpers.stored_candidates import FAST, GEMM, SLOW, Made, compiled_for_a_gpu, made, samples
from tirgemm.artifact import Signer, Trust
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.launch import Launch, scalar_args, tensor_args
from tirgemm.service.views.comparison import PairedTimes, verdict
from tirgemm.timings import Timing, Timings
from tirgemm.tuning.intervals import median_interval, ratio_interval
from tirgemm.tuning.measure.requests import RaceOptions
from tirgemm.tuning.records import CandidateKey, SampleSet
from tirgemm.tuning_db.data_folder import open_store


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    own_folders(tmp_path, monkeypatch, 160)
    Trust.default().add(SIGNER.public)
    return tmp_path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(capsys, "compare")


def test_two_finalists_of_one_run_are_told_apart(run: Run, home: Path) -> None:
    stored: Made = made(home / "data" / "tirgemm")
    code, out, err = run(stored.fast.id, stored.slow.id)
    assert (code, err) == (0, "")
    assert "B takes 1.250 times as long as A (95 %: " in out
    assert out.count("A is faster") == 1
    assert "different runs" not in out
    for line in ("rows   4     1", "order  rows  columns"):
        assert line in out
    assert "pad" not in out, "what is the same is not told"
    document = json.loads(run(stored.fast.id, stored.slow.id, "--json")[1])
    assert (document["ratio"], document["same_run"]) == (1.25, True)
    assert document["ratio_interval"]["low"] < 1.25 < document["ratio_interval"]["high"]
    assert (document["a"]["time"]["median_us"], document["b"]["time"]["median_us"]) == (8.0, 10.0)
    assert {each["knob"] for each in document["differences"]} == {"rows", "order"}
    assert document["a"]["code"]["instructions"] is None or document["a"]["code"]["instructions"] > 10


def test_files_are_compared_with_what_the_data_folder_knows_of_the_same_kernels(run: Run, home: Path) -> None:
    stored: Made = made(home / "data" / "tirgemm")
    with open_store(None) as store:
        for record, name in ((stored.fast, "fast"), (stored.slow, "slow")):
            (home / name).write_bytes(store.get_blob(record.artifact_sha256))
        store.add_samples(
            CandidateKey(GEMM, stored.slow.device.key, "sustained", SLOW.digest),
            SampleSet(
                samples(7.99, seed=9), "selection", {}, {"at": "2026-08-02T00:00:00+00:00", "regime": "sustained"}
            ),
        )
    code, out, _ = run("fast", "slow")
    assert (code, "B takes 1.250" in out) == (0, True), "the run that both were in counts"
    assert "NOT trusted here" not in out, "the key of the user's own folder is the user's"


def test_medians_without_samples_have_no_interval_and_it_is_said(run: Run, home: Path) -> None:
    for name, config, us in (("one", FAST, 8.0), ("two", SLOW, 10.0)):
        (home / name).write_bytes(packed(GEMM, config=config, timings=Timings({"sustained": Timing(us)})))
    code, out, _ = run("one", "two")
    assert (code, "B takes 1.250 times as long as A; without both kernels' samples" in out) == (0, True)
    assert "They are of different runs" in out
    assert "There are not two times to compare" in run("one", "two", "--regime", "isolated")[1]
    assert json.loads(run("one", "two", "--json")[1])["ratio_interval"] is None


def test_shipped_medians_have_no_interval_that_tells_which_is_faster() -> None:
    class Shipped(NamedTuple):
        samples: tuple[SampleSet, ...]
        timings: Timings = Timings()

    one, two = (Shipped((SampleSet((us,), "selection", {}, {"median_of": 22}),)) for us in (8.0, 10.0))
    timing = PairedTimes.of(one, two, "sustained", "")
    assert (timing.ratio, timing.ratio_interval) == (1.25, None)
    assert not any("is faster" in sentence for sentence in verdict(timing, "A", "B"))


def test_a_time_of_zero_is_none_and_a_kernel_that_launches_nothing_has_no_figures(run: Run, home: Path) -> None:
    (home / "one").write_bytes(packed(GEMM, timings=Timings({"sustained": Timing(0.0)})))
    launch = Launch(tensor_args(GEMM), scalar_args(GEMM), ())
    gpu = {"device": named_device("sm_90a"), "binary": fake_cubin(), "binary_format": "cubin"}
    (home / "two").write_bytes(packed(GEMM, launch=launch, sources={}, signer=Signer.generate(), **gpu))
    code, out, err = run("one", "two")
    assert (code, "it was not measured in the regime sustained" in out) == (0, True), err


def test_a_certificate_passed_where_verify_says_so(run: Run, home: Path) -> None:
    (home / "one").write_bytes(certified(GEMM))
    (home / "two").write_bytes(packed(GEMM, certificate={"kernel_sha256": "0", "passed": True, "tests": []}))
    (row,) = (line for line in run("one", "two")[1].splitlines() if line.split()[:1] == ["certificate"])
    assert row.split(maxsplit=2)[1:] == ["passed", "its certificate is of another kernel, '0'"]
    document = json.loads(run("one", "two", "--json")[1])
    assert [document[side]["certified"] for side in ("a", "b")] == [True, False]


def test_different_problems_and_one_kernel_twice_are_said_to_be(run: Run, home: Path) -> None:
    (home / "one").write_bytes(packed(GEMM))
    (home / "two").write_bytes(packed(Gemm.parse("9x17x19:f16:nt")))
    assert "nothing of which is faster: they solve different problems" in run("one", "two")[1]
    code, out, _ = run("one", "one")
    assert (code, "They are one and the same kernel." in out, "All knobs are the same." in out) == (0, True, True)
    assert ("nothing of which is faster: they are one kernel" in out, "different runs" in out) == (True, False)
    assert json.loads(run("one", "one", "--json")[1])["ratio"] is None
    code, _, err = run("one", "two", "--measure")
    assert (code, "one and two are not raced: they solve different problems" in err) == (2, True)
    code, _, err = run("one", "one", "--measure")
    assert (code, "they are one kernel" in err) == (2, True)
    assert run("one", "nofile")[0] == 2
    assert run("one", "two", "--regime", "fast")[0] == 2


def test_a_strangers_code_is_neither_read_by_a_tool_nor_raced(run: Run, home: Path) -> None:
    stranger = Signer.generate()
    (home / "one").write_bytes(packed(GEMM, config=FAST))
    (home / "two").write_bytes(packed(GEMM, config=SLOW, signer=stranger))
    code, out, _ = run("one", "two")
    assert (code, f"B: nothing of {stranger.public} is disassembled" in out) == (0, True)
    code, _, err = run("one", "two", "--measure")
    assert (code, f"two would be run, and its key {stranger.public} is not trusted here" in err) == (1, True)


def test_the_race_is_one_run_with_the_buffers_swapped_for_half_of_it(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    class FakeMeasurer:
        def __init__(self, device: Any, trust: Trust, *, lock_dir: Path | None) -> None:
            asked.append({"device": device.kind, "keys": trust.keys, "lock_dir": lock_dir})

        def __enter__(self) -> FakeMeasurer:
            return self

        def time(self, package: bytes, options: RaceOptions, *, against: dict[str, bytes], **_: Any) -> SampleSet:
            asked.append({"package": package, "against": against, "options": options})
            return SampleSet(samples(8.0), "selection", {"b": samples(10.0, seed=4)}, {"clock_mhz": 2600})

        def __exit__(self, *_: object) -> None:
            asked.append({"closed": True})

    monkeypatch.setattr("tirgemm.tuning.measure.Measurer", FakeMeasurer)
    one, two = packed(GEMM, config=FAST), packed(GEMM, config=SLOW)
    (home / "one").write_bytes(one)
    (home / "two").write_bytes(two)
    code, out, _ = run("one", "two", "--measure", "--seconds", 3, "--lock-dir", home)
    assert (code, "B takes 1.250 times as long as A" in out, "here and now, interleaved" in out) == (0, True, True)
    made_, first, second, closed = asked
    assert made_ == {"device": "cpu", "keys": {SIGNER.public}, "lock_dir": home}
    assert (first["package"], first["against"]) == (one, {"b": two})
    assert (first["options"].budget_s, first["options"].swap) == (1.5, False)
    assert (second["options"].swap, closed) == (True, {"closed": True})


def test_machine_code_of_a_gpu_is_told_by_registers_and_units(run: Run, home: Path) -> None:
    gpu_artifact = compiled_for_a_gpu(home)
    code, out, err = run(gpu_artifact, gpu_artifact)
    assert (code, err) == (0, "")
    for words in (
        "registers a thread",
        "bytes of shared memory a block",
        "blocks an SM",
        "instructions",
        "main loop: fp32",
    ):
        assert words in out, words
    actual = json.loads(run(gpu_artifact, gpu_artifact, "--json")[1])["a"]["code"]
    assert actual["registers a thread"] > 16
    assert sum(actual["units"].values()) == actual["instructions"]


def test_the_interval_of_a_median_covers_it_and_shrinks_with_samples() -> None:
    few, many = median_interval(samples(10.0, 20)), median_interval(samples(10.0, 2000))
    assert few.low < 10.0 < few.high
    assert many.high - many.low < few.high - few.low
    assert median_interval(samples(10.0)) == median_interval(samples(10.0))
    with pytest.raises(ValueError, match="an interval needs samples"):
        median_interval(())


def test_pairs_cancel_what_both_suffered() -> None:
    drift = [1.0 + 0.2 * (n % 10) for n in range(100)]
    ours, theirs = [8.0 * d for d in drift], [10.0 * d for d in drift]
    paired, apart = ratio_interval(theirs, ours, paired=True), ratio_interval(theirs, ours)
    assert paired.value == apart.value == pytest.approx(1.25)
    assert paired.high - paired.low < 1e-9
    assert apart.high - apart.low > 0.1
