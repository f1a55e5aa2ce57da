"""Rows of the database that somebody has changed: an ordinary error for what names them, and nothing else suffers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.contract.storage.databases import candidate
from tests.helpers.artifact_samples import SIGNER, certified
from tests.helpers.command_line import own_folders
from tests.service.support import CPU, Service, kernel_record, queueing
from tirgemm import Client
from tirgemm.errors import MismatchedArtifact
from tirgemm.gemm import Gemm
from tirgemm.timings import BaselineTime, Timing, Timings
from tirgemm.tuning.records import SampleSet
from tirgemm.tuning_db import JobRequest, rows
from tirgemm.tuning_db.answers.kernel_document import render
from tirgemm.tuning_db.upkeep.admin import check
from tirgemm.tuning_db.upkeep.missing_rows import add_missing_rows

GEMM, OTHER = Gemm.parse("129x67x31:f32:nt"), Gemm.parse("131x67x31:f32:nt")
NEW_ARTIFACT = "INSERT INTO artifacts SELECT ?, nbytes, kernel_sha256, created_at FROM artifacts LIMIT 1"


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    own_folders(tmp_path, monkeypatch)
    rows.log_once.cache_clear()
    with queueing(tmp_path / "served") as actual:
        for gemm in (GEMM, OTHER):
            kernel_record(actual.store, JobRequest(gemm, CPU), search={"effort": "standard"})
        yield actual


def write(service: Service, statement: str, *values: str | bytes) -> None:
    with service.state.database.write() as connection:
        connection.exec_driver_sql(statement, values)
    service.state.snapshots.expire()


def kernel_id(service: Service, gemm: Gemm) -> str:
    record = service.store.kernel(gemm, CPU.key, "sustained")
    assert record is not None
    return record.id


def test_the_artifact_of_another_problem_in_a_row_is_refused_by_the_client(service: Service) -> None:
    sha256, record = service.store.put_blob(certified(OTHER, signer=SIGNER)), service.store.kernels()[-1]
    old = record.artifact_sha256
    assert record.gemm == GEMM
    write(service, NEW_ARTIFACT, sha256)
    write(service, "UPDATE kernels SET artifact_sha256 = ? WHERE id = ?", sha256, kernel_id(service, GEMM))
    # The document is stored beside the row.
    named = "(SELECT seq FROM kernels WHERE artifact_sha256 = ?)"
    write(service, f"UPDATE kernel_documents SET json = replace(json, ?, ?) WHERE seq = {named}", old, sha256, sha256)
    with Client(service.url, trust=SIGNER.public, patience=0.1) as client:
        with pytest.raises(MismatchedArtifact, match="with a kernel for 131x67x31"):
            client.kernel(str(GEMM))
        assert list(client.cache.folder.glob("*.tirgemm")) == [], "nothing of it is kept"


@pytest.mark.parametrize("has_text", [False, True])
@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("gemms", "text", "nonsense"),
        ("gemms", "text", "-5x67x31:f32:nt"),
        ("kernels", "config", '{"x": 1}'),
        ("kernels", "config", "[" * 5000),
        ("kernels", "config", "no JSON"),
        ("kernels", "config", b'{"family": "\xf886"}'),
        ("kernels", "timings", "[]"),
        ("kernels", "device", '"cpu"'),
    ],
)
def test_a_row_that_makes_no_sense_is_the_service_s_fault_and_can_be_deleted(
    service: Service, table: str, column: str, value: str | bytes, has_text: bool, caplog: pytest.LogCaptureFixture
) -> None:
    name = kernel_id(service, GEMM)
    record = service.store.kernel_by_id(name)
    assert record is not None
    document = json.loads(render(record))
    if not has_text:
        write(service, "DELETE FROM kernel_documents")
    where, key = ("text", str(GEMM)) if table == "gemms" else ("id", name)
    write(service, f"UPDATE {table} SET {column} = CAST(? AS TEXT) WHERE {where} = ?", value, key)
    answer = service.http.get(f"/v1/kernels/{name}")
    assert (answer.status_code, answer.json()["code"]) == (500, "store_error"), answer.text
    assert str(value) not in answer.text, "what is in the database is for the log"
    assert "decode" not in answer.text
    assert service.post(str(OTHER)).status_code == 200, "nobody else suffers"
    for _ in range(2):
        listed = service.http.get("/v1/kernels?limit=1")
        assert (listed.json()["kernels"][0]["gemm"], listed.status_code) == (str(OTHER), 200)
        after = service.http.get(f"/v1/kernels?after={listed.json()['next']}").json()
        # Its text, which is stored beside the row, is whole.
        assert (after["kernels"], after["next"]) == ([document] if has_text else [], None)
        for page in ("/kernels", "/", "/spaces"):
            answer = service.http.get(page, headers={"Accept": "text/html"})
            assert answer.status_code == 200, f"{page}: {answer.text}"
    assert [record.gemm for record in service.store.kernels(limit=1, after=kernel_id(service, OTHER))] == []
    told = [line for line in caplog.messages if name in line and "left out" in line]
    assert len(told) == 1, "it is logged, and once"
    assert [line for line in check(service.state.database) if name in line] == told
    assert service.http.delete(f"/v1/kernels/{name}").status_code == 204
    assert [kernel["gemm"] for kernel in service.http.get("/v1/kernels").json()["kernels"]] == [str(OTHER)]
    assert service.post(str(GEMM), headers={"Prefer": "wait=0"}).status_code == 202, "it is built again"


def test_a_damaged_kernel_does_not_keep_others_of_its_rows_from_being_stored(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    gemm = GEMM.with_(invariant=True)
    damaged = kernel_record(service.store, JobRequest(gemm, CPU)).id
    write(service, "UPDATE kernels SET config = 'no JSON' WHERE id = ?", damaged)
    stored = kernel_record(service.store, JobRequest(gemm.with_(m=7), CPU))
    assert service.store.kernel_by_id(stored.id) == stored
    assert [line for line in caplog.messages if f"kernel {damaged} is left out" in line]


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("candidates", "config", '{"x": 1}'),
        ("candidates", "config", "no JSON"),
        ("candidates", "status", "unheard of"),
        ("candidates", "message", b"\xf8"),
        ("sample_sets", "samples_us", "no JSON"),
        ("sample_sets", "baselines", "[]"),
    ],
)
def test_a_damaged_candidate_is_left_out_of_its_space_and_can_be_recorded_again(
    service: Service, table: str, column: str, value: str | bytes, caplog: pytest.LogCaptureFixture
) -> None:
    given = [replace(candidate(number), device_key=CPU.key, gemm=GEMM) for number in range(3)]
    service.store.put_device(CPU)
    for each in given:
        service.store.add_candidate(each)
    damaged, key = given[1], "candidate_id" if table == "sample_sets" else "id"
    number, changed = "(SELECT id FROM candidates WHERE config_digest = ?)", f"{column} = CAST(? AS TEXT)"
    write(service, f"UPDATE {table} SET {changed} WHERE {key} = {number}", value, damaged.config.digest)
    sound = [given[0], given[2]]
    for _ in range(2):
        assert service.store.candidates(GEMM, CPU.key, "sustained") == sound
        assert service.store.history(CPU.key, "sustained")[:2] == sound[::-1]
        assert service.store.candidate(damaged.key) is None
        for page in (f"/spaces/{GEMM}", "/spaces", f"/kernels/{kernel_id(service, GEMM)}"):
            answer = service.http.get(page, params={"device": CPU.key} if page.endswith(str(GEMM)) else {})
            assert answer.status_code == 200, f"{page}: {answer.text}"
    told = [line for line in caplog.messages if "left out" in line and "candidate" in line]
    assert len(told) == 1
    assert check(service.state.database)[:1] == told
    if table == "candidates":
        service.store.add_candidate(damaged)
        assert service.store.candidates(GEMM, CPU.key, "sustained") == given
    write(service, f"UPDATE candidates SET config = 'no JSON' WHERE {number} = {number}", *[damaged.config.digest] * 2)
    answer = service.http.get(f"/spaces/{GEMM}", params={"device": CPU.key})
    assert (answer.status_code, "db check" in answer.text) == (500, False), "nothing is left to show"


@pytest.mark.parametrize("value", ["no JSON", '"12.5"'])
def test_damaged_samples_leave_a_kernel_in_the_table_without_its_spread(
    service: Service, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    record = service.store.kernel(GEMM, CPU.key, "sustained")
    assert record is not None
    report = SampleSet((12.5, 12.5, 12.5), "report", {"default": (25.0, 25.0, 25.0)}, {})
    timing = Timing(12.5, 3, {"default": BaselineTime(25.0, 2.0)})
    named = replace(record, id="", artifact_sha256=record.artifact_sha256, timings=Timings({"sustained": timing}))
    newest = service.store.put_kernel(named)
    given = replace(candidate(0), gemm=GEMM, device_key=CPU.key, config=record.config, sample_sets=(report,))
    service.store.add_candidate(given)

    def spread() -> Any:
        rows_shown = service.http.get("/kernels", headers={"Accept": "application/json"}).json()["kernels"]
        return next(row["default"] for row in rows_shown if row["id"] == newest.id)

    whole = spread()
    write(service, "UPDATE sample_sets SET samples_us = ?", value)
    for _ in range(2):
        lacking = spread()
        assert lacking["ratio"] == whole["ratio"] == 2.0
        assert (lacking["low"], whole["low"]) == (None, 2.0)
    assert len([line for line in caplog.messages if "what was measured of" in line]) == 1


def test_a_server_starts_beside_a_damaged_kernel(service: Service) -> None:
    write(service, "UPDATE kernels SET config = 'no JSON' WHERE id = ?", kernel_id(service, GEMM))
    write(service, "DELETE FROM kernel_documents")
    assert add_missing_rows(service.state.database) == 1
    assert service.post(str(OTHER)).status_code == 200
    assert service.post(str(GEMM)).status_code == 500


def test_a_path_in_place_of_a_hash_names_no_file(service: Service, tmp_path: Path) -> None:
    (tmp_path / "served" / "secret").write_text("this must not be told")
    for path in ("../secret", "../../served/secret", str(tmp_path / "served" / "secret")):
        write(service, NEW_ARTIFACT, path)
        write(service, "UPDATE kernels SET artifact_sha256 = ? WHERE id = ?", path, kernel_id(service, GEMM))
        assert service.post(str(GEMM), headers={"Prefer": "wait=0"}).status_code == 202, "its artifact is lost"
        assert service.http.get(f"/v1/artifacts/{path}").status_code == 404
