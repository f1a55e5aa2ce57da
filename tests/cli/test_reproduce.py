"""``tirgemm reproduce``: the hash of a kernel that is built again, and whether its figure holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.artifact_samples import CONFIG, SIGNER, certified, packed, rows_binary, rows_launch
from tests.helpers.command_line import Run, own_folders, runner
from tests.helpers.loadable_bench import LoadableBench
from tests.helpers.stored_candidates import RUN, samples
from tirgemm.artifact import Signer, Trust, read
from tirgemm.config import Config
from tirgemm.detect import device
from tirgemm.gemm import Gemm
from tirgemm.service.views.reproduction import Figure
from tirgemm.status import Role
from tirgemm.timings import Timing, Timings
from tirgemm.tuning.build.binary import Binary
from tirgemm.tuning.intervals import Interval
from tirgemm.tuning.records import Candidate, SampleSet, Status
from tirgemm.tuning.records.memory_store import MemoryStore
from tirgemm.tuning.workbench import Workbench
from tirgemm.tuning_db.data_folder import open_store

GEMM = Gemm.parse("9x17x19:f32:nt")
VIEW = "tirgemm.service.views.reproduction"


class Bench(LoadableBench):
    """Builds the sample kernel as the packed artifact has it; ``flags`` are those of another compiler."""

    flags: tuple[str, ...] = ()

    def __init__(self, target: Any, store: Any, *, lock_dir: Path | None = None, processes: int = 1) -> None:
        del processes
        super().__init__(target, store, SIGNER, lock_dir=lock_dir)

    def build(self, gemm: Gemm, config: Config, *, urgent: bool = False) -> Future[Binary]:
        del config, urgent
        future: Future[Binary] = Future()
        future.set_result(Binary(rows_binary(gemm), "so", rows_launch(gemm), {}, self.flags, {}))
        return future


def artifact(us: float = 8.0, role: Role = "tuned", at: str = "", **target: Any) -> bytes:
    """An artifact as ``Bench`` builds it, on this machine but for ``target``, timed ``at`` some time."""
    bench = Bench(device("cpu").with_(**target), MemoryStore())
    binary = bench.build(GEMM, CONFIG).result()
    timings = Timings({"sustained": Timing(us, conditions={"at": at} if at else {})})
    certificate = {"environment": {"python": "3.1"}}
    return bench.package(GEMM, CONFIG, binary, certificate=certificate, timings=timings, selected=("sustained", role))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    own_folders(tmp_path, monkeypatch)
    Trust.default().add(SIGNER.public)
    monkeypatch.setattr(f"{VIEW}.Workbench", Bench)
    return runner(capsys, "reproduce")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets what a call takes now."""

    def set_us(us: float) -> None:
        class FixedMeasurer:
            def __init__(self, *_: object, **__: object) -> None:
                return

            def __enter__(self) -> FixedMeasurer:
                return self

            def time(self, *_: object, **__: object) -> SampleSet:
                return SampleSet(samples(us), "selection", {}, {"clock_mhz": 2600})

            def __exit__(self, *_: object) -> None:
                return

        monkeypatch.setattr("tirgemm.tuning.measure.Measurer", FixedMeasurer)

    return set_us


def test_the_same_hash_and_a_figure_that_holds(run: Run, tmp_path: Path, measured: Callable[[float], None]) -> None:
    (tmp_path / "k").write_bytes(artifact(8.0))
    measured(8.2)
    code, out, err = run("k")
    assert (code, err) == (0, "")
    assert ("reproduced" in out, "NOT" in out, "holds (spread 5%)" in out) == (True, False, True)
    assert "3.1 then, " in out, "what the environment was"
    told = json.loads(run("k", "--json")[1])
    assert (told["reproduced"], told["same"], told["figure"]["recorded_us"]) == (True, True, 8.0)
    assert 8.1 < told["figure"]["measured"]["value"] < 8.3


def test_a_figure_that_does_not_hold_fails(run: Run, tmp_path: Path, measured: Callable[[float], None]) -> None:
    (tmp_path / "k").write_bytes(artifact(8.0))
    measured(9.6)
    code, out, _ = run("k")
    assert (code, "does NOT hold: 1.2" in out) == (1, True)
    assert run("k", "--spread", 0.25)[0] == 0
    assert run("k", "--no-measure")[0] == 0
    measured(4.0)
    assert run("k")[0] == 0, "faster than recorded is no loss"


