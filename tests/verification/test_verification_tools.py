"""The verification scripts' parts that need no GPU: cases, altered sources, coverings, evidence files, sanitizer
words."""

from __future__ import annotations

import gzip
import json
import time
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.computed_once import computed_once
from tests.helpers.named_config import named_config
from tests.helpers.wgmma_paths import named_cases
from tests.verification.covering_cases import classes
from tirgemm.artifact import Signer
from tirgemm.bench import results
from tirgemm.errors import InvalidConfig, InvalidRequest
from tirgemm.families import family_named
from tirgemm.families.base import rejected
from tirgemm.families.simt.tiling import PIPELINES, READS
from tirgemm.families.wgmma import Wgmma
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from verification import alterations, emulated, evidence, mutants, sanitized_call, sanitizer, verify_family
from verification.altered import build, lowered, with_alteration
from verification.cases import Case, missing_choices, random_cases, special_cases
from verification.covering import build_cost, covering, paths, small_cases, warps
from verification.evidence import EvidenceFile
from verification.sanitize import plantable
from verification.sanitizer import CLEAN, FOUND, SanitizerReport

FAMILY = Wgmma()
H200 = named_device("sm_90a")
RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
STAGED_PINGPONG = (
    "777x1003x136:bf16:nt",
    "tile_m=64 tile_n=32 stages=3 schedule=pingpong cluster_m=2 epilogue=staged group=4",
)


@cache
def cases() -> list[Case]:
    return random_cases(FAMILY, H200, 90, seed=5)


@cache
def source() -> str:
    """The CUDA source of a small kernel: pingpong in a cluster."""
    text, knobs = STAGED_PINGPONG
    gemm = Gemm.parse(text)
    return lowered(gemm, named_config(FAMILY, gemm, H200, knobs), H200)[1]


# -- cases -----------------------------------------------------------------------------------------


def test_random_cases_are_reproducible_valid_and_different() -> None:
    assert random_cases(FAMILY, H200, 12, seed=5) == cases()[:12]
    assert len(set(cases())) == 90
    for case in cases():
        assert FAMILY.supports(case.gemm, H200) is None
        FAMILY.space(case.gemm, H200).check(case.config)
        assert rejected(FAMILY, case.gemm, case.config, H200) is None


def test_random_cases_have_every_choice_of_every_knob() -> None:
    # The rarest, long splits, need hundreds of cases: the script itself checks those that it draws.
    assert [choice for choice in missing_choices(FAMILY, H200, cases()) if choice[0] != "split"] == []


def test_a_choice_that_no_case_has_is_missed() -> None:
    without = [case for case in cases() if case.config["tile_n"] != 64]
    assert ("tile_n", 64) in missing_choices(FAMILY, H200, without)


def test_special_cases_have_sizes_of_one_in_every_layout() -> None:
    actual, _ = special_cases(FAMILY, H200)
    for size in ("m", "n", "k"):
        assert {case.gemm.layout for case in actual if getattr(case.gemm, size) == 1} == {"nn", "nt", "tn", "tt"}


def test_named_paths_are_configs_that_the_rules_accept() -> None:
    cases = list(named_cases(H200))
    assert {case.config["load"] for case in cases} == {"tma", "repack", "copy"}
    assert {case.config["reduction"] for case in cases if case.config["split"] > 1} == {
        "block",
        "cluster",
        "kernel",
    }


def test_a_named_config_with_a_wrong_choice_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="tile_m=65"):
        named_config(FAMILY, Gemm.parse("777x1003x136:bf16:nt"), H200, "tile_m=65")


def test_few_cases_cover_what_many_cover() -> None:
    of = classes(cases())
    few = covering(cases(), of, build_cost)
    assert len(few) < 30
    assert frozenset().union(*(of(case) for case in few)) == frozenset().union(*(of(case) for case in cases()))
    kinds = {case.config["schedule"] for case in covering(small_cases(FAMILY, H200, 60, plain=True), paths, build_cost)}
    assert kinds == {"cooperative", "pingpong"}


def test_simt_is_drawn_with_fp32_every_pipeline_and_what_only_rungs_choose() -> None:
    cases = small_cases(family_named("simt"), H200, 60, plain=True)
    actual = {feature for case in covering(cases, paths, build_cost) for feature in case.features}
    assert {("pipeline", name) for name in PIPELINES} | {("reads", name) for name in READS} <= actual
    assert {("barriers", 1), ("barriers", 2)} <= actual
    assert {case.gemm.dtype for case in cases} == {"f16", "bf16", "f32"}
    assert warps(plantable(cases)) > 1


