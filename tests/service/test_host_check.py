"""A page in a browser that wants to use a service on loopback by its user's hand; methods and what errors give away."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import pytest

from tests.service.support import CPU, ODD, Service, kernel_record, serving
from tirgemm.errors import InvalidRequest, StorageFull, StoreError, public_detail
from tirgemm.gemm import Gemm
from tirgemm.service.access.access_control import MAX_REFUSALS
from tirgemm.service.http.documents import JobError
from tirgemm.service.http.host_check import own_names
from tirgemm.service.settings import Settings
from tirgemm.tuning_db import JobRequest
from tirgemm.tuning_db.access.audit import AuditEntry
from tirgemm.tuning_db.queue.batches import WantedProblem

BODY = json.dumps({"gemm": ODD})


@pytest.mark.parametrize(
    "host",
    [
        "attacker.example",
        "attacker.example:8000",
        "127.0.0.1.attacker.example",
        "localhost.attacker.example",
        "1.2.3",
        "localhost:8000:1",
        "user@localhost",
        "[::1",
        "localhost, attacker.example",
        "",
    ],
)
@pytest.mark.parametrize("path", ["/v1/kernels", "/healthz", "/nothing"])
def test_a_name_that_is_not_ours_is_421(service: Service, host: str, path: str) -> None:
    for method in ("GET", "POST"):
        headers = {"Host": host, "Content-Type": "application/json"}
        answer = service.http.request(method, path, content=BODY, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (421, "misdirected_request"), (method, answer.text)
    assert service.queue.jobs() == []


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost:1", "LOCALHOST", "localhost.", "[::1]:80", "192.168.7.9:8000"]
)
def test_addresses_and_this_machine_are_ours(service: Service, host: str) -> None:
    assert service.http.get("/healthz", headers={"Host": host}).status_code == 200


def test_further_names_are_a_setting(tmp_path: Path) -> None:
    machine = socket.gethostname().lower()
    assert own_names("0.0.0.0", "") >= {"localhost", machine, machine.partition(".")[0]}
    with serving(tmp_path, hosts="tuner.example, GPU1") as service:
        for host, status in (("tuner.example:443", 200), ("gpu1", 200), (machine, 200), ("x.tuner.example", 421)):
            assert service.http.get("/healthz", headers={"Host": host}).status_code == status, host
    with serving(tmp_path, hosts="*") as service:
        assert service.http.get("/healthz", headers={"Host": "any.example"}).status_code == 200


def test_a_name_may_end_with_the_dot_that_makes_it_absolute(tmp_path: Path) -> None:
    assert own_names("gpu1.example.", "Tuner.example., ,[::1]") >= {"gpu1.example", "tuner.example"}
    with serving(tmp_path, hosts="tuner.example.") as service:
        for host in ("tuner.example", "tuner.example.:443"):
            assert service.http.get("/healthz", headers={"Host": host}).status_code == 200, host


@pytest.mark.parametrize(
    "hosts",
    [
        "https://tuner.example",
        "gpu1, tuner.example:443",
        "tuner.example/path",
        "*.example",
        "a b",
        "user@host",
        "cafe:80",
    ],
)
def test_a_name_that_could_never_match_is_refused(monkeypatch: pytest.MonkeyPatch, hosts: str) -> None:
    monkeypatch.setenv("TIRGEMM_HOSTS", hosts)
    with pytest.raises(InvalidRequest, match=r"TIRGEMM_HOSTS\) is '.*'; it should be names with commas, each without"):
        Settings.load()


@pytest.mark.parametrize("hosts", ["", "*", "gpu1", " tuner.example. ,GPU_1,", "::1,[fe80::1]", "192.168.7.9"])
def test_bare_names_are_taken(monkeypatch: pytest.MonkeyPatch, hosts: str) -> None:
    monkeypatch.setenv("TIRGEMM_HOSTS", hosts)
    assert Settings.load().hosts == hosts


@pytest.mark.parametrize(
    "origin", ["http://attacker.example", "null", "https://localhost:1", "http://127.0.0.1", "file://", "http://[", ""]
)
@pytest.mark.parametrize("method", ["POST", "DELETE", "GET", "OPTIONS"])
def test_a_page_of_another_site_is_403(service: Service, origin: str, method: str) -> None:
    record = kernel_record(service.store, JobRequest(Gemm.parse(ODD), CPU))
    path = f"/v1/kernels/{record.id}" if method == "DELETE" else "/v1/kernels"
    headers = {"Origin": origin, "Content-Type": "application/json"}
    answer = service.http.request(method, path, content=BODY, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (403, "cross_origin")
    told = f"Origin is {origin!r} and Host {service.url.removeprefix('http://')!r}"
    assert answer.json()["detail"].startswith(told), "whoever set up a proxy sees which of them is wrong"
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert service.store.kernel_by_id(record.id) is not None
    assert service.queue.jobs() == []


def audited(service: Service) -> list[AuditEntry]:
    """The audit log with what was counted so far."""
    service.state.access.flush()
    return [stored.entry for stored in service.state.access.audit.entries()]


def test_refused_names_and_origins_are_in_the_audit_log(service: Service) -> None:
    for number in range(3):
        service.http.post("/v1/kernels", content=BODY, headers={"Host": f"attacker{number}.example"})
    service.http.get("/v1/jobs", headers={"Origin": "http://attacker.example"})
    assert sorted(audited(service), key=lambda entry: entry.outcome) == [
        AuditEntry(None, "GET", "*", 403, "127.0.0.1"),
        AuditEntry(None, "POST", "*", 421, "127.0.0.1", 3),
    ]


def test_refused_names_are_bounded_rows_whatever_the_methods(service: Service) -> None:
    for number in range(MAX_REFUSALS + 20):
        service.http.request(f"X{number}", "/", headers={"Host": "attacker.example"})
    log = audited(service)
    assert (len(log), sum(entry.count for entry in log)) == (MAX_REFUSALS + 1, MAX_REFUSALS + 20)


def test_our_own_pages_and_who_is_no_browser_may(service: Service) -> None:
    host = service.url.removeprefix("http://")
    for origin in (f"http://{host}", f"https://{host}", f"HTTP://{host}".lower()):
        assert service.http.get("/v1/kernels", headers={"Origin": origin}).status_code == 200
    answer = service.post(headers={"Prefer": "wait=0"})
    assert answer.status_code == 409, "no worker has the device: the request was looked at"


@pytest.mark.parametrize(
    ("origin", "host", "status"),
    [
        ("https://localhost", "localhost:443", 200),
        ("http://localhost", "localhost:80", 200),
        ("https://localhost:443", "LOCALHOST", 200),
        ("https://[::1]", "[::1]:443", 200),
        ("https://localhost", "localhost:80", 403),
        ("http://localhost", "localhost:443", 403),
        ("https://localhost:8443", "localhost", 403),
        ("https://localhost", "localhost:8443", 403),
        ("https://attacker.example", "localhost:443", 403),
        ("https://user@localhost", "localhost", 403),
        ("https://localhost:99999", "localhost", 403),
        ("ftp://localhost", "localhost", 403),
    ],
)
def test_a_proxy_may_name_the_port_that_the_scheme_implies(
    service: Service, origin: str, host: str, status: int
) -> None:
    assert service.http.get("/v1/kernels", headers={"Origin": origin, "Host": host}).status_code == status


# -- targets that are whole URLs ---------------------------------------------------------------------


@pytest.mark.parametrize("authority", ["127.0.0.1", "localhost:8000", "LOCALHOST", "[::1]:80"])
@pytest.mark.parametrize("scheme", ["http", "HTTPS"])
def test_a_whole_url_is_served_as_its_path_is(service: Service, scheme: str, authority: str) -> None:
    record = kernel_record(service.store, JobRequest(Gemm.parse(ODD), CPU))
    base = f"{scheme}://{authority}".encode()
    for path in (f"/v1/kernels/{record.id}", "/v1/kernels?limit=1", "/v1/kernels?limit=0", "/nothing%20here"):
        known = service.http.get(path)
        # The header's Host does not count beside the target's (RFC 9112, 3.2.2).
        extensions = {"target": base + path.encode()}
        answer = service.http.get("/", headers={"Host": "attacker.example"}, extensions=extensions)
        assert (answer.status_code, answer.content) == (known.status_code, known.content)
    assert service.http.get("/x", extensions={"target": base}).status_code == service.http.get("/").status_code
    headers = {"Content-Type": "application/json", "Prefer": "wait=0"}
    extensions = {"target": base + b"/v1/kernels"}
    answer = service.http.post("/", content=BODY, headers=headers, extensions=extensions)
    assert answer.status_code == 409, "no worker has the device: the request was looked at"


@pytest.mark.parametrize("authority", ["attacker.example", "user@localhost", "", "localhost:8000:1"])
def test_a_whole_url_of_another_host_is_421(service: Service, authority: str) -> None:
    extensions = {"target": f"http://{authority}/v1/kernels".encode()}
    answer = service.http.get("/", headers={"Host": "localhost"}, extensions=extensions)
    assert (answer.status_code, answer.json()["code"]) == (421, "misdirected_request")


def test_a_page_of_another_site_is_403_by_a_whole_url_too(service: Service) -> None:
    headers = {"Host": "attacker.example", "Origin": "http://attacker.example"}
    answer = service.http.get("/", headers=headers, extensions={"target": b"http://localhost/v1/kernels"})
    assert (answer.status_code, answer.json()["code"]) == (403, "cross_origin")
    answer = service.http.get("/", extensions={"target": b"ftp://localhost/v1/kernels"})
    assert answer.status_code == 404


# -- methods -----------------------------------------------------------------------------------------


def test_405_names_every_method_of_the_path(service: Service) -> None:
    schema = service.http.get("/openapi.json").json()
    for path, operations in schema["paths"].items():
        url = re.sub(r"\{\w+\}", "0" * 16, path)
        answer = service.http.request("PROPFIND", url)
        assert answer.status_code == 405
        wanted = {method.upper() for method in operations} | ({"HEAD"} if "get" in operations else set())
        assert answer.headers["allow"] == ", ".join(sorted(wanted)), path


def test_head_is_get_without_the_body_everywhere(service: Service) -> None:
    record = kernel_record(service.store, JobRequest(Gemm.parse(ODD), CPU))
    service.queue.register_worker("elsewhere:1:0", [CPU])
    job, _ = service.queue.submit(JobRequest(Gemm.parse("7x5x3"), CPU))
    batch = service.state.batches.submit([WantedProblem(JobRequest(Gemm.parse("7x5x9"), CPU))], asked=1)
    names = {"kernel_id": record.id, "job_id": job.id, "batch_id": batch.id, "sha256": record.artifact_sha256}
    names |= {"kind": "source", "gemm": ODD, "config_hash": "0" * 16}
    for path, operations in service.http.get("/openapi.json").json()["paths"].items():
        if "get" not in operations or path.endswith("/events"):
            continue
        url = path.format(**names)
        head, get = service.http.head(url), service.http.get(url)
        assert (head.status_code, head.content) == (get.status_code, b""), path
        # The figures count the first of both requests.
        length = () if path == "/metrics" else ("content-length",)
        for name in (*length, "content-type", "etag", "cache-control"):
            assert head.headers.get(name) == get.headers.get(name), (path, name)
    for url in ("/nothing", "/v1/kernels/zz", "/v1/kernels?limit=0"):
        assert service.http.head(url).status_code == service.http.get(url).status_code


def test_head_of_a_stream_ends_at_once(service: Service) -> None:
    service.queue.register_worker("elsewhere:1:0", [CPU])
    job, _ = service.queue.submit(JobRequest(Gemm.parse("7x5x3"), CPU))
    answer = service.http.head(f"/v1/jobs/{job.id}/events")
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"].startswith("text/event-stream")


# -- what errors give away ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [StoreError, StorageFull])
def test_errors_of_the_store_name_neither_folders_nor_the_database(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: type[StoreError]
) -> None:
    secret = "database postgresql+psycopg://tirgemm@10.1.2.3/tirgemm, folder /srv/secret: refused"

    def broken(*_: object, **__: object) -> None:
        raise kind(secret)

    for name in ("jobs", "job", "live_workers"):
        monkeypatch.setattr(service.state.queue, name, broken)
    paths = ("/v1/jobs", "/v1/jobs/1", "/v1/jobs/1/events", "/v1/meta", "/readyz")
    for answer in (*map(service.http.get, paths), service.post()):
        assert answer.status_code in (500, 503, 507), answer.text
        assert not re.search("postgres|10\\.1|/srv|secret", answer.text), answer.text
    assert caplog.text.count(secret) == len(paths) + 1, "the log has it"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("store_error: database /srv/x: locked", "store_error"),
        ("storage_full: /srv/x is full", "storage_full"),
        ("internal_error: OSError: /srv/x", "internal_error"),
        ("already_running: lock /srv/x is held by process 7", "already_running"),
    ],
)
def test_the_error_of_a_job_does_not_either(text: str, code: str) -> None:
    error = JobError.of(text)
    assert error.code == code
    assert "/srv" not in error.detail
    assert error.detail


def test_what_a_user_can_mend_is_told_as_it_is() -> None:
    assert public_detail("build_failed", "ptxas: too many registers") == "ptxas: too many registers"
    assert public_detail("unknown_code", "words") == "words"


def test_a_damaged_artifact_is_not_told_by_its_folder(service: Service) -> None:
    record = kernel_record(service.store, JobRequest(Gemm.parse(ODD), CPU))
    service.state.database.blobs.checked(record.artifact_sha256).write_bytes(b"other")
    answer = service.http.get(f"/v1/artifacts/{record.artifact_sha256}")
    assert (answer.status_code, answer.json()["code"]) == (404, "artifact_not_found")
    assert str(service.state.settings.data) not in answer.text
