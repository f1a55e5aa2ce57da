"""Evidence files: gone on with, checked, and those that are committed."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.computed_once import computed_once
from tirgemm.bench import results
from tirgemm.hardware import named_device
from verification import emulated, evidence, verify_family
from verification.evidence import EvidenceFile

H200 = named_device("sm_90a")

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"


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
