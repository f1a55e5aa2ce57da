"""Wavefronts and conflicts of shared memory against a slow model written from the manuals, lane by lane."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from tirgemm.analysis.banks.shared_access import WIDTHS, SharedAccess
from tirgemm.analysis.banks.wavefronts import MODELS, NOWHERE, BankModel, analyze, bank_model
from tirgemm.errors import InvalidRequest

LANES = np.arange(32)
ACCESSES = [
    *(f"{operation}.{8 * width}" for operation in ("load", "store") for width in WIDTHS),
    *(f"cp.async.{width}" for width in (4, 8, 16, "16.ca")),
    *(
        f"{operation}.x{n}{trans}"
        for operation in ("ldmatrix", "stmatrix")
        for n in (1, 2, 4)
        for trans in ("", ".trans")
    ),
]


def by_hand(addresses: list[int], active: list[bool], access: SharedAccess) -> tuple[int, int]:
    """Wavefronts and the fewest possible, as the manuals and sm_90a's counters tell it: one request, lane by lane."""
    width = access.width
    together = {1: 32, 2: 32, 4: 32, 8: 16, 16: 8}[width]
    taking = [lane for lane in range(access.lanes) if active[lane]]
    wavefronts = fewest = first = 0
    while first < 32:
        last = first + together
        if access.operation == "load" and width >= 8:
            both = [lane for lane in taking if first <= lane < first + 2 * together]
            for distance in (1, 2):
                pairs = [(lane, lane ^ distance) for lane in both if lane ^ distance in taking]
                if first % (2 * together) == 0 and all(addresses[one] == addresses[other] for one, other in pairs):
                    last = first + 2 * together
        words: set[int] = set()
        for lane in taking:
            if first <= lane < last:
                words |= {(addresses[lane] + byte) // 4 for byte in range(width)}
        if words:
            fewest += (len(words) + 31) // 32
            most = max(sum(word % 32 == bank for word in words) for bank in range(32))
            wavefronts += (len(words) + 31) // 32 if access.past_l1 else most
        first = last
    return wavefronts, fewest


@st.composite
def requests(draw: st.DrawFn) -> tuple[SharedAccess, list[int], list[bool]]:
    """An access with addresses that meet often: random ones, strided ones, ones in pairs."""
    access = SharedAccess.parse(draw(st.sampled_from(ACCESSES)))
    kind = draw(st.sampled_from(("random", "strided", "paired")))
    units = draw(st.lists(st.integers(0, draw(st.sampled_from((3, 40, 900)))), min_size=32, max_size=32))
    if kind == "strided":
        step, first = draw(st.integers(0, 70)), draw(st.integers(0, 70))
        units = [first + step * lane for lane in range(32)]
    if kind == "paired":
        distance = draw(st.sampled_from((1, 2, 3)))
        units = [units[lane & ~distance] for lane in range(32)]
    active = [True] * 32 if draw(st.booleans()) else draw(st.lists(st.booleans(), min_size=32, max_size=32))
    return access, [unit * access.width for unit in units], active


@settings(deadline=None)
@given(st.lists(requests(), min_size=1, max_size=3))
def test_counts_are_those_of_the_slow_model(drawn: list[tuple[SharedAccess, list[int], list[bool]]]) -> None:
    access = drawn[0][0]
    same = [(addresses, active) for other, addresses, active in drawn if other.width == access.width]
    report = analyze([addresses for addresses, _ in same], access, [active for _, active in same])
    for at, (addresses, active) in enumerate(same):
        assert (int(report.wavefronts[at]), int(report.fewest[at])) == by_hand(addresses, active, access)


@settings(deadline=None)
@given(requests())
def test_phases_add_up_to_the_counts(drawn: tuple[SharedAccess, list[int], list[bool]]) -> None:
    access, addresses, active = drawn
    report = analyze(addresses, access, active)
    phases = report.phases(0)
    assert sum(phase.wavefronts for phase in phases) == report.total_wavefronts
    assert sorted(lane for phase in phases for lane in phase.lanes) == np.flatnonzero(report.active[0]).tolist()
    for phase in phases:
        for lane, banks in zip(phase.lanes, phase.banks, strict=True):
            assert [bank for bank in banks if addresses[lane] // 4 not in phase.words[bank]] == list(banks[1:])
            assert banks[0] == addresses[lane] // 4 % 32
            assert len(banks) == max(1, access.width // 4)


@settings(deadline=None)
@given(requests(), st.integers(0, 50))
def test_only_addresses_modulo_all_banks_matter(
    drawn: tuple[SharedAccess, list[int], list[bool]], further: int
) -> None:
    access, addresses, active = drawn
    report = analyze(addresses, access, active)
    moved = analyze([address + 128 * further for address in addresses], access, active)
    assert moved.total_wavefronts == report.total_wavefronts
    assert moved.total_conflicts == report.total_conflicts >= 0


@pytest.mark.parametrize(
    ("access", "addresses", "wavefronts", "conflicts"),
    [
        # CUDA C++ Programming Guide, "Strided Shared Memory Accesses": strides 1, 2 and 3 of 32-bit words.
        ("load.32", LANES * 4, 1, 0),
        ("load.32", LANES * 8, 2, 1),
        ("load.32", LANES * 12, 1, 0),
        ("load.32", LANES * 128, 32, 31),
        # The same word for all; the same words for lanes 3 to 7 and their neighbours.
        ("load.32", LANES * 0, 1, 0),
        ("load.16", LANES * 2, 1, 0),
        ("load.8", LANES, 1, 0),
        # 64 bits: half-warps, and one phase where neighbours share.
        ("load.64", LANES * 8, 2, 0),
        ("load.64", LANES // 2 * 8, 1, 0),
        ("load.64", LANES * 16, 4, 2),
        ("store.64", LANES // 2 * 8, 2, 0),
        # 128 bits: quarter-warps, half-warps where lanes n and n^1, or n and n^2, share; the forum's figures.
        ("load.128", LANES * 16, 4, 0),
        ("load.128", LANES // 2 * 16, 2, 0),
        ("load.128", (LANES & ~2) * 16, 4, 2),
        ("load.128", LANES * 0, 2, 0),
        ("load.128", LANES // 4 * 16, 2, 0),
        ("load.128", LANES % 4 * 16, 4, 0),
        ("load.128", LANES * 32, 8, 4),
        ("load.128", LANES * 128, 32, 28),
        ("store.128", LANES * 16, 4, 0),
        ("cp.async.16", LANES * 16, 4, 0),
        # ldmatrix: rows of 64 bytes meet in fours, rows of 80 do not; only the addresses that count are looked at.
        ("ldmatrix.x4", LANES * 16, 4, 0),
        ("ldmatrix.x4", LANES * 64, 16, 12),
        ("ldmatrix.x4.trans", LANES * 80, 4, 0),
        ("ldmatrix.x2", LANES * 64, 8, 6),
        ("ldmatrix.x1", LANES * 64, 4, 3),
        ("stmatrix.x4", LANES * 128, 32, 28),
    ],
)
def test_known_patterns(access: str, addresses: np.ndarray, wavefronts: int, conflicts: int) -> None:
    report = analyze(addresses, access)
    assert (report.total_wavefronts, report.total_conflicts) == (wavefronts, conflicts)
    assert report.conflicts.any() == (conflicts != 0)


@pytest.mark.parametrize(
    ("units", "active", "wavefronts", "conflicts"),
    [
        (LANES * 0 + 4, (LANES == 15) | (LANES == 16), 2, 0),
        (LANES * 0 + 4, (LANES == 0) | (LANES == 15), 1, 0),
        (LANES // 8 * 2 + LANES % 8 // 2 % 2, True, 2, 0),
        # The halves pair in different ways: the warp does not.
        (LANES // 8 * 2 + np.where(LANES < 16, LANES % 8 // 2 % 2, LANES % 2), True, 4, 0),
        (LANES // 16 * 4 + LANES % 16 // 8 + LANES % 8 // 4 * 8, True, 4, 2),
    ],
)
def test_128_bit_loads_are_served_as_ncu_counted_on_an_a100(
    units: np.ndarray, active: ArrayLike, wavefronts: int, conflicts: int
) -> None:
    """The five cases of zhuanlan.zhihu.com/p/690052715, in units of 16 bytes."""
    report = analyze(units * 16, "load.128", active, "sm_80")
    assert (report.total_wavefronts, report.total_conflicts) == (wavefronts, conflicts)


def test_lanes_that_take_no_part_want_nothing() -> None:
    report = analyze(LANES * 128, "load.32", LANES < 2)
    assert report.total_wavefronts == 2
    assert analyze(np.full(32, -3), "load.32", False).total_wavefronts == 0
    # Lanes 8 to 31 of an x1 may hold anything.
    assert analyze(np.where(LANES < 8, LANES * 16, -1), "ldmatrix.x1").total_wavefronts == 1
    assert analyze(np.zeros((0, 32)), "load.32").total_wavefronts == 0


def test_an_inactive_partner_does_not_keep_a_pair_apart() -> None:
    report = analyze(LANES // 2 * 16, "load.128", LANES % 2 == 0)
    assert (report.total_wavefronts, report.total_conflicts) == (2, 0)
    # Both halves of the pair off: nothing is wanted of them either.
    assert analyze(LANES // 2 * 16, "load.128", LANES % 4 == 0).total_wavefronts == 2


@pytest.mark.parametrize(
    ("access", "sources", "stored", "wavefronts"),
    [
        # Counted on an H200 (banks.counters.json). Side by side; halves of 32 bytes; of one bank; of one place.
        ("cp.async.16.ca", LANES * 16, LANES * 16, 4),
        ("cp.async.8", LANES % 16 * 16 + LANES // 16 * 8, LANES * 8, 4),
        ("cp.async.4", LANES * 512, LANES * 4, 32),
        ("cp.async.4", LANES * 0, LANES * 4, 32),
        ("cp.async.4", LANES * 4, LANES * 128, 32),
        # Quarter lines to rows that are padded by 16 bytes: four conflicts a phase in what is read, one in what is
        # written.
        ("cp.async.16.ca", LANES // 2 * 8192 + LANES % 2 * 16, LANES // 2 * 48 + LANES % 2 * 16, 20),
        # A row that begins in the middle of a line touches two lines, and every bank once.
        ("cp.async.8", LANES * 8 + 120, LANES * 8, 2),
        # Past L1 no pass of the data stage is counted as a conflict.
        ("cp.async.16", LANES * 16, LANES * 128, 32),
    ],
)
def test_copies_as_counted_on_sm_90a(access: str, sources: ArrayLike, stored: ArrayLike, wavefronts: int) -> None:
    report = analyze(stored, access, sources=sources)
    assert report.total_conflicts == (0 if access == "cp.async.16" else wavefronts - int(report.fewest.sum()))
    if access != "cp.async.16":
        assert report.total_wavefronts == wavefronts
        assert sum(phase.wavefronts for phase in report.phases(0)) == wavefronts


def test_lanes_that_read_nothing_have_no_conflicts_in_what_they_read() -> None:
    """The copy of forums.developer.nvidia.com/t/245066: lanes n and n + 16 read halves of 32 bytes, neighbours store
    side by side."""
    sources, stored = LANES % 16 * 32 + LANES // 16 * 16, LANES * 16
    report = analyze(stored, "cp.async.16.ca", sources=sources)
    assert (report.total_wavefronts, report.total_conflicts) == (8, 4)
    assert analyze(stored, "cp.async.16.ca", arch="sm_86", sources=sources).total_conflicts == 0
    assert analyze(stored, "cp.async.16.ca").total_conflicts == 0
    half = np.where(LANES % 8 < 4, sources, NOWHERE)
    assert analyze(stored, "cp.async.16.ca", sources=half).total_conflicts == 0


def test_the_model_is_data() -> None:
    unpaired = BankModel(pairings=())
    assert analyze(LANES // 2 * 16, "load.128", arch=unpaired).total_wavefronts == 4
    assert bank_model("sm_90a") is MODELS["sm_90a"]


@pytest.mark.parametrize("text", ACCESSES)
def test_the_text_of_an_access_round_trips(text: str) -> None:
    assert str(SharedAccess.parse(text)) == text


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: analyze(LANES * 4, "load.48"), "load of 6 bytes"),
        (lambda: analyze(LANES * 4, "load.12"), "no whole bytes"),
        (lambda: analyze(LANES * 4, "cp.async.2"), "cp.async of 2 bytes"),
        (lambda: analyze(LANES * 4, "ldmatrix.x3"), "3 matrices"),
        (lambda: analyze(LANES * 4, "atomic.32"), "is none of load.BITS"),
        (lambda: SharedAccess("load", 4, matrices=4), "no matrices"),
        (lambda: SharedAccess(cast(Any, "red"), 4), "none of load, store"),
        (lambda: analyze(LANES[:16] * 4, "load.32"), r"shape \(1, 16\)"),
        (lambda: analyze(LANES * 4 + 1, "load.32"), "address 1 of lane 0 in request 0 is not aligned"),
        (lambda: analyze(LANES * 4 - 8, "load.32"), "address -8 of lane 0 in request 0 is negative"),
        (lambda: analyze(LANES * 4, "load.32", [True, False]), r"mask of shape \(2,\)"),
        (lambda: analyze(LANES * 4, "load.32", arch="sm_60"), "no bank model of architecture 'sm_60'"),
    ],
)
def test_bad_input_is_refused_by_name(call: Callable[[], object], reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        call()
