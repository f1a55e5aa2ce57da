"""Packing of shipped records of which the fastest were measured again, in an environment that is named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scripts.packed_records import pack
from tests.helpers.scripts import script
from tests.helpers.shipped_files import measured_on
from tirgemm import Gemm
from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.families import family_named
from tirgemm.gemm import Regime
from tirgemm.hardware import named_device
from tirgemm.tuning.records import Candidate, SampleSet
from tirgemm.tuning_db.shipped.layered_store import shipped_offer
from tirgemm.tuning_db.shipped.records import ShippedRecords

REGIME: Regime = "sustained"
DEVICE = named_device("sm_90a").with_(environment=(("driver", "580"), ("tvm", "0.27")))
# Of a published suite: no kernel is judged by it.
GEMM = Gemm.parse("4096x4096x4096:f16:nt")
_WGMMA: Any = family_named("wgmma")
CONFIGS: list[Config] = _WGMMA.shortlist(GEMM, DEVICE, REGIME, 30)
REFUSED = Config("wgmma", (("gone", 1),))


def silent(times: Mapping[Config, float]) -> list[Candidate]:
    """Candidates of a search and a report that name no environment."""
    return [
        c.with_(sample_sets=(SampleSet((us, us)), SampleSet((us,), "report")))
        for c, us in zip(measured_on(DEVICE, GEMM, list(times.items())), times.values(), strict=True)
    ]


def at(day: str, candidates: list[Candidate]) -> list[Candidate]:
    """The candidates, timed on that day."""
    return [
        c.with_(sample_sets=tuple(replace(s, conditions=s.conditions | {"at": day}) for s in c.sample_sets))
        for c in candidates
    ]


def packed(
    folder: Path, before: list[Candidate], after: list[Candidate], now: Device = DEVICE, then: Device | None = None
) -> ShippedRecords:
    pack(folder / "before.jsonl.gz", [then or DEVICE.with_(environment=())], before)
    pack(folder / "after.jsonl.gz", [now], after)
    module: Any = script("scripts/ship_records.py")
    (folder / "shipped").mkdir()
    module.ship([folder / "before.jsonl.gz", folder / "after.jsonl.gz"], folder / "shipped")
    return ShippedRecords(folder / "shipped")


def of_all(records: ShippedRecords) -> dict[Config, Candidate]:
    file = records.of(DEVICE.key)
    assert file is not None
    return {candidate.config: candidate for candidate in file.candidates(DEVICE.key, str(GEMM), REGIME)}


# What the clock of before took of them: 100 us and one more for each.
EARLIER = {config: 100.0 + rank for rank, config in enumerate(CONFIGS)}


def test_a_problem_whose_fastest_were_measured_again_counts_as_measured_in_that_environment(tmp_path: Path) -> None:
    again = measured_on(DEVICE, GEMM, [(config, us + 5.0) for config, us in EARLIER.items()][:26])
    records = packed(tmp_path, silent(EARLIER), again)
    offer = shipped_offer(records, GEMM, DEVICE, REGIME)
    assert offer is not None
    assert (offer.same, len(offer.candidates)) == (True, 26)
    kept = of_all(records)
    assert set(kept) == set(CONFIGS), "what was not measured again is learnt from"
    assert [samples.samples_us for samples in kept[CONFIGS[0]].sample_sets] == [(105.0, 105.0)]
    assert [samples.samples_us for samples in kept[CONFIGS[26]].sample_sets] == [(126.0,), (126.0,)]


def test_a_problem_that_was_measured_again_under_a_newer_driver_counts_as_measured_there(tmp_path: Path) -> None:
    newer = DEVICE.with_(environment=(("driver", "590"), ("tvm", "0.27")))
    again = at("2026-11-29", measured_on(newer, GEMM, [(config, us + 5.0) for config, us in EARLIER.items()][:26]))
    before = at("2026-11-22", measured_on(DEVICE, GEMM, list(EARLIER.items())))
    records = packed(tmp_path, before, again, newer, DEVICE)
    offers = {device.environment: shipped_offer(records, GEMM, device, REGIME) for device in (newer, DEVICE)}
    assert [(offer is not None and offer.same) for offer in offers.values()] == [True, False]
    assert [samples.samples_us for samples in of_all(records)[CONFIGS[0]].sample_sets] == [(105.0, 105.0)]


def test_what_only_the_clock_of_before_makes_the_fastest_is_left_out(tmp_path: Path) -> None:
    again = measured_on(DEVICE, GEMM, [(config, us + 27.5) for config, us in EARLIER.items()][:26])
    records = packed(tmp_path, silent(EARLIER | {REFUSED: 50.0}), again)
    offer = shipped_offer(records, GEMM, DEVICE, REGIME)
    assert offer is not None
    assert (offer.same, len(offer.candidates)) == (True, 26)
    # Beside 127.5 us of the fastest that was measured again, 126 and 127 of before are less, 128 and 129 are not.
    assert set(of_all(records)) == {*CONFIGS[:26], *CONFIGS[28:]}


def test_what_looks_the_fastest_once_others_have_left_is_left_out_too(tmp_path: Path) -> None:
    """Times are scaled by the median of the references: of all four candidates 105 us, of the last two alone 100."""
    beside = dict(zip(CONFIGS, [105.0] * 26 + [110.0, 110.0, 100.0, 100.0], strict=True))
    before = [
        c.with_(sample_sets=tuple(s.beside("torch.matmul", (beside[c.config],)) for s in c.sample_sets))
        for c in silent(EARLIER)
    ]
    again = measured_on(DEVICE, GEMM, [(config, us + 30.0) for config, us in EARLIER.items()][:26])
    records = packed(tmp_path, before, again)
    assert set(of_all(records)) == set(CONFIGS[:26])
    offer = shipped_offer(records, GEMM, DEVICE, REGIME)
    assert offer is not None
    assert offer.same


@pytest.mark.parametrize(("first", "count"), [(1, 26), (0, 15)])
def test_what_may_be_the_fastest_stays_and_has_its_problem_offered(tmp_path: Path, first: int, count: int) -> None:
    """The fastest of before was not measured again, or too few were."""
    times = [(config, us + 27.5) for config, us in EARLIER.items()]
    records = packed(tmp_path, silent(EARLIER), measured_on(DEVICE, GEMM, times[first : first + count]))
    offer = shipped_offer(records, GEMM, DEVICE, REGIME)
    assert offer is not None
    assert not offer.same
    stays = CONFIGS[0] if first else CONFIGS[15]
    assert stays in of_all(records)
    assert stays in [candidate.config for candidate in offer.candidates]
