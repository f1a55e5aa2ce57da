"""Answers kept in memory: what they spare, and that no change of kernels, devices or rights is missed."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete

from tests.service.support import CPU, ODD, Service, kernel_record, serving
from tests.waiting import PATIENCE_S
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.service.http.documents import KernelDocument
from tirgemm.service.http.kernel_cache import kernel_lookups, snapshot_cache
from tirgemm.service.http.kernel_cache.known_answers import KnownAnswer, KnownAnswers
from tirgemm.service.http.kernel_cache.snapshot_cache import DatabaseSnapshot, SnapshotCache
from tirgemm.tuning_db import Database, JobRequest, SqlStore
from tirgemm.tuning_db.answers.kernel_document import Rendered, render
from tirgemm.tuning_db.answers.stored_answers import PreparedLookup, StoredAnswer, WantedAnswer
from tirgemm.tuning_db.models import KernelDocumentRow

REQUEST = JobRequest(Gemm.parse(ODD), CPU)
TUNED = {"effort": "standard"}
# The headers of one answer alone.
OWN = {"date", "x-request-id"}


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The problems that were looked up in the database, from now on."""
    gemms: list[str] = []

    def looked(prepared: PreparedLookup, wanted: WantedAnswer) -> StoredAnswer | None:
        gemms.append(wanted.gemm)
        return find(prepared, wanted)

    find = PreparedLookup.find
    # However busy the machine is.
    monkeypatch.setattr(kernel_lookups, "SLOW_SECONDS", float("inf"))
    monkeypatch.setattr(PreparedLookup, "find", looked)
    return gemms


def stored(service: Service, salt: str = "", **options: Any) -> str:
    return kernel_record(service.store, REQUEST, salt=salt, search=TUNED, **options).id


def test_the_same_request_is_looked_up_once(service: Service, looked_up: list[str]) -> None:
    kernel_id = stored(service)
    first, second = service.post(device=CPU.key), service.post(device=CPU.key)
    assert looked_up == [ODD]
    assert first.json()["id"] == kernel_id
    assert first.content == second.content
    ours, theirs = ({n: v for n, v in answer.headers.items() if n not in OWN} for answer in (first, second))
    assert ours == theirs
    assert service.post(device=CPU.key, headers={"Prefer": "wait=3"}).headers["Preference-Applied"] == "wait=3"
    assert looked_up == [ODD]
    record = service.store.kernel_by_id(kernel_id)
    assert record is not None
    assert first.content == service.http.get(f"/v1/kernels/{kernel_id}").content == render(record).encode()
    assert KernelDocument.model_validate_json(first.content) == KernelDocument.of(record)


@pytest.mark.parametrize("gemm", [ODD, f"{ODD}:out=f16", Gemm.parse(ODD).to_json()])
def test_a_problem_is_known_in_each_of_its_forms(service: Service, looked_up: list[str], gemm: Any) -> None:
    kernel_id = stored(service)
    answer = service.post(gemm, device=CPU.key)
    assert (answer.status_code, answer.json()["id"]) == (200, kernel_id)
    assert looked_up[-1] == ODD
    assert len(looked_up) == (2 if isinstance(gemm, str) and gemm != ODD else 1)


def test_a_kernel_whose_document_is_not_stored_is_answered_with_the_same_bytes(
    service: Service, looked_up: list[str]
) -> None:
    stored(service)
    with_document = service.post(device=CPU.key)
    with service.state.database.write() as connection:
        connection.execute(delete(KernelDocumentRow))
    other = service.post(device=CPU.key, seed=1)
    assert (other.status_code, other.content, other.headers["ETag"]) == (
        200,
        with_document.content,
        with_document.headers["ETag"],
    )
    assert looked_up == [ODD, ODD]
    interrupted = kernel_record(service.store, REQUEST, salt="interrupted", search={"ended": "interrupted"}).id
    service.queue.register_worker("elsewhere:1:0", [CPU])
    for _ in range(2):
        service.state.snapshots.expire()
        answer = service.post(device=CPU.key, seed=2)
        assert answer.json()["id"] == interrupted
        assert service.queue.jobs()[0].request.seed == 2, "its search is gone on with"
        with service.state.database.write() as connection:
            connection.execute(delete(KernelDocumentRow))


def test_a_body_in_parts_and_with_parameters_of_its_type_is_answered_before_the_routes(
    service: Service, looked_up: list[str]
) -> None:
    kernel_id = stored(service)
    body = f'{{"gemm": "{ODD}", "device": "{CPU.key}"}}'.encode()
    headers = {"Content-Type": "Application/JSON; charset=utf-8"}
    for parts in (iter([body[:9], body[9:]]), iter([body])):
        assert service.http.post("/v1/kernels", content=parts, headers=headers).json()["id"] == kernel_id
    assert looked_up == [ODD], "the parts are one body"
    twice = body.replace(b"{", b'{"gemm": "1x1x1", ', 1)
    answer = service.http.post("/v1/kernels", content=twice, headers=headers)
    assert (answer.status_code, "twice in an object" in answer.json()["detail"]) == (400, True)
    assert looked_up == [ODD]