@pytest.mark.parametrize(
    ("family", "knobs", "count"),
    [
        ("mma", "tile_m=64 tile_n=32 warps_m=2 warps_n=1", 2),
        ("simt", "block_m=64 block_n=64 block_k=8 thread_m=4 thread_n=4 lanes_n=8 piece=4", 8),
    ],
)
def test_warps_of_a_block_are_what_the_kernel_is_launched_with(family: str, knobs: str, count: int) -> None:
    gemm = Gemm.parse("1100x1160x520:f16:nn")
    case = Case(gemm, named_config(family_named(family), gemm, H200, knobs))
    launch, _ = lowered(case.gemm, case.config, H200)
    assert warps(case) == count
    x, y, z = cast(Any, launch.kernels[0]).block
    assert x * y * z == 32 * count


# -- altered sources -------------------------------------------------------------------------------


def test_sites_are_the_lines_that_synchronise() -> None:
    sites = alterations.sites(source())
    words = " ".join(site.what for site in sites)
    for word in (
        "mbarrier.try_wait",
        "mbarrier.arrive",
        "fence.proxy.async",
        "barrier.cluster",
        "bar.sync",
        "wgmma.wait_group",
    ):
        assert word in words
    assert {site.where.partition(": ")[2] for site in sites} == {"start", "producer", "consumer", "epilogue"}
    lines = source().splitlines()
    assert all(lines[site.line].strip() == site.text for site in sites)


@pytest.mark.parametrize(
    ("family", "knobs", "parts"),
    [
        ("mma", "tile_m=64 tile_n=32 warps_m=2 warps_n=1 stages=3 epilogue=staged", {"start", "steps", "end"}),
        ("wmma", "tile_m=64 tile_n=32 warps_m=2 warps_n=1 stages=3", {"start", "steps", "end"}),
    ],
)
def test_sites_of_other_families_are_before_in_and_behind_their_loop(family: str, knobs: str, parts: set[str]) -> None:
    gemm = Gemm.parse("1100x1160x520:f16:nn")
    _, text = lowered(gemm, named_config(family_named(family), gemm, H200, knobs), H200)
    sites = alterations.sites(text)
    assert {site.where.partition(": ")[2] for site in sites} == parts
    assert {"__syncthreads", "cp.async.commit_group", "cp.async.wait_group 1"} <= {site.what for site in sites}


def test_each_mutant_changes_its_lines_only() -> None:
    before = source().splitlines()
    for mutant in alterations.mutants(source()):
        after = alterations.altered(source(), mutant.alteration).splitlines()
        if mutant.alteration.startswith("drop"):
            numbers = [int(number) for number in mutant.alteration.partition(":")[2].split(",")]
            assert [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b] == numbers
        else:
            assert len(set(after) - set(before)) >= 2


def test_delays_stand_before_every_synchronisation_but_the_wgmmas_own() -> None:
    wanted = sum("wgmma." not in site.assembly for site in alterations.sites(source()))
    kernels = source().count('extern "C" __global__') // 2
    for words in ("delay", "limit+delay", "delay+limit"):
        assert alterations.altered(source(), words).count("tirgemm_delay(") == wanted + kernels + 1
    assert alterations.altered(source(), "late").count("tirgemm_delay(") == kernels + 1


def test_bounded_waits_end_in_a_trap() -> None:
    text = alterations.altered(source(), "limit")
    assert text.count("trap;") == 1
    assert "LAB_WAIT" in text


@pytest.mark.parametrize("alteration", ["", "late", "limit+delay", "race", "outside"])
def test_altered_sources_compile_without_spills_or_serialised_wgmmas(alteration: str) -> None:
    gemm = Gemm.parse(STAGED_PINGPONG[0])
    config = named_config(FAMILY, gemm, H200, STAGED_PINGPONG[1])
    binary = build(gemm, with_alteration(config, alteration), H200)
    assert (binary.resources["spill_bytes"], binary.resources["serialised"]) == (0, 0)
    assert binary.sources["kernel.cu"] == (alterations.altered(source(), alteration) if alteration else source())


@pytest.mark.parametrize("alteration", ["dely", "drop:1", "drop:", "weaken:x", "limit+drop:0"])
def test_an_unknown_alteration_is_refused(alteration: str) -> None:
    with pytest.raises(InvalidRequest, match="alteration"):
        alterations.altered(source(), alteration)


