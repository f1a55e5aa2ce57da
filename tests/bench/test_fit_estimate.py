"""Fit files of the families' analytic models: what they hold, what a fit writes, and that a fit finds what made the
data."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, replace
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from benchmarks import fit_estimate
from benchmarks.fit_estimate import MeasuredConfigs
from tirgemm.config import Value
from tirgemm.errors import InvalidRequest
from tirgemm.families import simt, tensorcore, wgmma, x86
from tirgemm.families.common.fit_file import FILE, Fit, fits
from tirgemm.families.wgmma.estimate import CONSTANTS, Cuts, WgmmaConstants, estimate_us
from tirgemm.families.wgmma.planning.plan import plan
from tirgemm.gemm import REGIMES, Gemm
from tirgemm.hardware import named_device

H200 = named_device("sm_90a")
ROOT = Path(__file__).resolve().parents[2]


# The package of each fit file, with the constants that the program uses and what they are.
MODELS: list[tuple[ModuleType, Mapping[str, Any], type]] = [
    (simt, simt.heuristic.CONSTANTS, simt.heuristic.SimtConstants),
    (tensorcore, tensorcore.estimate.CONSTANTS, tensorcore.estimate.MmaSyncConstants),
    (wgmma, CONSTANTS, WgmmaConstants),
    (x86, x86.heuristic.CONSTANTS, x86.heuristic.CoreConstants),
]
UNITS = (
    "us",
    "clocks",
    "instructions",
    "warps",
    "gbps",
    "per_us",
    "per_clock",
    "per_column",
    "per_kib",
    "share",
    "factor",
)
of_each_model = pytest.mark.parametrize(
    ("family", "used", "kind"), MODELS, ids=[family.__name__ for family, _, _ in MODELS]
)


@of_each_model
def test_the_constants_that_the_program_uses_are_those_of_the_file(
    family: ModuleType, used: Mapping[str, Any], kind: type
) -> None:
    regimes = json.loads(files(family).joinpath(FILE).read_text())
    assert {regime: asdict(constants) for regime, constants in used.items()} == {
        regime: fit["constants"] for regime, fit in regimes.items()
    }
    read: Mapping[str, Fit[Any]] = fits(family.__name__, kind)
    assert {regime: fit.constants for regime, fit in read.items()} == used
    for regime, fit in read.items():
        assert json.loads(json.dumps(fit.provenance.to_json())) == regimes[regime]["provenance"]


@of_each_model
def test_the_name_of_a_constant_ends_with_its_unit(family: ModuleType, used: Mapping[str, Any], kind: type) -> None:
    del family, used
    for field in fields(kind):
        assert field.name.removesuffix("_sm_90a").endswith(tuple(f"_{unit}" for unit in UNITS)), field.name


@pytest.mark.parametrize(
    ("change", "error", "sentence"),
    [
        ({"commit": ""}, ValueError, "commit is empty"),
        ({"fitted_to": []}, ValueError, "must name what the constants were fitted to"),
        ({"command": None}, TypeError, "command"),
        ({"by_hand": {"launch": {"fitted_to": "a", "commit": "b", "date": "c"}}}, ValueError, "by_hand names launch"),
        ({"by_hand": {"launch_us": {"fitted_to": "", "commit": "b", "date": "c"}}}, ValueError, "fitted_to is empty"),
    ],
)
def test_a_fit_without_its_provenance_is_refused(
    change: dict[str, Any], error: type[Exception], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    regimes = json.loads(files(x86).joinpath(FILE).read_text())
    provenance = regimes["isolated"]["provenance"] | change
    regimes["isolated"]["provenance"] = {name: value for name, value in provenance.items() if value is not None}
    package = tmp_path / "model_with_a_fit"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / FILE).write_text(json.dumps(regimes))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, package.name, raising=False)
    with pytest.raises(error, match=sentence):
        fits(package.name, x86.heuristic.CoreConstants)


@pytest.mark.parametrize("family", [simt, tensorcore, wgmma, x86], ids=lambda family: family.__name__)
def test_a_fit_file_has_every_regime_and_says_where_it_comes_from(family: ModuleType) -> None:
    regimes = json.loads(files(family).joinpath(FILE).read_text())
    assert list(regimes) == list(REGIMES)
    for fit in regimes.values():
        assert {"fitted_to", "device", "command", "commit", "date"} <= fit["provenance"].keys()
        assert all(fit["provenance"].values())
        assert all(math.isfinite(value) for value in fit["constants"].values())


def test_what_was_fitted_to_runs_that_were_not_kept_names_no_commit_of_them() -> None:
    for fit in fits(simt.__name__, simt.heuristic.SimtConstants).values():
        assert fit.provenance.records_commit == ""


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two committed records files, and the commits that are made: the second file came with the second, the first as it
    is now with the third, and the fourth has neither."""
    monkeypatch.chdir(tmp_path)
    git(tmp_path, "init", "--quiet")
    commits = []
    for seconds, name, text in ((1, "records", "a"), (2, "others", "b"), (3, "records", "c"), (4, "notes", "d")):
        path = tmp_path / "some" / f"{name}.gz"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        git(tmp_path, "add", ".")
        monkeypatch.setenv("GIT_COMMITTER_DATE", f"{1_800_000_000 + seconds} +0000")
        git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", "commit", "-qm", text)
        commits.append(git(tmp_path, "rev-parse", "HEAD"))
    return commits


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_of_records_is_the_first_that_has_all_of_them_as_they_are(records: list[str]) -> None:
    assert fit_estimate.records_commit(["some/others.gz"]) == records[1]
    assert fit_estimate.records_commit(["some/records.gz"]) == records[2]
    assert fit_estimate.records_commit(["some/records.gz", "some/others.gz"]) == records[2]


@pytest.mark.parametrize("name", ["records", "uncommitted"])
def test_a_fit_to_what_is_not_committed_is_not_written(name: str, records: list[str], tmp_path: Path) -> None:
    del records
    path, changed = tmp_path / FILE, f"some/{name}.gz"
    path.write_text(fit_estimate.ESTIMATE.read_text())
    (tmp_path / changed).write_text("changed")
    with pytest.raises(InvalidRequest, match=rf"{changed} is not committed as it is"):
        fit_estimate.write("sustained", CONSTANTS["sustained"], H200, ["fit_estimate.py", changed], path)
    assert path.read_text() == fit_estimate.ESTIMATE.read_text()


def test_a_written_fit_replaces_one_regime_and_names_its_command(tmp_path: Path, records: list[str]) -> None:
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
    assert provenance["records_commit"] == records[2]
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