def test_what_is_no_answer_by_itself_is_never_kept(service: Service, looked_up: list[str]) -> None:
    stored(service)
    service.queue.register_worker("elsewhere:1:0", [CPU])
    for _ in range(2):
        assert service.post(budget={"trials": 4000}, headers={"Prefer": "wait=0"}).status_code == 202
        assert service.post("0x67x31", device=CPU.key).status_code == 422
    assert len(looked_up) == 4
    body: dict[str, Any] = {"content": f'{{"gemm":"{ODD}"}}', "headers": {"Content-Type": "application/json"}}
    assert service.http.post("/v1/kernels", **body).status_code == 200
    body["headers"] = {"Content-Type": "text/plain"}
    assert service.http.post("/v1/kernels", **body).status_code == 415


def test_changes_by_this_process_are_seen_at_once(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_cache, "MAX_AGE_SECONDS", 1000.0)
    old = stored(service, "old")

    def answered() -> str:
        answer = service.post(device=CPU.key)
        assert answer.status_code == 200
        return str(answer.json()["id"])

    assert answered() == old
    new = stored(service, "new")
    assert answered() == new
    assert service.http.put(f"/v1/kernels/{old}/pin").status_code == 200
    assert answered() == old
    assert service.post(device=CPU.key).json()["pinned"] is True
    assert service.http.delete(f"/v1/kernels/{old}/pin").status_code == 200
    assert answered() == new
    assert service.http.delete(f"/v1/kernels/{new}").status_code == 204
    assert answered() == old


def test_changes_by_other_processes_are_seen_with_the_next_snapshot(
    service: Service, looked_up: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_cache, "MAX_AGE_SECONDS", 1000.0)
    old = stored(service, "old")
    assert service.post(device=CPU.key).json()["id"] == old
    with Database.embedded(service.state.settings.data) as other:
        new = kernel_record(SqlStore(other), REQUEST, salt="new", search=TUNED).id
        assert service.post(device=CPU.key).json()["id"] == old, "nobody has looked yet"
        monkeypatch.setattr(snapshot_cache, "MAX_AGE_SECONDS", 0.0)
        assert service.post(device=CPU.key).json()["id"] == new
        looked_up.clear()
        assert service.post(device=CPU.key).json()["id"] == new
        assert looked_up == [], "a snapshot that shows no change forgets nothing"
        assert SqlStore(other).delete_kernel(new)
        assert service.post(device=CPU.key).json()["id"] == old


def test_a_client_that_saw_its_job_end_is_answered_with_what_it_made(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_cache, "MAX_AGE_SECONDS", 1000.0)
    old = stored(service, "old")
    job, _ = service.queue.submit(REQUEST)
    assert service.post(device=CPU.key).json()["id"] == old
    with Database.embedded(service.state.settings.data) as other:
        new = kernel_record(SqlStore(other), REQUEST, salt="new", search=TUNED).id
    claimed = service.queue.claim("worker", [CPU.key], 60)
    assert claimed is not None
    assert service.queue.finish(job.id, "worker", "done", new)
    assert service.http.get(f"/v1/jobs/{job.id}").json()["kernel_id"] == new
    assert service.post(device=CPU.key).json()["id"] == new