# -- mutants under the sanitizer -------------------------------------------------------------------


def test_what_nothing_caught_is_sanitized_together_and_alone_where_that_is_not_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = cases()[0]
    jobs = [
        mutants.MutantRun(case, alterations.Mutant(name, name, "here")) for name in ("", "drop:1", "drop:2", "drop:3")
    ]
    jobs[0] = mutants.MutantRun(case, mutants.UNALTERED)
    file = EvidenceFile(tmp_path / "wgmma.mutants.json.gz", "mutants", "wgmma", H200, commit="abc")
    for job, status in zip(jobs, ("passed", "not caught", "not caught", "hang"), strict=True):
        file.add(job.key, job.row | {"status": status})
    calls: list[tuple[str, int]] = []

    def check(tool: str, packages: list[Path], key: str, uuid: str, _: float) -> dict[str, SanitizerReport]:
        assert (key, uuid) == ("key", "GPU-2")
        calls.append((tool, len(packages)))
        dirty = tool == "racecheck" and any("drop-2" in package.stem for package in packages)
        report = SanitizerReport(FOUND, 1, ("a race",)) if dirty else SanitizerReport(CLEAN)
        return {package.stem: report for package in packages}

    class Bench:
        device = SimpleNamespace(uuid="GPU-2")
        signer = SimpleNamespace(public="key")

        def build(self, *_: object) -> Future[None]:
            made: Future[None] = Future()
            made.set_result(None)
            return made

        def package(self, _: object, alteration: str, *__: object) -> bytes:
            return alteration.encode()

    monkeypatch.setattr(sanitizer, "check", check)
    bench = cast(Any, Bench())
    mutants.sanitized(bench, jobs, file, 1, 8, time.monotonic() - 1)
    assert not calls
    mutants.sanitized(bench, jobs, file, 1, 8, time.monotonic() + 300)
    assert [file.rows[job.key]["status"] for job in jobs] == ["passed", "not caught", "racecheck", "hang"]
    assert calls == [("racecheck", 3), *[("racecheck", 1)] * 3, ("memcheck", 2), ("synccheck", 2)]
    mutants.sanitized(bench, jobs, file, 1, 8, time.monotonic() + 300)
    assert len(calls) == 6

    file.add(jobs[0].key, jobs[0].row | {"status": "passed, tools failed", "tools": {"racecheck": "timed_out"}})
    for job in jobs[1:3]:
        file.add(job.key, job.row | {"status": "not caught"})
    calls.clear()
    mutants.sanitized(bench, jobs, file, 1, 1, time.monotonic() + 300)
    assert [file.rows[job.key]["status"] for job in jobs] == ["passed", "not caught", "racecheck", "hang"]
    assert {count for _, count in calls} == {1}
    assert sum(tool == "racecheck" for tool, _ in calls) == 3, "none again: each was alone"


def test_the_sanitizer_s_process_calls_on_the_gpu_that_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[object] = []

    def started(command: list[str], _: object) -> Any:
        assert sanitized_call.main(command[command.index("verification.sanitized_call") + 1 :]) == 0
        return SimpleNamespace(communicate=lambda **_: ("", None))

    monkeypatch.setattr(sanitizer, "program", lambda: "compute-sanitizer")
    monkeypatch.setattr(sanitizer, "help_text", lambda: "")
    monkeypatch.setattr(sanitizer, "started", started)
    monkeypatch.setattr(sanitizer, "require_usable", lambda *_: None)
    monkeypatch.setattr(sanitized_call, "without_torch", lambda: None)
    monkeypatch.setattr(sanitized_call, "gpu_of", said.append)
    monkeypatch.setattr(sanitized_call, "Gpu", lambda device: device)
    monkeypatch.setattr(sanitized_call, "load", lambda file, **_: said.append(Path(file).stem))
    monkeypatch.setattr(sanitized_call, "called", lambda *_: "right")
    sanitizer.check("memcheck", [tmp_path / "a.tirgemm"], Signer.generate().public, "GPU-7", 1.0)
    assert said == ["GPU-7", "a"]


# -- evidence --------------------------------------------------------------------------------------


def document_date(file: EvidenceFile) -> str:
    """When the run began that writes a file."""
    date: str = file._head["environment"]["date"]
    return date


