"""The measurement of the service's speed on a small database, and the check and the table of its file."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from benchmarks.service_speed import document as service_speed
from benchmarks.service_speed.load import Turn, drive, request
from benchmarks.service_speed.measure import main, server
from benchmarks.service_speed.stored_kernels import gemms, store_kernels
from tirgemm.bench.results import load
from tirgemm.errors import ServiceError

QUICK = ("--kernels", "20", "--few", "3", "--connections", "3", "--turns", "2", "--seconds", "0.1")


def test_known_kernels_are_measured_beside_a_bare_route(tmp_path: Path) -> None:
    file = tmp_path / "machine" / service_speed.FILE
    assert main([*QUICK, "--commit", "abc", "--out", str(file)]) == 0
    document = load(file)
    assert list(service_speed.problems(document)) == []
    assert [row["figure"] for row in document["rows"]] == ["hits, the same 3 kernels", "hits, any of 20 kernels"]
    for row in document["rows"]:
        assert (row["kernels"], row["connections"], row["commit"]) == (20, 3, "abc")
        assert len(row["samples"]) == len(row["bare"]) == 2
        assert row["document_bytes"] > 1500, "a document as long as a real one"
    shown = service_speed.service(file.parent, tmp_path)
    assert "SQLite with 20 kernels, 3 connections" in shown
    assert "| hits, the same 3 kernels | " in shown


def test_an_answer_that_is_no_hit_ends_the_measurement(tmp_path: Path) -> None:
    store_kernels(tmp_path, gemms(2))
    with server(tmp_path) as (port, headers), pytest.raises(ServiceError, match=r"answered http/1\.1 404"):
        drive(port, [request("GET", "/v1/kernels/beef", headers)], 2, 0.1, seed=0)


def some_rows() -> dict[str, Any]:
    ours, bare = [Turn(900.0, 30.0, 90.0), Turn(1100.0, 28.0, 80.0)], [Turn(2000.0, 16.0, 40.0)] * 2
    return {"rows": [service_speed.row_of("hits", {"kernels": 2}, ours, bare)]}


def test_the_share_is_that_of_turns_side_by_side() -> None:
    (row,) = some_rows()["rows"]
    assert (row["per_second"], row["bare_per_second"], row["share"]) == (1000.0, 2000.0, 0.5)
    assert (row["p50_ms"], row["bare_p99_ms"]) == (29.0, 40.0)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda rows: rows[0].update(share=0.6), "hits: share is 0.6; the samples give 0.5"),
        (lambda rows: rows[0]["samples"].pop(), "hits has 1 turns beside 2 of the bare route"),
        (lambda rows: rows[0]["bare"][0].update(per_second=0), "hits has samples that are not above 0"),
        (lambda rows: rows.append(rows[0]), "hits is there twice"),
    ],
)
def test_what_is_wrong_with_a_file_is_told(damage: Any, sentence: str) -> None:
    document = copy.deepcopy(some_rows())
    assert list(service_speed.problems(document)) == []
    damage(document["rows"])
    assert list(service_speed.problems(document)) == [sentence]


def test_where_nothing_was_measured_the_table_says_how_to(tmp_path: Path) -> None:
    assert "python -m benchmarks.service_speed.measure" in service_speed.service(tmp_path, tmp_path)
