"""Source hashes of evidence: rows of today's kernels are good, those of others are found, whatever knobs they name."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.history import History
from tests.helpers.scripts import script
from tirgemm.bench import results
from tirgemm.config import Config
from tirgemm.families import family_named
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.tuning.build.cuda import with_looser_bounds
from verification import sources
from verification.cases import Case
from verification.evidence import EvidenceFile

check: Any = script("benchmarks/check.py")
H200 = named_device("sm_90a")
GEMM = Gemm.parse("100x72x40:f16:nt")
CONFIG = family_named("simt").default(GEMM, H200, "sustained")


@pytest.fixture(scope="module")
def source_sha256() -> str:
    return sources.hash_of(Case(GEMM, CONFIG), H200)


def row(source_sha256: str | None, config: Config = CONFIG, **members: Any) -> dict[str, Any]:
    return {
        "key": f"{GEMM} {config.digest}",
        "gemm": str(GEMM),
        "config": dict(config.knobs),
        "status": "passed",
        "source_sha256": source_sha256,
    } | members


def test_a_row_is_of_todays_kernel_also_where_it_names_a_knob_that_is_no_more(source_sha256: str) -> None:
    renamed = row(source_sha256)
    renamed["config"]["hilbert"] = 1
    assert list(sources.stale("simt", "verified", [row(source_sha256), renamed])) == []


def test_another_source_and_a_config_that_cannot_be_are_found(source_sha256: str) -> None:
    other, refused = row("0" * 64), row(source_sha256, CONFIG.with_(thread_m=7))
    (first, why), (second, error) = sources.stale("simt", "verified", [other, refused])
    assert (first, second) == (other, refused)
    assert why == f"its source is {'0' * 12}, today's is {source_sha256[:12]}"
    assert "7" in error


def test_kernels_are_told_apart_and_come_in_an_order_of_their_own() -> None:
    rows = [row("1", key="a"), row("1", key="b"), row("1", CONFIG.with_(pad=0), key="c"), row(None, key="d", gemm="x")]
    assert len(sources.kernels(rows)) == 2, "mutants share their kernel, and a row without one is none"
    assert [r["config"] for r in sources.kernels(rows)] == [r["config"] for r in sources.kernels(rows[::-1])]


def test_looser_bounds_are_tried_where_the_source_has_bounds() -> None:
    assert with_looser_bounds("void __launch_bounds__(128, 2) k()") == [
        "void __launch_bounds__(128, 2) k()",
        "void __launch_bounds__(128, 1) k()",
        "void __launch_bounds__(128) k()",
    ]
    assert with_looser_bounds("void k()") == ["void k()"]


def test_the_check_fails_on_evidence_of_another_kernel(tmp_path: Path, source_sha256: str) -> None:
    device = H200.with_(environment=(("python", "3.11"), ("tvm", "0.27")))
    file = EvidenceFile(tmp_path / "simt.verified.json.gz", "verified", "simt", device, commit="c" * 40)
    file.add("one", row(source_sha256))
    file.save()
    assert check.faults(file.path, history=History(Path("/"))) == []
    document = results.load(file.path)
    document["rows"][0]["source_sha256"] = "0" * 64
    file.path.write_bytes(gzip.compress(json.dumps(document).encode()))
    (sentence,) = check.faults(file.path, history=History(Path("/")))
    assert "is evidence of another kernel: its source is 000000000000" in sentence


def test_what_is_stale_is_taken_out_with_all_that_is_about_its_kernel(tmp_path: Path, source_sha256: str) -> None:
    file = EvidenceFile(tmp_path / "simt.mutants.json.gz", "mutants", "simt", H200, commit="c" * 40)
    other = CONFIG.with_(pad=0)
    for key, made in (("good", row(source_sha256)), ("one", row("0" * 64, other)), ("two", row("0" * 64, other))):
        file.add(key, made | {"key": key})
    file.save()
    assert sources.without_stale(file.path) == 2
    document = results.load(file.path)
    assert [row["key"] for row in document["rows"]] == ["good"]
    assert document["summary"] == {"count": 1, "status": {"passed": 1}}
