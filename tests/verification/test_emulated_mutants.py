"""Mutants in the emulator: the source that is all of them, the smaller problems, the rows, and the tables of them."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import check
from benchmarks.evidence_tables import evidence as evidence_table
from benchmarks.evidence_tables import mutants as mutants_table
from tests.helpers.named_config import named_config
from tirgemm.bench import results
from tirgemm.families import family_named
from tirgemm.families.simt.tiling import PIPELINES
from tirgemm.gemm import Gemm, Range
from tirgemm.hardware import named_device
from verification import alterations, emulated, evidence
from verification.altered import lowered
from verification.cases import Case
from verification.evidence import EvidenceFile
from verification.mutants import NOT_CAUGHT, PASSED, UNALTERED, MutantRun
from verification.smaller import smaller
from verification.switched import switched

H200 = named_device("sm_90a")
KNOBS = {
    "simt": (
        "1..905x1003x520:f32:nt:align=4",
        "block_m=64 block_n=32 block_k=8 thread_m=8 thread_n=4 piece=8 raster=4 pipeline=async3",
    ),
    "mma": (
        "1100x1003x712:f16:tt:lda=1104:align=2",
        "tile_m=64 tile_n=32 tile_k=64 warps_m=4 warps_n=1 stages=3 split=2",
    ),
    "wmma": ("1100x1003x712:bf16:nn:out=f32", "tile_m=32 tile_n=64 tile_k=32 warps_m=2 warps_n=2 stages=2"),
}


def case_of(family: str) -> Case:
    text, knobs = KNOBS[family]
    gemm = Gemm.parse(text)
    return Case(gemm, named_config(family_named(family), gemm, H200, knobs))


@pytest.mark.parametrize("family", KNOBS)
def test_smaller_problems_keep_alignment_and_edges(family: str) -> None:
    case = case_of(family)
    knobs: dict[str, Any] = dict(case.config.knobs)
    problems = list(smaller(case, H200))
    stages, split = knobs.get("stages", PIPELINES.get(str(knobs.get("pipeline")))), knobs.get("split", 1)
    step = knobs.get("tile_k", knobs.get("block_k")) * split
    assert len({-(-gemm.k // step) % stages for gemm in problems}) == 1
    assert problems[-1] == case.gemm
    assert problems[0].flops < case.gemm.flops / 20
    assert [gemm.flops for gemm in problems] == sorted(gemm.flops for gemm in problems)
    for gemm in problems:
        assert isinstance(gemm.m, Range) == isinstance(case.gemm.m, Range)
        for name in ("dtype", "layout", "acc", "out", "batch", "align", "alpha", "beta", "bias", "act"):
            assert getattr(gemm, name) == getattr(case.gemm, name)
        for operand in ("a", "b", "c", "d"):
            rows = gemm.leading(operand), case.gemm.leading(operand)
            assert all(isinstance(ld, int) for ld in rows)
            assert int(str(rows[0])) % 16 == int(str(rows[1])) % 16
        for tile, size, whole in (
            ("m", gemm.m_max, case.gemm.m_max),
            ("n", gemm.n, case.gemm.n),
            ("k", gemm.k, case.gemm.k),
        ):
            extent = int(knobs.get(f"tile_{tile}", knobs.get(f"block_{tile}", 0)))
            assert (size % extent == 0) == (whole % extent == 0)
            assert size > extent
        assert -(-gemm.n // (knobs.get("tile_n") or knobs["block_n"])) % knobs["raster"] == 0


def test_a_small_problem_stays_as_it_is() -> None:
    gemm = Gemm.parse("7x40x16:f16:nt")
    case = case_of("mma")
    assert {(actual.m, actual.n) for actual in smaller(Case(gemm, case.config), H200)} == {(7, 40)}
    assert all(actual.m == 7 and actual.k == 16 for actual in smaller(Case(gemm, case.config), H200))


@pytest.mark.parametrize(("reduction", "tiles"), [("kernel", 3), ("cluster", 2)])
def test_blocks_of_a_persistent_kernel_compute_several_tiles_of_the_smaller_problem(reduction: str, tiles: int) -> None:
    gemm, family = Gemm.parse("640x640x4096:f16:nt"), family_named("wgmma")
    config = family.default(gemm, H200, "sustained").with_(
        tile_m=64, tile_n=64, cluster_m=1, cluster_n=1, split=2, reduction=reduction
    )
    first = next(smaller(Case(gemm, config), H200))
    assert (first.m, first.n) == (64 * tiles, 64 * tiles)


def test_a_switched_source_has_every_mutant_in_its_line() -> None:
    case = case_of("mma")
    _, source = lowered(case.gemm, case.config, H200)
    names = [mutant.alteration for mutant in alterations.mutants(source)]
    text = switched(source, names)
    chosen = [line for line in text.splitlines() if "if (tirgemm_mutant ==" in line]
    for number, name in enumerate(names, 1):
        (line,) = (line for line in chosen if f"== {number})" in line)
        statement = source.splitlines()[int(name.partition(":")[2])].strip()
        assert line.endswith(f"else {{ {statement} }}")
        made = line.partition(f"== {number}) {{")[2].partition("}")[0].strip()
        assert made == ("" if name.startswith("drop") else statement.replace("(", "_weaker(", 1))
        assert made == "" or f"void {made.partition('(')[0]}(" in text


@pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator compiles with g++")
def test_rows_of_a_kernel_name_what_the_emulator_sees() -> None:
    case = case_of("mma")
    _, source = lowered(case.gemm, case.config, H200)
    jobs = [MutantRun(case, mutant) for mutant in (UNALTERED, *alterations.mutants(source))]
    rows = emulated.kernel_rows(case, jobs, H200, threading.Lock(), time.monotonic() + 300)
    assert set(rows) == set(jobs)
    assert rows[jobs[0]]["status"] == PASSED
    for job in jobs[1:]:
        if "wait_group" in job.mutant.what or job.mutant.where.endswith("steps"):
            assert rows[job]["status"] == emulated.WRONG
            assert "order" in rows[job]["message"]
    assert {row["emulated"] for row in rows.values()} == {str(next(smaller(case, H200)))}
    assert emulated.kernel_rows(case, jobs, H200, threading.Lock(), time.monotonic() - 1) == {}


def test_a_kernel_that_is_wrong_as_it_is_is_a_find(monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of("mma")
    _, source = lowered(case.gemm, case.config, H200)
    jobs = [MutantRun(case, mutant) for mutant in (UNALTERED, *alterations.mutants(source)[:2])]
    said = iter([(0, emulated.WRONG, "order 1: 3 of 9 elements differ")])
    monkeypatch.setattr(emulated, "_results", lambda *_: said)
    rows = emulated.kernel_rows(case, jobs, H200, threading.Lock(), time.monotonic() + 300)
    assert list(rows) == jobs[:1]
    actual = [{"key": job.key} | job.row | row for job, row in rows.items()]
    assert emulated.failures(actual) == [jobs[0].key]


def test_a_mutant_that_breaks_its_process_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of("mma")
    _, source = lowered(case.gemm, case.config, H200)
    jobs = [MutantRun(case, mutant) for mutant in (UNALTERED, *alterations.mutants(source)[:3])]
    begun: list[int] = []

    def results(*arguments: object) -> list[tuple[int, str, str]]:
        first = int(str(arguments[5]))
        begun.append(first)
        if first == 1:
            return [(0, NOT_CAUGHT, ""), (1, emulated.WRONG, "x"), (2, emulated.CRASH, "exit code -6")]
        return [(0, NOT_CAUGHT, ""), (3, NOT_CAUGHT, "")]

    monkeypatch.setattr(emulated, "_results", results)
    rows = emulated.kernel_rows(case, jobs, H200, threading.Lock(), time.monotonic() + 300)
    assert begun == [1, 3]
    assert [rows[job]["status"] for job in jobs] == [PASSED, emulated.WRONG, emulated.CRASH, NOT_CAUGHT]


def test_tables_say_what_the_emulator_adds(tmp_path: Path) -> None:
    case = case_of("mma")
    jobs = [
        MutantRun(case, alterations.Mutant(name, "a wait removed", "here")) for name in ("drop:1", "drop:2", "drop:3")
    ]
    device = EvidenceFile(tmp_path / "gpu" / "mma.mutants.json.gz", "mutants", "mma", H200, commit="abc")
    cpu = EvidenceFile(tmp_path / "cpu" / "mma.emulated.json.gz", "emulated", "mma", H200, commit="abc")
    for file in (device, cpu):
        file.path.parent.mkdir()
    for job, there, here in zip(
        jobs, ("exact test", NOT_CAUGHT, NOT_CAUGHT), (emulated.WRONG,) * 2 + (NOT_CAUGHT,), strict=True
    ):
        device.add(job.key, job.row | {"status": there})
        cpu.add(job.key, job.row | {"status": here, "emulated": "64x64x64:f16:nt"})
    device.save()
    assert mutants_table(tmp_path / "gpu", tmp_path).splitlines()[-1] == "| a wait removed | exact test 1 | 3 | 2 | 2 |"
    cpu.save()
    row = mutants_table(tmp_path / "gpu", tmp_path).splitlines()[-1]
    assert row == "| a wait removed | exact test 1 | 3 | 2 | 2 | wrong 1, not caught 1 |"
    assert (
        mutants_table(tmp_path / "cpu", tmp_path).splitlines()[-1] == "| a wait removed | emulator: wrong 2 | 3 | 1 |"
    )


def test_a_table_of_evidence_names_the_files_that_there_are_not(tmp_path: Path) -> None:
    for folder, kind in (("gpu", "sanitized"), ("cpu", "emulated")):
        (tmp_path / folder).mkdir()
        file = EvidenceFile(tmp_path / folder / f"mma.{kind}.json.gz", kind, "mma", H200, commit="abc")
        file.add("one", {"status": PASSED, "mutant": "", "emulated": "64x64x64:f16:nt"})
        file.save()
    every = "`simt`, `mma`, `wmma`, `wgmma`"
    assert evidence_table(tmp_path / "gpu", tmp_path).splitlines()[-1] == (
        f"There is no file of random cases of {every}; mutants of {every}; "
        "compute-sanitizer of `simt`, `wmma`, `wgmma`."
    )
    assert evidence_table(tmp_path / "cpu", tmp_path).splitlines()[-1] == (
        "There is no file of mutants on the emulator of `simt`, `wmma`, `wgmma`."
    )


def test_evidence_of_an_emulator_names_its_problems_and_has_no_find(tmp_path: Path) -> None:
    file = EvidenceFile(tmp_path / "mma.emulated.json.gz", "emulated", "mma", H200, commit="abc")
    file.add("one", {"status": PASSED, "mutant": "", "emulated": "64x64x64:f16:nt"})
    file.add("two", {"status": "not emulated: no reason", "mutant": "drop:1"})
    file.save()
    document = results.load(file.path)
    assert evidence.faults(document) == []
    assert document["sources_sha256"] != evidence.sources_sha256("mma", "mutants")
    file.add("three", {"status": emulated.WRONG, "mutant": "", "emulated": "64x64x64:f16:nt"})
    file.add("four", {"status": emulated.WRONG, "mutant": "drop:1"})
    file.save()
    assert len(evidence.faults(results.load(file.path))) == 2
    good = file.path.with_name("good.json.gz")
    EvidenceFile(good, "emulated", "mma", H200, commit="abc").save()
    assert any("make the name mma.emulated.json.gz" in sentence for sentence in check.faults(good))
