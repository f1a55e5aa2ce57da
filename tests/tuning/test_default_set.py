"""Kernel sets of defaults: where a range of m is cut, and that the parts serve it."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.helpers.command_line import own_folders
from tests.helpers.fake_workbench import FakeBench
from tirgemm import Config, Gemm
from tirgemm._user_folders import user_data
from tirgemm.artifact import Trust, read
from tirgemm.artifact.signing_keys import SigningKeys
from tirgemm.detect import device
from tirgemm.errors import Unsupported
from tirgemm.families import Family, family_named, supporting
from tirgemm.families.base import require_valid
from tirgemm.families.choice import expected_time_us, ranked_defaults
from tirgemm.families.common.ranking_model import ranking_model
from tirgemm.gemm import Range
from tirgemm.tuning import default_set as default_set_module
from tirgemm.tuning.default_set import MOST_DEFAULTS, default_parts, default_set
from tirgemm.tuning.kernel_set.partition import Loss
from tirgemm.tuning.records import Status
from tirgemm.tuning.records.row_signatures import row_signatures
from tirgemm.tuning.set_tuning import SetTuning
from tirgemm.tuning.tune import Tuning


@pytest.mark.parametrize(
    ("text", "place", "least"),
    [
        ("1..2048x4096x4096:f16:nt", "sm_90a", 4),
        ("3..700x1000x1002:bf16:nt:bias:invariant", "sm_90a", 2),
        ("1..8192x1024x1024:f32:nt", "cpu", 1),
        ("4..5x64x64:f32:nt", "cpu", 1),
        # What copies A in front of the product, which a fixed m of 32 needs nothing for.
        ("31..32x576x70:bf16:tn:alpha:beta:invariant", "sm_90a", 1),
        ("5..6x576x64:f16:tt", "sm_90a", 1),
    ],
)
def test_parts_follow_one_another_and_their_configs_are_valid(text: str, place: str, least: int) -> None:
    gemm, where = Gemm.parse(text), device(place)
    parts = default_parts(gemm, where, "sustained")
    assert least <= len(parts) <= MOST_DEFAULTS
    assert parts[0].gemm.m_min == gemm.m_min
    assert parts[-1].gemm.m_max == gemm.m_max
    for before, part in itertools.pairwise(parts):
        assert before.gemm.m_max + 1 == part.gemm.m_min
        assert before.config != part.config
    for part in parts:
        require_valid(family_named(part.config.family), part.gemm, part.config, where)
        assert part.gemm.with_(m=gemm.m) == gemm


@pytest.mark.parametrize("sides", ["4096x14336", "1600x6400"])
def test_by_expectation_no_m_has_much_less_than_the_default_for_it(sides: str) -> None:
    where, model = device("sm_90a"), ranking_model(device("sm_90a"))
    parts = default_parts(Gemm.parse(f"1..8192x{sides}:f16:nt"), where, "sustained")

    def expected_us(gemm: Gemm, config: Config) -> float:
        return expected_time_us(family_named(config.family), config, gemm, where, "sustained", model)

    def share(m: int) -> float:
        """The time of the default for this one m, over that of the set's kernel."""
        gemm = Gemm.parse(f"{m}x{sides}:f16:nt")
        _, own = ranked_defaults(supporting(gemm, where), gemm, where, "sustained")[0]
        served = next(part.config for part in parts if part.gemm.m_min <= m <= part.gemm.m_max)
        return expected_us(gemm, own) / expected_us(gemm, served)

    shares = {m: share(m) for m in (1, 5, 13, 34, 89, 144, 233, 285, 377, 610, 987, 1597, 2063, 2584, 4181, 6765)}
    assert min(shares.values()) >= 0.9, shares
    assert statistics.geometric_mean(shares.values()) >= 0.97, shares


@pytest.mark.parametrize(("alone", "revoked"), [((8,), False), ((8, 14), False), ((4,), False), ((8,), True)])
def test_a_default_that_is_revoked_or_gives_a_row_other_bits_is_marked_wrong_and_the_range_cut_by_others(
    alone: tuple[int, ...], revoked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other than the first has, which is stored for its part."""
    own_folders(tmp_path, monkeypatch)
    bench, gemm = FakeBench(), Gemm.parse("4..64x96x64:f32:nt:invariant")
    default = family_named("x86").default(gemm, bench.device, "sustained")
    tiles = {tile: default.with_(tile_m=tile, threads=1) for tile in (4, 8, 14)}
    ends = {6: tiles[4], 24: tiles[8], 64: tiles[14]}

    def defaults(whole: Gemm, *_: object) -> dict[Gemm, tuple[Family, Config]]:
        return {whole.with_(m=Range(4, end)): (family_named("x86"), config) for end, config in ends.items()}

    def losses(problems: Sequence[Gemm], configs: Sequence[Config], *_: object) -> list[dict[Config, Loss]]:
        """Each is the best at its own size."""
        own = [ends[gemm.m_max] for gemm in problems]
        return [{c: Loss(1.0, 1.0) if c == best else Loss(1.5, 1.5) for c in configs} for best in own]

    monkeypatch.setattr(default_set_module, "size_defaults", defaults)
    monkeypatch.setattr(default_set_module, "losses_everywhere", losses)
    if revoked:
        made = Tuning(gemm.with_(m=Range(7, 24)), bench, "sustained").evaluator.certified_default(tiles[8])
        SigningKeys(user_data()).revoke(made.kernel_sha256)
    else:
        bench.fate = lambda config: "alone" if int(config["tile_m"]) in alone else "right"
    record = default_set(SetTuning(gemm, bench, "sustained"), default_parts(gemm, bench.device, "sustained"))
    assert (record.gemm, record.role) == (gemm, "fallback")
    assert len(set(row_signatures(record.certificate))) == 1
    served = read(bench.store.get_blob(record.artifact_sha256), Trust.of(bench.signer.public)).manifest.kernels
    odd = {8, 14} if 4 in alone else set(alone)
    assert {int(kernel.config["tile_m"]) for kernel in served} == {4, 8, 14} - odd
    part = gemm.with_(m=Range(7, 24))
    (wrong,) = bench.store.candidates(part, bench.device.key, "sustained")
    assert (wrong.config, wrong.status) == (tiles[8], Status.WRONG)


def test_what_no_family_writes_is_refused() -> None:
    with pytest.raises(Unsupported):
        default_parts(Gemm.parse("1..64x64x64:f16:nt:acc=f16"), device("cpu"), "sustained")
