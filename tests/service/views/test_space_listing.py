"""The list of spaces: order, counts, filters and pages over the database and the shipped records beneath it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import recorded_space
from tests.helpers.recorded_space import DEVICE, GEMM, REGIME
from tests.helpers.shipped_files import measured_on, ship
from tests.service.pages.query_plans import query_plans
from tirgemm.config import Config
from tirgemm.errors import PageNotFound
from tirgemm.gemm import Gemm
from tirgemm.service.views.spaces.listing import SpaceFilter, SpaceSummary, list_spaces, recorded_devices
from tirgemm.tuning_db import Database, SqlStore
from tirgemm.tuning_db.shipped.records import ShippedRecords

SHIPPED = [Gemm.parse(f"{m}x67x{31 + m}:f16:nn") for m in (5, 3, 9)]
SIMT = Config("simt", (("block_m", 8), ("pad", 4)))


@pytest.fixture
def shipped(tmp_path: Path) -> ShippedRecords:
    """Three problems of ``simt`` in their order, and two candidates of the problem that is tuned here."""
    records = [candidate for gemm in SHIPPED for candidate in measured_on(DEVICE, gemm, [(SIMT, 3.0)], "isolated")]
    mine = [(recorded_space.config(tile_m=64, tile_n=16, stages=3), 1.5), (SIMT, 12.0)]
    return ship(tmp_path / "shipped", DEVICE, [*records, *measured_on(DEVICE, GEMM, mine)])


def _fill(database: Database, *gemms: Gemm) -> None:
    for gemm in gemms:
        recorded_space.record(database, [recorded_space.candidate(SIMT, 7.0, gemm)])


def _listed(database: Database, shipped: ShippedRecords, **wanted: str) -> list[str]:
    spaces, _ = list_spaces(database, shipped, SpaceFilter(**wanted))
    return [space.gemm for space in spaces]


def test_own_spaces_come_newest_first_and_shipped_ones_behind_in_their_order(
    database: Database, shipped: ShippedRecords
) -> None:
    first, second = Gemm.parse("7x9x11:f16:nt"), Gemm.parse("3x9x11:f16:nt")
    _fill(database, first, second)
    assert _listed(database, shipped) == [str(gemm) for gemm in (second, first, *SHIPPED, GEMM)]


def test_a_space_counts_its_candidates_by_status_and_family_own_and_shipped_ones_once(
    database: Database, shipped: ShippedRecords
) -> None:
    recorded_space.record(database, recorded_space.every())
    spaces, _ = list_spaces(database, shipped, SpaceFilter(gemm=str(GEMM)))
    assert spaces == [
        SpaceSummary(
            gemm=str(GEMM),
            device=DEVICE.key,
            regime=REGIME,
            statuses={"pruned": 1, "build_failed": 1, "wrong": 1, "measured": 61},
            families={"mma": 63, "simt": 1},
            shipped=1,
            best_us=12.0,
            best_family="simt",
            url=spaces[0].url,
        )
    ]
    assert (spaces[0].measured, spaces[0].failed, spaces[0].pruned) == (61, 2, 1)


@pytest.mark.parametrize(
    ("wanted", "kept"),
    [
        ({"gemm": ":bf16:"}, ["own"]),
        ({"gemm": "5x67x"}, ["5"]),
        ({"gemm": "_"}, []),
        ({"dtype": "f16"}, ["5", "3", "9"]),
        ({"family": "mma"}, ["own"]),
        ({"family": "simt"}, ["5", "3", "9"]),
        ({"device": "sm_90a"}, ["own", "5", "3", "9"]),
        ({"device": "cpu"}, []),
        ({"regime": "isolated"}, ["5", "3", "9"]),
        ({"regime": "sustained", "device": DEVICE.key}, ["own"]),
    ],
    ids=str,
)
def test_filters_keep_what_fits(database: Database, tmp_path: Path, wanted: dict[str, str], kept: list[str]) -> None:
    SqlStore(database).add_candidate(recorded_space.PRUNED)
    records = [c for gemm in SHIPPED for c in measured_on(DEVICE, gemm, [(SIMT, 3.0)], "isolated")]
    shipped = ship(tmp_path / "shipped", DEVICE, records)
    names = {"own": str(GEMM), "5": str(SHIPPED[0]), "3": str(SHIPPED[1]), "9": str(SHIPPED[2])}
    assert _listed(database, shipped, **wanted) == [names[name] for name in kept]


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_pages_of_own_spaces_alone_go_on_to_the_last(database: Database, tmp_path: Path, limit: int) -> None:
    own = [Gemm.parse(f"{m}x9x11:f16:nt") for m in range(7, 0, -1)]
    _fill(database, *own)
    listed: list[str] = []
    after: str | None = ""
    while after is not None and len(listed) <= len(own):
        part, after = list_spaces(database, ShippedRecords(tmp_path), SpaceFilter(), after, limit)
        listed += [space.gemm for space in part]
    assert listed == [str(gemm) for gemm in reversed(own)]


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_pages_have_every_space_once(database: Database, shipped: ShippedRecords, limit: int) -> None:
    own = [Gemm.parse(f"{m}x9x11:f16:nt") for m in (7, 5, 3)]
    _fill(database, *own)
    SqlStore(database).add_candidate(
        recorded_space.candidate(SIMT, 7.0, own[1]).with_(regime="isolated", device_key="cuda:sm_80:other:8")
    )
    SqlStore(database).add_candidate(recorded_space.candidate(SIMT, 7.0, own[1]).with_(regime="isolated"))
    SqlStore(database).add_candidate(recorded_space.FAILED)  # of a problem that is shipped, too
    whole, more = list_spaces(database, shipped, SpaceFilter())
    assert more is None
    assert len(whole) == 3 + 2 + len(SHIPPED) + 1
    listed: list[SpaceSummary] = []
    after: str | None = ""
    while after is not None and len(listed) <= len(whole):
        part, after = list_spaces(database, shipped, SpaceFilter(), after, limit)
        assert len(part) == limit or after is None
        listed += part
    assert listed == whole


def test_a_space_that_a_filter_keeps_for_its_shipped_candidates_alone_is_listed(
    database: Database, shipped: ShippedRecords
) -> None:
    SqlStore(database).add_candidate(recorded_space.FAILED)
    assert _listed(database, shipped, family="simt", dtype="bf16") == [str(GEMM)]
    assert _listed(database, shipped, family="mma", dtype="bf16") == [str(GEMM)]


@pytest.mark.parametrize(
    "after", ["x", "own", "own 1x1x1 a", f"own 1x1x1:f16:nt {DEVICE.key} isolated", "shipped 1x1x1:f16:nt a sustained"]
)
def test_a_place_that_no_page_ended_with_is_refused(database: Database, shipped: ShippedRecords, after: str) -> None:
    with pytest.raises(PageNotFound, match="after"):
        list_spaces(database, shipped, SpaceFilter(), after)


def test_devices_are_those_of_the_database_and_of_the_files(database: Database, shipped: ShippedRecords) -> None:
    for key in ("cpu:x:y:1:z", "cuda:sm_80:other:8"):
        SqlStore(database).add_candidate(recorded_space.PRUNED.with_(device_key=key))
    assert recorded_devices(database, shipped) == sorted(["cpu:x:y:1:z", "cuda:sm_80:other:8", DEVICE.key])


def test_counting_reads_an_index_and_no_row(database: Database, shipped: ShippedRecords) -> None:
    """Rows hold traces of many kilobytes."""
    SqlStore(database).add_candidate(recorded_space.PRUNED)
    with query_plans(database) as plans:
        list_spaces(database, shipped, SpaceFilter(family="mma", device=DEVICE.key, regime=REGIME))
    reads = [step for plan in plans for step in plan.steps if "candidates" in step]
    assert reads
    assert all("USING COVERING INDEX" in step for step in reads), reads


def test_families_of_a_member_are_those_of_its_candidates(shipped: ShippedRecords) -> None:
    (file,) = shipped.files()
    for key, gemm, regime in file.places:
        candidates = file.candidates(key, gemm, regime)
        assert file.families(key, gemm, regime) == {each.config.family for each in candidates}
    assert file.families(DEVICE.key, str(GEMM), REGIME) == {"mma", "simt"}
