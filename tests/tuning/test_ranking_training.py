"""Training of ranking models: what is learnt, held out and kept."""

from __future__ import annotations

from pathlib import Path
from statistics import geometric_mean

import numpy as np
import pytest

from benchmarks.history import History
from tests.helpers.ranking import H200, PROBLEMS, as_estimated, made_up, rows_of, slow_pingpong, trained_on
from tirgemm.config import Config
from tirgemm.detect import device as detect
from tirgemm.errors import InvalidRequest
from tirgemm.families.common.ranking_model import RankingModel, ranking_model, shipped_file
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.tuning import ranking_training as training
from tirgemm.tuning.records import Candidate, Status
from tirgemm.tuning_db import shipped, transfer

ROOT = Path(__file__).resolve().parents[2]
# All but the records of kernel sets.
SHIPPED = [
    path for path in sorted((ROOT / "tuning_db/shipped").glob("*.jsonl.gz")) if not shipped.holds_kernel_sets(path)
]


@pytest.fixture(scope="module")
def shipped_rows() -> dict[str, list[training.ProblemRows]]:
    """What the package's models were trained on, by the key of the device."""
    rows = {}
    for path in SHIPPED:
        device = transfer.read_devices(path)[0]
        rows[device.key] = training.problem_rows(transfer.read_candidates(path), device)
    return rows


@pytest.fixture(scope="module")
def shipped_sha256(shipped_rows: dict[str, list[training.ProblemRows]]) -> str:
    """The hash of all of them."""
    return training.records_sha256(each for rows in shipped_rows.values() for each in rows)


def test_a_model_learns_where_the_estimates_are_wrong_and_ranks_problems_that_it_has_not_seen() -> None:
    ranked = list(training.held_out(rows_of(slow_pingpong), H200))
    assert {each.gemm for each in ranked} == set(PROBLEMS)
    assert all(0 < share <= 1 for each in ranked for share in (*each.estimate, *each.model))
    by_model, by_estimate = (np.mean([getattr(each, name)[0] for each in ranked]) for name in ("model", "estimate"))
    assert by_model > by_estimate
    scores = training.scores(ranked)
    assert scores.keys() <= {"sustained"}


def test_a_problem_is_held_out_with_every_other_of_its_n_and_k() -> None:
    twin = Gemm.parse("777x1024x1024:f16:nt")
    rows = training.problem_rows([c for g in (*PROBLEMS, twin) for c in made_up(g, slow_pingpong)], H200)
    ranked = {each.gemm: each for each in training.held_out(rows, H200)}
    assert ranked[twin].times_away > 777 / 512, "the one of the same n and k is nearer"


def test_devices_of_one_architecture_with_as_many_processors_teach_one_another() -> None:
    larger = H200.with_(model="NVIDIA H100 80GB HBM3", memory_bytes=80 << 30)
    fewer = H200.with_(model="NVIDIA H100 PCIe", units=114)
    ampere = H200.with_(model="NVIDIA A100", arch="sm_80")
    assert training.similar_devices([H200, larger, larger.with_(uuid="GPU-2"), fewer, ampere], H200) == [larger]
    cpu = detect("cpu")
    assert training.similar_devices([cpu, cpu.with_(model="another model")], cpu) == []


def test_a_device_without_a_model_takes_that_of_a_device_alike() -> None:
    own = ranking_model(H200)
    assert own is not None
    assert own.provenance["device_key"] == H200.key
    nvl, limited = H200.with_(model="NVIDIA H100 NVL"), H200.with_(power_limit_w=450)
    assert ranking_model(limited) == own
    borrowed = ranking_model(nvl)
    assert borrowed is not None
    assert borrowed.provenance["device_key"] in own.provenance["devices"]
    for other in (H200.with_(model="NVIDIA H100 PCIe", units=114), named_device("sm_80"), detect("cpu")):
        assert ranking_model(other) is None


def test_a_model_of_other_devices_alone_ranks_beside_the_whole_one() -> None:
    problems, others = rows_of(slow_pingpong), rows_of(as_estimated)
    ranked = list(training.held_out(problems, H200, 2, others, apart=True))
    assert [each.by_other_devices for each in ranked] != [each.model for each in ranked]
    assert all(len(each.by_other_devices) == len(training.FIRST) for each in ranked)
    assert not any(each.by_other_devices for each in training.held_out(problems, H200, 2, others))


def test_what_another_device_tells_of_the_n_and_k_of_a_problem_is_held_out_with_it() -> None:
    (problem, *_), others = rows_of(as_estimated), rows_of(slow_pingpong)
    beside, without = (list(training.held_out([problem], H200, None, taught)) for taught in (others, others[1:]))
    assert others[0].gemm == problem.gemm
    assert beside == without
    assert beside[0].times_away > 1


def test_the_same_records_give_the_same_model_whatever_their_order(tmp_path: Path) -> None:
    rows = rows_of(slow_pingpong)
    assert training.records_sha256(rows) == training.records_sha256(rows[::-1])
    sizes = {training.write(trained_on(slow_pingpong), tmp_path / f"{number}.json.gz") for number in range(2)}
    assert len(sizes) == 1
    first, second = ((tmp_path / f"{number}.json.gz").read_bytes() for number in range(2))
    assert first == second
    assert len(first) < 2**20
    provenance = RankingModel.of_json(trained_on(slow_pingpong)).provenance
    assert {"records", "rows", "problems", "xgboost", "parameters", "device_key"} <= provenance.keys()


def test_what_no_longer_is_a_config_and_what_failed_teach_nothing() -> None:
    gemm = PROBLEMS[0]
    good = made_up(gemm, as_estimated)
    old = good[0].with_(config=Config("wgmma", (("tile_m", 64), ("schedule", "stream"))))
    unknown = good[1].with_(config=Config("gone", (("tile_m", 64),)))
    failed = Candidate(gemm, H200.key, "sustained", good[2].config.with_(stages=7), Status.WRONG)
    elsewhere = good[3].with_(device_key="cuda:sm_90a:another:114")
    (rows,) = training.problem_rows([*good, old, unknown, failed, elsewhere], H200)
    assert len(rows.us) == len(good)


def test_too_few_problems_are_no_model() -> None:
    with pytest.raises(InvalidRequest, match="have 2 problems"):
        training.train(rows_of(as_estimated)[:2], H200, {})


@pytest.mark.parametrize("records", SHIPPED, ids=lambda path: path.name)
def test_the_model_that_ships_is_of_the_records_beside_it_and_of_todays_features_and_estimates(
    records: Path, shipped_rows: dict[str, list[training.ProblemRows]], shipped_sha256: str
) -> None:
    """Ranked by features that mean something else than when it was trained, or as corrections of other estimates, it
    would not know the records that it has learnt by heart."""
    device = transfer.read_devices(records)[0]
    path = shipped_file(device.key)
    assert path.stat().st_size < 2**20
    model = ranking_model(device)
    assert model is not None
    problems = shipped_rows[device.key]
    assert model.provenance["devices"] == {key: len(rows) for key, rows in shipped_rows.items()}
    assert model.provenance["records_sha256"] == shipped_sha256
    assert sorted(model.provenance["records"].split(", ")) == [path.name for path in SHIPPED]
    first = [training.shares(each, np.log(each.estimates_us) - each.log_gains(model))[0] for each in problems]
    assert geometric_mean(first) > 0.985
    held_out = model.provenance["held_out"]
    assert all(scores["model"]["geomean"] > scores["estimate"]["geomean"] for scores in held_out.values())
    assert "xgboost" in model.provenance
    assert not History(ROOT).problem(model.provenance["commit"], model.provenance["date"])