def test_a_snapshot_that_began_before_one_was_asked_for_does_not_do(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshots, begun, go = service.state.snapshots, threading.Event(), threading.Event()
    read = SnapshotCache._read

    def held(self: SnapshotCache) -> DatabaseSnapshot:
        snapshot = read(self)
        begun.set()
        assert go.wait(PATIENCE_S)
        return snapshot

    async def scenario() -> tuple[DatabaseSnapshot, DatabaseSnapshot, DatabaseSnapshot]:
        monkeypatch.setattr(SnapshotCache, "_read", held)
        first = asyncio.create_task(snapshots.snapshot())
        assert await asyncio.to_thread(begun.wait, PATIENCE_S)
        monkeypatch.setattr(SnapshotCache, "_read", read)
        stored(service)
        snapshots.expire()
        second = await snapshots.snapshot()
        go.set()
        return await first, second, await snapshots.snapshot()

    first, *later = asyncio.run(scenario())
    assert [each.kernel_version - first.kernel_version for each in later] == [1, 1]


def test_other_devices_of_the_workers_are_other_answers(
    service: Service, looked_up: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_cache, "MAX_AGE_SECONDS", 0.0)
    gpu = named_device("sm_90a")
    on_cpu, on_gpu = stored(service), stored(service, device=gpu)
    service.queue.register_worker("elsewhere:1:0", [CPU])
    for _ in range(2):
        assert service.post().json()["id"] == on_cpu
    assert len(looked_up) == 1
    service.queue.register_worker("elsewhere:2:0", [gpu])
    assert service.post().json()["id"] == on_gpu, "the best device that a live worker has"
    service.queue.remove_worker("elsewhere:2:0")
    assert service.post().json()["id"] == on_cpu


def test_what_is_known_is_answered_by_any_name_of_a_device_whose_worker_has_ended(service: Service) -> None:
    known = stored(service)
    with service.worker("elsewhere:1:0"):
        pass
    for name in ("", "cpu", CPU.key):
        device: dict[str, Any] = {"device": name} if name else {}
        answer = service.post(**device)
        assert (answer.status_code, answer.json().get("id")) == (200, known), name
        assert service.http.post("/v1/batches", json={"gemms": [ODD], **device}).status_code == 200, name


def test_a_kernel_of_another_device_s_configs_answers_who_asks_for_it(service: Service) -> None:
    origin = {"device": "cuda:sm_90a:nvidia-h200:132", "environment": {}, "same": False, "other_device": True}
    shipped = {"ended": "shipped", "shipped": origin}
    service.queue.register_worker("elsewhere:1:0", [CPU])
    other = kernel_record(service.store, REQUEST, salt="other", search=shipped).id
    unasked = service.post(headers={"Prefer": "wait=0"})
    pending = unasked.json()
    assert (unasked.status_code, pending["fallback"], pending["job"]["other_devices"]) == (202, None, False)
    for _ in range(2):
        answer = service.post(other_devices=True)
        assert (answer.status_code, answer.json()["id"]) == (200, other)
        assert (answer.json()["portable"], answer.json()["other_device"]) == (True, origin["device"])
    assert service.post(other_devices=True, budget={"trials": 4000}, headers={"Prefer": "wait=0"}).status_code == 202
    jobs = [(job.request.other_devices, job.request.trials == 4000) for job in service.queue.jobs()]
    assert jobs == [(True, True), (False, False)]
    own = stored(service, "own")
    assert service.post().json()["id"] == own
    assert service.post().json()["other_device"] is None
    assert service.http.put(f"/v1/kernels/{other}/pin").status_code == 200
    assert service.post().json()["id"] == other, "it was chosen by who pinned it"


def test_a_damaged_document_is_rendered_again_and_repaired(
    service: Service, looked_up: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    stored(service)
    whole = service.post(device=CPU.key)
    with service.state.database.write() as connection:
        connection.exec_driver_sql("UPDATE kernel_documents SET json = replace(json, '12.5', '11.5')")
    for seed in (1, 2):
        again = service.post(device=CPU.key, seed=seed)
        assert (again.content, again.headers["ETag"]) == (whole.content, whole.headers["ETag"])
    assert looked_up == [ODD] * 3
    assert len([message for message in caplog.messages if "is damaged; it is rendered again" in message]) == 1


def test_a_priority_beyond_the_keys_own_is_refused_from_memory_too(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        kernel_id = stored(service)
        secrets = {scope: service.state.access.table.create(scope, scope)[1] for scope in ("tune", "admin")}
        service.state.access.read()
        for scope, status in (("admin", 200), ("admin", 200), ("tune", 403)):
            headers = {"Authorization": f"Bearer {secrets[scope]}"}
            answer = service.post(device=CPU.key, queue={"priority": 50}, headers=headers)
            assert answer.status_code == status
            assert status != 200 or answer.json()["id"] == kernel_id


def test_memory_is_bounded_and_forgets_what_was_asked_for_longest_ago(service: Service) -> None:
    state = service.state
    sha256 = service.store.put_blob(b"artifact")
    answer = KnownAnswer(Rendered(b"x" * 5000, '"x"'), "abc", sha256, 0)
    known = KnownAnswers(state.database, state.snapshots, state.access, state.memory, kept_bytes=20_000)

    async def scenario() -> list[bytes]:
        seen = await known.state()
        for number in range(3):
            known.keep(b"%d" % number, answer, seen)
        assert await known.find(b"0", None) is answer
        known.keep(b"3", answer, seen)
        return [body for body in (b"0", b"1", b"2", b"3") if await known.find(body, None) is not None]

    assert asyncio.run(scenario()) == [b"0", b"2", b"3"]


def test_what_was_read_before_a_change_is_not_kept_after_it(service: Service) -> None:
    state = service.state
    answer = KnownAnswer(Rendered(b"{}", '"x"'), "abc", service.store.put_blob(b"artifact"), 0)

    async def scenario() -> object:
        seen = await state.known_answers.state()
        stored(service)
        await state.known_answers.state()
        state.known_answers.keep(b"body", answer, seen)
        return await state.known_answers.find(b"body", None)

    assert asyncio.run(scenario()) is None


def test_a_kernel_document_has_an_etag_that_its_pin_changes(service: Service) -> None:
    kernel_id = stored(service)
    path = f"/v1/kernels/{kernel_id}"
    tag = service.http.get(path).headers["ETag"]
    assert service.post(device=CPU.key).headers["ETag"] == tag
    same = service.http.get(path, headers={"If-None-Match": f'"other", W/{tag}'})
    assert (same.status_code, same.content, same.headers["ETag"]) == (304, b"", tag)
    several = service.http.get(path, headers=[("If-None-Match", tag), ("If-None-Match", '"other"')])
    assert several.status_code == 304
    assert service.http.put(f"{path}/pin").status_code == 200
    changed = service.http.get(path, headers={"If-None-Match": tag})
    assert (changed.status_code, changed.json()["pinned"]) == (200, True)
