"""The results file of the service's proofs, its check and its table, and what is read of a schemathesis report."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks import proof_tables
from tests.waiting import until
from tirgemm.bench.results import load
from tirgemm.errors import InvalidRequest
from tirgemm.status import ENDED
from verification.service import random_requests
from verification.service.fuzzed_server import OPEN_WINDOWS
from verification.service.outages import closed_window, long_queue
from verification.service.proofs_file import FILE, MAX_FAILURES, ROOT, ProofsFile
from verification.service.random_requests import PROOF, told


def test_runs_add_up_over_programs_and_days(tmp_path: Path) -> None:
    file = tmp_path / "machine" / FILE
    first = ProofsFile(file, commit="c1")
    first.count("kill -9, sqlite: worker", [], 3.0)
    first.count("kill -9, sqlite: worker", ["a candidate is lost", "another is, too"], 4.0)
    again = ProofsFile(file, commit="c2")
    again.count("random requests", [], 9.0, runs=1000)
    again.count("kill -9, sqlite: worker", ["x"] * 99, 1.0)
    document = load(file)
    assert list(proof_tables.faults(document)) == []
    kills, requests = document["rows"]
    assert (kills["runs"], kills["failed"], kills["status"], kills["seconds"]) == (3, 2, "failed", 8.0)
    assert (kills["failures"][:2], len(kills["failures"])) == (["a candidate is lost", "another is, too"], MAX_FAILURES)
    assert (requests["runs"], requests["status"], requests["commit"]) == (1000, "held", "c2")
    assert "| random requests | 1,000 | 0 |" in " ".join(proof_tables.proofs(file.parent, tmp_path).split("  "))
    assert "verification.service.kills" in proof_tables.proofs(tmp_path / "another", tmp_path)


def test_a_row_that_is_begun_anew_leaves_the_others_and_stays_until_something_ran(tmp_path: Path) -> None:
    file = tmp_path / FILE
    first = ProofsFile(file, commit="c1")
    first.count(PROOF, ["a server error"], 9.0, runs=5767)
    first.count("disk full", [], 1.0)
    fresh = ProofsFile(file, commit="c2", fresh=True)
    assert load(file)["rows"][1]["runs"] == 5767
    fresh.count(PROOF, [], 3.0, runs=1000)
    fresh.count(PROOF, [], 3.0, runs=9000)
    others, row = load(file)["rows"]
    assert (row["runs"], row["failed"], row["failures"], row["status"]) == (10_000, 0, [], "held")
    assert (others["proof"], others["runs"], others["commit"]) == ("disk full", 1, "c1")
    assert list(proof_tables.faults(load(file))) == []


@pytest.mark.parametrize(
    ("schemathesis", "rows"), [("exit 3", [5767]), ("echo '{report}' > $(echo $* | sed 's/.*path //;s/ .*//')", [12])]
)
def test_random_requests_begin_anew_with_fresh_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schemathesis: str, rows: list[int]
) -> None:
    program, file = tmp_path / "schemathesis", tmp_path / FILE
    program.write_text(f"#!/bin/sh\n{schemathesis.replace('{report}', json.dumps(report()))}\n")
    program.chmod(0o755)
    monkeypatch.setattr(random_requests, "server", lambda *_: nullcontext(("http://127.0.0.1:1", "key")))
    ProofsFile(file, commit="c1").count(PROOF, ["a server error"], 9.0, runs=5767)
    options = ["--schemathesis", str(program), "--cases", "1", "--commit", "c2", "--out", str(file)]
    with suppress(InvalidRequest):
        random_requests.main([*options, "--fresh"])
    assert [row["runs"] for row in load(file)["rows"]] == rows
    with suppress(InvalidRequest):
        random_requests.main(options)
    assert [row["runs"] for row in load(file)["rows"]] == ([24] if rows == [12] else rows)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"runs": 0}, "has 0 runs"),
        ({"failed": 2, "failures": ["x"], "status": "failed"}, "of which 2 failed"),
        ({"status": "failed"}, "is failed with 0 failed runs"),
        ({"failed": 1, "status": "failed"}, "0 failures"),
    ],
)
def test_a_row_that_contradicts_itself_is_told(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    proofs = ProofsFile(tmp_path / FILE, commit="c1")
    proofs.count("p", [], 1.0)
    document = json.loads((tmp_path / FILE).read_text())
    document["rows"][0] |= change
    assert any(words in sentence for sentence in proof_tables.faults(document))
    assert "p is there twice" in list(proof_tables.faults({"rows": document["rows"] * 2}))


def report(**changes: Any) -> dict[str, Any]:
    cases = {"generated": 12, "errored": 0}
    return {"complete": True, "stop_reason": "completed", "test_cases": cases, "failures": [], "errors": []} | changes


def test_every_failure_of_a_report_is_told() -> None:
    assert told(report(), 0) == (12, [])
    failure = {"code": "ST101", "title": "Server error", "count": 2, "operations": ["POST /v1/kernels"]}
    assert told(report(failures=[failure]), 1) == (12, ["ST101 Server error: 2 at POST /v1/kernels"])
    assert told(report(errors=[{"why": "x"}]), 1)[1] == ['an error of the run itself: {"why": "x"}']
    for broken, code in ((report(), 1), (report(complete=False, stop_reason="interrupted"), 0)):
        (sentence,) = told(broken, code)[1]
        assert f"exit code {code}" in sentence


def test_the_page_names_tests_that_are_there() -> None:
    named = re.findall(r"`(tests/[\w/.]+\.py)(?:::(\w+))?`", (ROOT / "docs" / "proofs.md").read_text())
    assert len(named) > 20
    for file, name in named:
        assert f"def {name}" in (ROOT / file).read_text(), f"{file} has no {name}"


@pytest.mark.slow
def test_no_job_keeps_its_listeners_waiting_for_the_night_where_requests_are_random(tmp_path: Path) -> None:
    body = {"gemm": "35x17x19:f32:nt", "device": "cpu", "queue": {"window": closed_window()}}
    with (
        random_requests.server(tmp_path, OPEN_WINDOWS) as (url, key),
        httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=60) as http,
    ):
        http.post("/v1/kernels", json=body).raise_for_status()
        until(
            lambda: [job["status"] in ENDED for job in http.get("/v1/jobs").raise_for_status().json()["jobs"]] == [True]
        )


@pytest.mark.slow
def test_a_short_queue_ends_as_a_long_one_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert long_queue(2, 5) == []
    assert "10 jobs wait" in capsys.readouterr().out
