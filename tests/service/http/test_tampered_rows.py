"""Rows of the database that somebody has changed: an ordinary error for what names them, and nothing else suffers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.artifact_samples import SIGNER, certified
from tests.helpers.command_line import own_folders
from tests.service.support import CPU, Service, kernel_record, queueing
from tirgemm import Client
from tirgemm.errors import MismatchedArtifact
from tirgemm.gemm import Gemm
from tirgemm.tuning_db import JobRequest

GEMM, OTHER = Gemm.parse("129x67x31:f32:nt"), Gemm.parse("131x67x31:f32:nt")
NEW_ARTIFACT = "INSERT INTO artifacts SELECT ?, nbytes, kernel_sha256, created_at FROM artifacts LIMIT 1"


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    own_folders(tmp_path, monkeypatch)
    with queueing(tmp_path / "served") as actual:
        for gemm in (GEMM, OTHER):
            kernel_record(actual.store, JobRequest(gemm, CPU), search={"effort": "standard"})
        yield actual


def write(service: Service, statement: str, *values: str) -> None:
    with service.state.database.write() as connection:
        connection.exec_driver_sql(statement, values)
    service.state.recent.expire()


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


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("gemms", "text", "nonsense"),
        ("gemms", "text", "-5x67x31:f32:nt"),
        ("kernels", "config", '{"x": 1}'),
        ("kernels", "config", "[" * 5000),
        ("kernels", "config", "no JSON"),
        ("kernels", "timings", "[]"),
        ("kernels", "device", '"cpu"'),
    ],
)
def test_a_row_that_makes_no_sense_is_the_service_s_fault_and_can_be_deleted(
    service: Service, table: str, column: str, value: str
) -> None:
    name = kernel_id(service, GEMM)
    where, key = ("text", str(GEMM)) if table == "gemms" else ("id", name)
    write(service, f"UPDATE {table} SET {column} = ? WHERE {where} = ?", value, key)
    for path in (f"/v1/kernels/{name}", "/v1/kernels"):
        answer = service.http.get(path)
        assert (answer.status_code, answer.json()["code"]) == (500, "store_error"), answer.text
        assert value not in answer.text, "what is in the database is for the log"
    assert service.post(str(OTHER)).status_code == 200, "nobody else suffers"
    assert service.http.delete(f"/v1/kernels/{name}").status_code == 204
    assert [kernel["gemm"] for kernel in service.http.get("/v1/kernels").json()["kernels"]] == [str(OTHER)]
    assert service.post(str(GEMM), headers={"Prefer": "wait=0"}).status_code == 202, "it is built again"


def test_a_path_in_place_of_a_hash_names_no_file(service: Service, tmp_path: Path) -> None:
    (tmp_path / "served" / "secret").write_text("this must not be told")
    for path in ("../secret", "../../served/secret", str(tmp_path / "served" / "secret")):
        write(service, NEW_ARTIFACT, path)
        write(service, "UPDATE kernels SET artifact_sha256 = ? WHERE id = ?", path, kernel_id(service, GEMM))
        assert service.post(str(GEMM), headers={"Prefer": "wait=0"}).status_code == 202, "its artifact is lost"
        assert service.http.get(f"/v1/artifacts/{path}").status_code == 404
