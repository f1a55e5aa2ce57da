"""The file of a search over many problems: what comes back, what it says is best, and how small it is."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest

from tests.unit.toy_family import DEVICE, Toy, simulated_us, valid_configs
from tirgemm.config import Config
from tirgemm.errors import InvalidRequest
from tirgemm.gemm import Gemm
from tirgemm.tuning.cost_model import BoostedTrees
from tirgemm.tuning.measured_configs import Entry, MeasuredConfigs, Session
from tirgemm.tuning.records import Status

GEMM, OTHER = Gemm.parse("127x129x1021:f16:nt"), Gemm.parse("1x3x7:f16:nn")
A, B, C = (Config("toy", (("block_m", m), ("layout", "plain"))) for m in (16, 32, 64))


def entry(config: Config, us: float | None = None, status: Status = Status.MEASURED, message: str = "") -> Entry:
    return Entry(0, config, status, us, 0.1, 6 if us else 0, error=0.25 if us else None, registers=168, message=message)


@pytest.fixture
def found() -> MeasuredConfigs:
    found = MeasuredConfigs(DEVICE, "torch.matmul", [{"date": "2026-11-21T12:00:00+00:00", "commit": "abc"}])
    found.add(Session(GEMM, "sustained", 0, 1.5, 10.0, 1980, 401.5), [entry(A, 12.0), entry(B, 11.0)])
    found.add(Session(OTHER, "sustained", 0, 2.0), [entry(A, 2.0)])
    # The clocks have fallen: everything takes half as long again, and C is the fastest of all.
    found.add(Session(GEMM, "sustained", 0, 9.0, 15.0, 1320, 690.0), [entry(A, 18.0), entry(C, 15.75)])
    found.add(Session(GEMM, "isolated", 0, 9.5, 11.0), [entry(A, 10.0), entry(C, None, Status.WRONG, "exact failed")])
    return found


def test_a_file_gives_back_what_was_saved(found: MeasuredConfigs, tmp_path: Path) -> None:
    path = tmp_path / "new" / "found.json.gz"
    found.save(path)
    first = path.read_bytes()
    loaded = MeasuredConfigs.load(path)
    assert loaded == found
    assert list(loaded.of(GEMM)) == list(found.of(GEMM))
    loaded.save(path)
    assert path.read_bytes() == first


def test_times_of_sessions_under_other_clocks_are_comparable(found: MeasuredConfigs) -> None:
    found.entries.pop()  # the failure: see below
    found = MeasuredConfigs(found.device, found.reference, found.runs, found.sessions, found.entries)
    assert found.reference_us(GEMM, "sustained") == 12.5
    assert found.times(GEMM, "sustained") == {A: pytest.approx(15.0), B: pytest.approx(13.75), C: pytest.approx(13.125)}
    assert found.best(GEMM, "sustained", 2) == [C, B]
    assert found.best(GEMM, "isolated") == [A]
    assert found.times(OTHER, "sustained") == {A: 2.0}, "without a reference times are as they were measured"
    assert found.best(OTHER, "isolated") == []


def test_a_config_that_failed_once_is_never_the_best(found: MeasuredConfigs) -> None:
    assert found.times(GEMM, "sustained")[C] is None
    assert found.best(GEMM, "sustained") == [B]


def test_the_tuner_learns_from_a_file() -> None:
    family, draw = Toy(), random.Random(3)
    configs = draw.sample(valid_configs(family, GEMM), 60)
    found = MeasuredConfigs(DEVICE, "torch.matmul", [{}])
    for some in (configs[:20], configs[20:40]):
        found.add(Session(GEMM, "sustained", 0, 0.0), [entry(c, simulated_us(GEMM, c)) for c in some])
    model = BoostedTrees(GEMM, DEVICE, "sustained", [family])
    model.learn(found.candidates())
    assert model.trained
    scores = model.expected(configs[40:])
    fast = sorted(range(20), key=lambda i: simulated_us(GEMM, configs[40:][i]))
    assert scores[fast[:5]].mean() > scores[fast[-5:]].mean()


def test_thousands_of_candidates_stay_small(tmp_path: Path) -> None:
    """5,000 candidates in two regimes, with times that do not repeat: below 300 kB."""
    family, draw = Toy(), random.Random(7)
    pool = valid_configs(family, GEMM)
    found = MeasuredConfigs(DEVICE, "torch.matmul", [{"commit": "0" * 40}])
    for number in range(1000):
        gemm = Gemm.parse(f"{1 + number % 180}x4096x7168:f16:nt")
        chosen = draw.sample(pool, 5)
        for regime in ("sustained", "isolated"):
            entries = [
                Entry(0, c, Status.MEASURED, draw.uniform(5, 900), draw.random(), 6, draw.random(), draw.uniform(5, 900),
                      168, 0, 200_000) for c in chosen
            ]  # fmt: skip
            session = Session(
                gemm, regime, 0, number * 0.7, draw.uniform(5, 900), draw.randrange(1300, 1980), 600.0 + draw.random()
            )
            found.add(session, entries)
    path = tmp_path / "found.json.gz"
    found.save(path)
    assert path.stat().st_size < 300_000
    assert len(MeasuredConfigs.load(path).entries) == 10_000


@pytest.mark.parametrize("planted", ["format", "status", "config", "gzip"])
def test_what_is_no_such_file_is_refused(found: MeasuredConfigs, tmp_path: Path, planted: str) -> None:
    path = tmp_path / "found.json.gz"
    found.save(path)
    value = json.loads(gzip.decompress(path.read_bytes()))
    if planted == "format":
        value["format"] = "tirgemm-recorded-space/1"
    elif planted == "status":
        value["entries"]["status"][0] = "fast"
    elif planted == "config":
        value["entries"]["config"][0] = 99
    data = json.dumps(value).encode()
    path.write_bytes(data if planted == "gzip" else gzip.compress(data))
    with pytest.raises(InvalidRequest, match=r"found\.json\.gz is not a file of the form tirgemm-measured-configs/1"):
        MeasuredConfigs.load(path)