def test_a_file_is_held_to_the_time_that_it_says_not_to_that_of_a_later_run(
    run: Run, tmp_path: Path, measured: Callable[[float], None]
) -> None:
    data = artifact(8.0, at=str(RUN["at"]))
    (tmp_path / "k").write_bytes(data)
    made = read(data, Trust.of(SIGNER.public)).manifest
    later = RUN | {"at": "2026-08-01T13:00:00+00:00"}
    sets = [SampleSet(samples(us), "report", {}, conditions) for us, conditions in ((8.0, RUN), (12.0, later))]
    candidate = Candidate(GEMM, made.device.key, "sustained", CONFIG, Status.MEASURED)
    with open_store(tmp_path / "store") as store:
        store.add_candidate(replace(candidate, kernel_sha256=made.kernel_sha256, sample_sets=tuple(sets)))
    measured(10.0)
    code, out, _ = run("k", "--data", tmp_path / "store")
    assert (code, "8.00 us a call, sustained, as its manifest says, 2026-08-01 12:00:00 UTC" in out) == (1, True)
    interval = json.loads(run("k", "--data", tmp_path / "store", "--json")[1])["figure"]["recorded"]
    assert interval["low"] < 8.0 < interval["high"] < 9.0, "of the samples of its own run"


def test_another_build_fails_whatever_its_time(
    run: Run, tmp_path: Path, measured: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "k").write_bytes(artifact(8.0))
    measured(8.0)
    monkeypatch.setattr(Bench, "flags", ("-O1",))
    code, out, _ = run("k")
    assert (code, "NOT reproduced" in out, "the same" in out) == (1, True, True)
    assert json.loads(run("k", "--no-measure", "--json")[1])["reproduced"] is False


def test_a_machine_that_has_another_memory_since_builds_the_same_hash(run: Run, tmp_path: Path) -> None:
    here = device("cpu").memory_bytes
    for memory in (here - (1 << 20), here):
        (tmp_path / "k").write_bytes(artifact(memory_bytes=memory))
        assert run("k", "--no-measure")[0] == 0


def test_what_cannot_be_measured_is_said(run: Run, tmp_path: Path) -> None:
    stranger = Signer.generate()
    (tmp_path / "stranger").write_bytes(packed(GEMM, signer=stranger, timings=Timings({"sustained": Timing(8.0)})))
    code, _, err = run("stranger")
    assert (code, f"--trust {stranger.public}" in err) == (1, True)
    (tmp_path / "untimed").write_bytes(packed(GEMM, timings=Timings()))
    code, _, err = run("untimed")
    assert (code, "no recorded time" in err, "--no-measure" in err) == (2, True, True)
    elsewhere = certified(
        GEMM, device=device("cpu").with_(model="Another CPU"), timings=Timings({"sustained": Timing(8.0)})
    )
    (tmp_path / "elsewhere").write_bytes(elsewhere)
    code, _, err = run("elsewhere")
    assert (code, "is not on this machine" in err, "--no-measure builds alone" in err) == (1, True, True)


def test_a_figure_holds_up_to_its_spread_beyond_both_intervals() -> None:
    def holds(low: float, recorded: Interval | None = None) -> bool:
        return Figure("sustained", 10.0, recorded, "", Interval(low + 0.5, low, low + 1), 0.05).holds

    assert (holds(10.5), holds(10.6)) == (True, False)
    assert holds(10.9, Interval(10.0, 9.5, 10.5)), "the recorded one is as uncertain"


def test_a_real_kernel_is_built_to_the_same_hash_by_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own_folders(tmp_path, monkeypatch)
    cpu = device("cpu")
    from tirgemm.families import supporting
    from tirgemm.families.choice import ranked_defaults

    config = ranked_defaults(supporting(GEMM, cpu), GEMM, cpu, "sustained")[0][1]
    with Workbench(cpu, MemoryStore(), SIGNER, processes=1) as bench:
        data = bench.package(GEMM, config, bench.build(GEMM, config).result())
    (tmp_path / "k").write_bytes(data)
    code, out, _ = runner(capsys, "reproduce")("k", "--no-measure")
    assert (code, "reproduced" in out, "the same" in out) == (0, True, True)