def test_an_evidence_file_is_gone_on_with_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "wgmma.verified.json.gz"
    first = EvidenceFile(path, "verified", "wgmma", H200, commit="abc")
    first.add("one", {"status": "passed", "source_sha256": "d" * 64})
    first.save()
    again = EvidenceFile(path, "verified", "wgmma", H200, commit="abc")
    ((key, row),) = again.rows.items()
    assert (key, row["status"], row["commit"], row["source_sha256"]) == ("one", "passed", "abc", "d" * 64)
    assert row["at"] >= document_date(first)
    again.add("two", {"status": "wrong"})
    again.save()
    document = results.load(path)
    assert document["summary"] == {"count": 2, "status": {"passed": 1, "wrong": 1}}
    assert evidence.faults(document) == []
    document["rows"].append(document["rows"][0])
    assert len(evidence.faults(document)) == 2
    assert EvidenceFile(path, "mutants", "wgmma", H200, commit="abc").rows == {}


def test_rows_of_other_sources_are_not_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "wgmma.verified.json.gz"
    file = EvidenceFile(path, "verified", "wgmma", H200, commit="abc")
    file.add("one", {"status": "passed"})
    file.save()
    document = results.load(path) | {"sources_sha256": "0" * 64}
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    assert EvidenceFile(path, "verified", "wgmma", H200, commit="abc").rows == {}


def test_evidence_depends_on_what_its_family_imports_of_others() -> None:
    families = "tirgemm/families"
    shared = {name: evidence.family_sources(name) for name in ("simt", "mma", "wgmma")}
    assert all({f"{families}/{name}", f"{families}/base.py", f"{families}/common"} <= shared[name] for name in shared)
    assert [name for name in shared if f"{families}/tensorcore" in shared[name]] == ["mma"]
    assert evidence.family_sources("of_another_package") == set()


def committed() -> list[Path]:
    """The files of evidence among the results, of which all are read for it."""
    return [path for path in sorted(RESULTS.rglob("*.json.gz")) if results.load(path).get("format") == evidence.FORMAT]


COMMITTED = computed_once("committed-evidence", committed)


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.name)
def test_committed_evidence_is_right(path: Path) -> None:
    document = results.load(path)
    assert evidence.faults(document) == []
    assert document["environment"]["commit"] not in ("", "unknown")
    if document["kind"] == "verified":
        assert document["summary"]["missing_choices"] == []
        assert list(verify_family.failures(document["rows"])) == []
        assert not verify_family.too_many_spill(document["rows"])
        assert len(document["rows"]) >= (600 if document["family"] == "wgmma" else 300)
    if document["kind"] == "emulated":
        assert emulated.failures(document["rows"]) == []
        assert any(not row["mutant"] for row in document["rows"])
        assert any(row["status"] == emulated.WRONG for row in document["rows"])


# -- sanitizer -------------------------------------------------------------------------------------

HELP = """
General options:
  --print-limit arg                     ...
Memcheck-specific options:
  --check-bulk-copy arg (=yes)          ...
Racecheck-specific options:
  --check-warpgroup-mma arg (=no)       ...
"""


def test_optional_checks_are_asked_for_where_the_version_has_them() -> None:
    assert sanitizer.options("memcheck", HELP) == ["--check-bulk-copy", "yes"]
    assert sanitizer.options("racecheck", HELP) == ["--check-warpgroup-mma", "yes"]
    assert sanitizer.options("racecheck", "no such option") == []


@pytest.mark.parametrize(
    ("output", "status"),
    [
        ("== begin k\n== end k right\n========= ERROR SUMMARY: 0 errors\n", "clean"),
        (
            "== begin k\n== end k right\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n",
            "clean",
        ),
        (
            "== begin k\n========= Invalid __shared__ write of size 4 bytes\n== end k right\n========= ERROR "
            "SUMMARY: 1 error\n",
            "found",
        ),
        (
            "== begin k\n== end k right\n========= Error: Race reported between Write access\n========= RACECHECK "
            "SUMMARY: 1 hazard\n",
            "found",
        ),
        ("== begin k\n== end k 3 of 9 compared are wrong\n========= ERROR SUMMARY: 0 errors\n", "found"),
        ("Device not supported\n", "failed"),
        ("== begin k\n== end k right\n", "failed"),
    ],
)
def test_words_of_the_sanitizer_are_told_apart(output: str, status: str) -> None:
    assert sanitizer.reports(output, ["k"])["k"].status == status
    assert sanitizer.reports("== begin k\n", ["k"], late=True)["k"].status == "timed_out"
