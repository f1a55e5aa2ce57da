"""Sets of invariant problems: members that give a row other bits are left out, as a search with made up bits finds
them, and the members of a set that is built and run do not."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.helpers.fake_workbench import FakeBench
from tests.tuning import test_set_tuning as searched
from tests.tuning.test_set_tuning import REGIME, Bench, config_of, package_of, table, tuned
from tirgemm.artifact import Signer, Trust, load, pack
from tirgemm.artifact.manifest import SetContents
from tirgemm.detect import device as detect
from tirgemm.errors import VerificationFailed
from tirgemm.families import FAMILIES
from tirgemm.families.base import rejected
from tirgemm.gemm import Gemm, Range
from tirgemm.timings import Timings
from tirgemm.tuning import set_tuning
from tirgemm.tuning.build.compile import build
from tirgemm.tuning.measure.requests import RaceOptions
from tirgemm.tuning.records import Candidate, SampleSet, Status
from tirgemm.tuning.records.row_signatures import RowsDiffer, row_signatures
from tirgemm.tuning.set_members import SetPart
from tirgemm.tuning.set_tuning import SetTuning

pytestmark = pytest.mark.usefixtures("all_scored")

SEARCHED = searched.GEMM.with_(invariant=True)
MIDDLE = Range(15, 56)

CPU, X86, SIGNER = detect("cpu"), FAMILIES["x86"], Signer.generate()
# k in three blocks, a tail behind whole chunks.
GEMM = Gemm.parse("1..61x37x2100:f32:nt:bias:act=gelu:invariant")
BORDERS = (0, 1, 3, 29, 61)


def parts() -> list[SetPart]:
    """The default of the first, and for each other a drawn config that the rules accept, all with tiles of their
    own."""
    rng, made = np.random.default_rng(5), list[SetPart]()
    for below, high in itertools.pairwise(BORDERS):
        gemm = GEMM.with_(m=Range(below + 1, high) if high > below + 1 else high)
        space = X86.space(gemm, CPU)
        known = {(part.config["tile_m"], part.config["vectors"]) for part in made}
        drawn = (space.at(int(rng.integers(space.size))) for _ in range(10_000))
        able = (config for config in drawn if rejected(X86, gemm, config, CPU) is None)
        others = (config for config in able if (config["tile_m"], config["vectors"]) not in known)
        made.append(SetPart(gemm, next(others) if made else X86.default(gemm, CPU, "sustained")))
    return made


def test_every_kernel_of_a_set_gives_a_row_the_same_bits_at_every_place() -> None:
    members = tuple(build(part.gemm, part.config, CPU).contents(part.gemm, part.config, CPU) for part in parts())
    kernel = load(
        pack(SetContents(gemm=GEMM, members=members, timings=Timings()), SIGNER), trust=Trust.of(SIGNER.public)
    )
    rng = np.random.default_rng(0)
    row, b, bias = (rng.standard_normal(shape).astype(np.float32) for shape in (2100, (37, 2100), 37))
    results, called = dict[tuple[int, int], bytes](), set[str]()
    for m in sorted({m for border in BORDERS for m in (border, border + 1)} & set(range(1, 62))):
        called.add(kernel.member(m).kernel_sha256)
        for place in {0, m // 2, m - 1}:
            a = rng.standard_normal((m, 2100)).astype(np.float32)
            a[place] = row
            results[m, place] = kernel(a, b, bias=bias)[place].tobytes()
    assert len(called) == len(BORDERS) - 1
    assert len(set(results.values())) == 1, results.keys()


def wrong(bench: FakeBench, m: Range = MIDDLE) -> list[Candidate]:
    """What was recorded as wrong for a part of the range."""
    recorded = bench.store.candidates(SEARCHED.with_(m=m), bench.device.key, REGIME)
    return [candidate for candidate in recorded if candidate.status is Status.WRONG]


def test_a_member_that_gives_a_row_other_bits_is_marked_wrong_and_the_range_cut_without_it() -> None:
    bench = Bench(SEARCHED)
    bench.fate = lambda config: "alone" if config == config_of(bench, 8) else "right"
    record = tuned(bench)
    assert set(table(bench, record).values()) == {4, 14}
    assert row_signatures(record.certificate) == ("b" * 64,) * 2
    assert bench.store.kernel(SEARCHED, bench.device.key, REGIME) == record
    (candidate,) = wrong(bench)
    assert candidate.config == config_of(bench, 8)
    assert "gives a row other bits" in candidate.message
    again = tuned(bench)
    members = package_of(bench, again).manifest.members
    assert config_of(bench, 8) not in [member.config for member in members]
    assert row_signatures(again.certificate) == ("b" * 64,) * len(members)


def test_the_default_of_a_part_that_gives_a_row_other_bits_is_marked_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which it serves because it is faster there than the config that was chosen."""
    bench = Bench(SEARCHED)
    default = FAMILIES["x86"].default(SEARCHED.with_(m=MIDDLE), bench.device, REGIME)
    usual = bench.fake.time

    def time(package: bytes, options: RaceOptions, *, against: dict[str, bytes], **rest: Any) -> SampleSet:
        samples = usual(package, options, against=against, **rest)
        is_faster = options.reason == "report" and default.digest in against
        return replace(samples, baselines=samples.baselines | {default.digest: (9.0,) * 6}) if is_faster else samples

    monkeypatch.setattr(bench.fake, "time", time)
    SetTuning(SEARCHED, bench, REGIME, families=["x86"]).fallback()
    bench.fate = lambda config: "alone" if config == default else "right"
    assert table(bench, tuned(bench))["15..56"] == 8
    assert [candidate.config for candidate in wrong(bench)] == [default]


def test_where_all_give_a_row_other_bits_than_the_fallback_it_stays_and_they_are_marked_wrong() -> None:
    bench = Bench(SEARCHED)
    fallback = SetTuning(SEARCHED, bench, REGIME, families=["x86"]).fallback()
    bench.fate = lambda _: "alone"
    with pytest.raises(VerificationFailed):
        tuned(bench)
    assert bench.store.kernel(SEARCHED, bench.device.key, REGIME) == fallback
    assert wrong(bench, Range(4, 14))
    assert wrong(bench)


def test_it_ends_at_the_last_set_whose_members_give_a_row_other_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(SEARCHED)
    bench.fate = lambda config: "alone" if config == config_of(bench, 8) else "right"
    monkeypatch.setattr(set_tuning, "MOST_CUTS", 1)
    with pytest.raises(RowsDiffer):
        tuned(bench)
    assert [candidate.config for candidate in wrong(bench)] == [config_of(bench, 8)]
