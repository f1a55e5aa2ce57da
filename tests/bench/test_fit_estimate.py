"""Fit files of the families' analytic models: what they hold, what a fit writes, and that a fit finds what made the
data."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Callable
from dataclasses import fields, replace
from importlib.resources import files
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from benchmarks import fit_estimate
from benchmarks.fit_estimate import MeasuredConfigs
from tirgemm.config import Value
from tirgemm.families import simt, tensorcore, wgmma
from tirgemm.families.common.fit_file import FILE
from tirgemm.families.wgmma.estimate import CONSTANTS, Cuts, estimate_us
from tirgemm.families.wgmma.planning.plan import plan
from tirgemm.gemm import REGIMES, Gemm
from tirgemm.hardware import named_device

H200 = named_device("sm_90a")
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("family", [simt, tensorcore, wgmma], ids=lambda family: family.__name__)
def test_a_fit_file_has_every_regime_and_says_where_it_comes_from(family: ModuleType) -> None:
    regimes = json.loads(files(family).joinpath(FILE).read_text())
    assert list(regimes) == list(REGIMES)
    for fit in regimes.values():
        assert {"fitted_to", "device", "command", "commit", "date"} <= fit["provenance"].keys()
        assert all(fit["provenance"].values())
        assert all(math.isfinite(value) for value in fit["constants"].values())


def test_a_written_fit_replaces_one_regime_and_names_its_command(tmp_path: Path) -> None:
    path = tmp_path / FILE
    path.write_text(fit_estimate.ESTIMATE.read_text())
    before = json.loads(path.read_text())
    constants = replace(CONSTANTS["sustained"], launch_us=2.123456)
    fit_estimate.write("sustained", constants, H200, ["fit_estimate.py", "some/records.gz", "--write"], path)
    after = json.loads(path.read_text())
    assert after["isolated"] == before["isolated"]
    assert after["sustained"]["constants"] == before["sustained"]["constants"] | {"launch_us": 2.123}
    provenance = after["sustained"]["provenance"]
    assert provenance["command"] == "python fit_estimate.py some/records.gz --write"
    assert provenance["fitted_to"] == ["some/records.gz"]
    assert provenance["device"] == H200.model
    head = subprocess.run(["git", "rev-parse", "HEAD"], check=False, capture_output=True, text=True, cwd=ROOT)
    assert head.returncode or provenance["commit"].startswith(head.stdout.strip())


def test_the_error_is_least_at_the_constants_that_made_the_times() -> None:
    gemm, family = Gemm.parse("4096x4096x4096:f16:nt"), wgmma.Wgmma()
    default = family.default(gemm, H200, "sustained")
    rows = [Cuts.of(plan(gemm, default.with_(stages=stages), H200.units)) for stages in (2, 3, 4, 5)]
    cuts = Cuts(*(np.array([getattr(row, field.name) for row in rows]) for field in fields(Cuts)))
    problem = MeasuredConfigs(gemm, cuts, estimate_us(cuts, gemm, H200, "sustained"))
    present = CONSTANTS["sustained"]
    assert fit_estimate.error([problem], H200, "sustained", present) == 0.0
    slower = replace(present, launch_us=2 * present.launch_us)
    assert fit_estimate.error([problem], H200, "sustained", slower) > 0.0
    assert fit_estimate.regret([problem], H200, "sustained", present) == (1.0, 1.0)


def estimates_of(text: str, **tile: Value) -> Callable[..., float]:
    """Microseconds by the estimate of unshared tiles loaded and stored by TMA, for problems and changes of knobs."""
    alone = (
        wgmma.Wgmma()
        .default(Gemm.parse(text), H200, "sustained")
        .with_(**tile, tile_k=64, schedule="cooperative", resident=1, cluster_m=1, cluster_n=1, swap=0, split=1)
        .with_(load="tma", epilogue="tma")
    )

    def us(problem: str, **changes: int) -> float:
        gemm = Gemm.parse(problem)
        return float(estimate_us(Cuts.of(plan(gemm, alone.with_(**changes), H200.units)), gemm, H200, "sustained"))

    return us


def test_tiles_that_are_shared_gain_where_rows_are_no_whole_lines() -> None:
    """Of an operand that TMA loads, each piece of a row that lies across two lines of L2 is read from both."""
    us = estimates_of("4096x4096x4096:f16:nt", tile_m=128, tile_n=256, stages=4)
    whole, half, none = "4992x4992x4992:f16:nt", "4992x4992x5024:f16:nt", "4992x4992x5000:f16:nt"
    assert us(whole) < us(half) < us(none)
    assert us(none) > 1.1 * us(whole)
    # What clusters share is read once for two blocks.
    assert us(none, cluster_m=2) / us(none) < 0.95 * us(whole, cluster_m=2) / us(whole)


def test_small_tiles_are_slow_where_rows_are_not_aligned_to_sectors_and_clusters_help() -> None:
    us = estimates_of("1024x1024x1024:f16:nt", tile_m=64, tile_n=128, stages=8)
    sectors, misaligned = ("1024x1024x1024:f16:nt:lda=1040:ldb=1040", "1024x1024x1024:f16:nt:lda=1032:ldb=1032")
    assert us(misaligned) > 1.2 * us(sectors)
    assert us(misaligned, cluster_m=4, cluster_n=2) < us(misaligned)
    assert us(sectors, cluster_m=4, cluster_n=2) > us(sectors)
