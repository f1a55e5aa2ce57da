"""POST and GET /v1/kernels: what is answered at once, what becomes a job, and who joins it."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.service.support import CPU, ODD, Service, kernel_record, serving
from tests.waiting import until
from tirgemm.config import Config
from tirgemm.gemm import Gemm, Regime
from tirgemm.hardware import named_device
from tirgemm.tuning.records import Candidate, Status
from tirgemm.tuning_db import JobRequest


def stored(
    service: Service,
    gemm: str = ODD,
    role: str = "tuned",
    regime: Regime = "sustained",
    salt: str = "",
    trials: int = 32,
    search: dict[str, Any] | None = None,
) -> str:
    request = JobRequest(Gemm.parse(gemm), CPU, regime, trials)
    return kernel_record(service.store, request, role, salt, search=search).id


def test_a_known_kernel_is_answered_without_a_worker(service: Service) -> None:
    kernel_id = stored(service)
    answer = service.post(device=CPU.key)
    assert answer.status_code == 200
    document = answer.json()
    assert document["id"] == kernel_id
    assert document["gemm"] == ODD
    assert document["device"] == {
        "key": CPU.key,
        "name": "cpu",
        "kind": "cpu",
        "model": CPU.model,
        "arch": CPU.arch,
    }
    assert (document["role"], document["verified"], document["regime"]) == ("tuned", True, "sustained")
    assert (document["family"], document["config"]) == ("x86", {"tile_m": 8, "pack": True})
    assert document["certificate"]["passed"] is True
    assert document["certificate"]["tests"][0]["test"] == "exact"
    assert document["timings"] == {"sustained": {"median_us": 12.5, "baselines": {}, "conditions": {}}}
    assert document["artifact"]["url"] == f"/v1/artifacts/{document['artifact']['sha256']}"
    assert len(service.http.get(document["artifact"]["url"]).content) == document["artifact"]["bytes"]
    assert answer.headers["content-location"] == f"/v1/kernels/{kernel_id}" == document["links"]["self"]
    assert service.http.get(document["links"]["self"]).json() == document


@pytest.mark.parametrize("gemm", [{"m": 129, "n": 67, "k": 31}, "129x67x31", "129x67x31:f16:nt:batch=1"])
def test_every_spelling_of_a_problem_is_the_same_problem(service: Service, gemm: object) -> None:
    kernel_id = stored(service)
    assert service.post(gemm, device=CPU.key).json()["id"] == kernel_id


def test_the_other_regime_and_the_fallback_alone_are_no_answer(service: Service) -> None:
    stored(service, regime="isolated")
    fallback = stored(service, role="fallback")
    service.engine.fallback_gate.set()
    with service.worker():
        answer = service.post()
        assert answer.status_code == 202
        assert answer.json()["status"] == "running"
        assert answer.json()["fallback"]["id"] == fallback
        service.engine.gate.set()


def test_an_unknown_kernel_starts_a_job_and_brings_the_fallback(service: Service) -> None:
    service.engine.fallback_gate.set()
    with service.worker():
        answer = service.post(seed=7, budget={"trials": 5, "seconds": 9.5})
        assert answer.status_code == 202
        body = answer.json()
        assert body["status"] == "running"
        assert body["fallback"]["role"] == "fallback"
        assert body["fallback"]["certificate"]["passed"]
        job = body["job"]
        assert answer.headers["location"] == f"/v1/jobs/{job['id']}" == job["links"]["self"]
        assert int(answer.headers["retry-after"]) >= 1
        assert (job["gemm"], job["seed"], job["budget"]) == (ODD, 7, {"trials": 5, "seconds": 9.5})
        assert job["verify"] is True
        service.engine.gate.set()
        done = service.wait_for(job["id"], "done")
        assert done["kernel"]["role"] == "tuned"
        assert service.post().json()["id"] == done["kernel_id"]


# What a known kernel spent, what is asked for, and whether the kernel is the answer.
SPENT = {"ended": "seconds", "seconds": 20.0}
QUICK = {"ended": "complete", "seconds": 120.0, "effort": "quick"}
STANDARD = {"ended": "expected_gain", "seconds": 120.0, "effort": "standard", "expected_gain": 0.003}
BUDGETS = [
    (2, None, {}, True),
    (2, None, {"budget": {}}, True),
    (2, None, {"budget": {"trials": 2}}, True),
    (2, None, {"budget": {"trials": 500}}, False),
    (2, None, {"budget": {"seconds": 500.0}}, False),
    (40, SPENT, {"budget": {"trials": 500, "seconds": 20}}, True),
    (40, SPENT, {"budget": {"trials": 500, "seconds": 21}}, False),
    (40, {"ended": "exhausted", "seconds": 20.0}, {"budget": {"trials": 500, "seconds": 3600}}, True),
    (2, None, {"effort": "none"}, True),
    (9, QUICK, {"effort": "quick"}, True),
    (9, QUICK, {"effort": "quick", "budget": {"trials": 12}}, True),
    (9, QUICK, {"effort": "standard"}, False),
    (24, STANDARD, {"effort": "quick"}, True),
    (24, STANDARD, {"budget": {"trials": 500}}, True),
    (24, STANDARD, {"effort": "exhaustive"}, False),
]


@pytest.mark.parametrize(("trials", "search", "asked", "answers"), BUDGETS)
def test_a_larger_budget_than_was_spent_goes_on_and_any_other_is_answered_at_once(
    service: Service, trials: int, search: dict[str, Any] | None, asked: dict[str, Any], answers: bool
) -> None:
    known = stored(service, trials=trials, search=search)
    with service.worker():
        answer = service.post(**asked)
        assert answer.status_code == (200 if answers else 202)
        if answers:
            assert answer.json()["id"] == known
            assert service.queue.jobs() == []
            return
        body = answer.json()
        assert (body["status"], body["fallback"]["id"]) == ("running", known), "the known kernel answers meanwhile"
        assert body["fallback"]["role"] == "tuned"
        assert body["job"]["fallback_id"] == known
        assert service.post(effort="quick").json()["id"] == known, "who asks for less is served meanwhile"
        service.engine.gate.set()
        done = service.wait_for(body["job"]["id"], "done")
        assert done["kernel_id"] != known
        assert service.post(**asked).json()["id"] == done["kernel_id"], "the same budget again is answered at once"
    assert len(service.queue.jobs()) == 1


def test_retune_always_starts_a_job_that_goes_on_from_what_is_recorded(service: Service) -> None:
    known = stored(service, trials=500, search={"ended": "exhausted", "seconds": 20.0})
    request = JobRequest(Gemm.parse(ODD), CPU)
    for number, status in enumerate((Status.MEASURED, Status.CRASHED, Status.MEASURED, Status.PRUNED)):
        config = Config("x86", (("tile_m", number),))
        service.store.add_candidate(Candidate(request.gemm, CPU.key, request.regime, config, status))
    with service.worker():
        assert service.post().json()["id"] == known
        body = service.post(retune=True, budget={"trials": 40}).json()
        assert body["fallback"]["id"] == known
        assert body["job"]["budget"] == {"trials": 43, "seconds": 120.0}, "on top of the three that were tried"
        service.engine.gate.set()
        service.wait_for(body["job"]["id"], "done")
    assert ("tune", ODD) in service.engine.calls


def test_retune_without_a_worker_is_refused_and_a_larger_budget_takes_what_there_is(service: Service) -> None:
    known = stored(service)
    larger = service.post(device=CPU.key, budget={"trials": 500}, headers={"Prefer": "wait=0"})
    assert larger.json()["id"] == known
    answer = service.post(device=CPU.key, retune=True, headers={"Prefer": "wait=0"})
    assert (answer.status_code, answer.json()["code"]) == (409, "device_unavailable")


def test_a_deleted_kernel_is_gone_with_its_artifact_and_made_again(service: Service) -> None:
    service.engine.fallback_gate.set()
    service.engine.gate.set()
    with service.worker():
        kernel = service.post(headers={"Prefer": "wait=100"}).json()
        job_id = service.queue.jobs()[0].id
        answer = service.http.delete(kernel["links"]["self"])
        assert (answer.status_code, answer.content) == (204, b"")
        for method, path in (("GET", "self"), ("DELETE", "self"), ("GET", "artifact")):
            assert service.http.request(method, kernel["links"][path]).status_code == 404
        assert service.http.delete("/v1/kernels/..").status_code == 404
        job = service.http.get(f"/v1/jobs/{job_id}").json()
        assert (job["status"], job["kernel_id"], job["kernel"]) == ("done", None, None)
        again = service.post(headers={"Prefer": "wait=100"}).json()
        assert (again["role"], again["id"] != kernel["id"]) == ("tuned", True)


def test_where_a_deleted_kernel_had_one_before_it_that_one_answers_again(service: Service) -> None:
    before, newest = stored(service), stored(service, salt="newer")
    assert service.post(device=CPU.key).json()["id"] == newest
    assert service.http.delete(f"/v1/kernels/{newest}").status_code == 204
    assert service.post(device=CPU.key).json()["id"] == before


def test_an_artifact_that_another_kernel_has_too_stays(service: Service) -> None:
    first, second = stored(service), stored(service)
    artifact = service.http.get(f"/v1/kernels/{first}").json()["links"]["artifact"]
    service.http.delete(f"/v1/kernels/{first}")
    assert service.http.get(artifact).status_code == 200
    service.http.delete(f"/v1/kernels/{second}")
    assert service.http.get(artifact).status_code == 404


def test_a_kernel_that_is_deleted_while_its_job_is_awaited_is_a_problem(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.engine.fallback_gate.set()
    real, finish = service.queue.job, threading.Event()

    def job(job_id: str) -> Any:
        actual = real(job_id)
        if actual is not None and actual.kernel_id:
            service.store.delete_kernel(actual.kernel_id)
            finish.set()
        return real(job_id)

    monkeypatch.setattr(service.queue, "job", job)
    service.engine.gate.set()
    with service.worker():
        answer = service.post(headers={"Prefer": "wait=100"})
    assert finish.is_set()
    assert (answer.status_code, answer.json()["code"]) == (409, "kernel_deleted")


def test_a_fallback_that_takes_longer_is_told_by_an_event(tmp_path: Path) -> None:
    with serving(tmp_path, fallback_seconds=0.6) as service, service.worker():
        began = time.monotonic()
        answer = service.post()
        assert time.monotonic() - began >= service.state.settings.fallback_seconds
        assert answer.status_code == 202
        assert answer.json()["status"] == "building"
        assert answer.json()["fallback"] is None
        job_id = answer.json()["job"]["id"]
        service.engine.fallback_gate.set()
        service.engine.gate.set()
        service.wait_for(job_id, "done")
        kinds = [event.kind for event in service.queue.events(job_id)]
    assert kinds.index("fallback") < kinds.index("started")


def test_the_same_request_joins_the_running_job(service: Service) -> None:
    service.engine.fallback_gate.set()
    with service.worker():
        jobs = {service.post().json()["job"]["id"] for _ in range(2)}
        answers: list[str] = []
        threads = [
            threading.Thread(target=lambda: answers.append(service.post().json()["job"]["id"])) for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert jobs == set(answers)
        other = service.post("131x67x31", headers={"Prefer": "wait=0"}).json()["job"]["id"]
        assert other not in jobs
        service.engine.gate.set()
        service.wait_for(other, "done")
    assert [call for call in service.engine.calls if call == ("tune", ODD)] == [("tune", ODD)]


def test_prefer_wait_waits_for_the_tuned_kernel_and_says_so(service: Service) -> None:
    service.engine.fallback_gate.set()
    with service.worker():
        threading.Timer(0.4, service.engine.gate.set).start()
        answer = service.post(headers={"Prefer": "respond-async, wait=100"})
        assert answer.status_code == 200
        assert answer.json()["role"] == "tuned"
        assert answer.headers["preference-applied"] == "wait=100"


def test_prefer_wait_runs_out_and_zero_does_not_wait(service: Service) -> None:
    with service.worker():
        began = time.monotonic()
        answer = service.post(headers={"Prefer": "wait=0"})
        assert time.monotonic() - began < service.state.settings.fallback_seconds
        assert (answer.status_code, answer.json()["status"]) == (202, "building")
        assert answer.headers["preference-applied"] == "wait=0"
        service.engine.fallback_gate.set()
        until(lambda: service.queue.jobs()[0].fallback_id is not None)
        began = time.monotonic()
        answer = service.post(headers={"Prefer": "wait=1"})
        assert 0.9 <= time.monotonic() - began < service.state.settings.fallback_seconds
        assert (answer.status_code, answer.json()["status"]) == (202, "running")


def test_prefer_wait_is_capped(tmp_path_factory: pytest.TempPathFactory) -> None:
    with serving(tmp_path_factory.mktemp("capped"), max_wait_seconds=0.5) as service, service.worker():
        service.engine.fallback_gate.set()
        for longer in ("9999", "9" * 5000):
            answer = service.post(headers={"Prefer": f"wait={longer}"})
            assert answer.headers["preference-applied"] == "wait=0.5"
        nonsense = service.post(headers={"Prefer": "wait=soon"})
        assert (nonsense.status_code, "preference-applied" in nonsense.headers) == (202, False)


def test_a_job_that_fails_while_it_is_awaited_is_a_problem(service: Service) -> None:
    service.engine.fallback_gate.set()
    service.engine.gate.set()
    with service.worker():
        answer = service.post("7x13x5", headers={"Prefer": "wait=100"})
        problem = answer.json()
        assert answer.status_code == 422, "asked again it fails again: neither a fault of the server nor to be retried"
        assert problem["code"] == "build_failed"
        assert "every candidate" in problem["detail"]
        assert problem["job"]["status"] == "failed"
        assert problem["job"]["error"]["code"] == "build_failed"
        again = service.post("7x13x5", headers={"Prefer": "wait=0"}).json()["job"]
        assert again["id"] != problem["job"]["id"], "a failed job is not joined"


@pytest.mark.parametrize("device", ["sm_80", named_device("sm_80").key, "cuda:0", "cuda:sm_80:some-other-card:12"])
def test_a_device_of_no_worker_is_409_and_says_which_there_are(service: Service, device: str) -> None:
    with service.worker():
        problem = service.post(device=device)
        assert problem.status_code == 409
        body = problem.json()
        assert body["code"] == "device_unavailable"
        assert "no live worker" in body["detail"]
        assert body["devices"] == [{"key": CPU.key, "name": "cpu"}]
        assert CPU.key in body["detail"]


@pytest.mark.parametrize("device", ["cuda:\u0663", "cuda:sm_80:some-card:\u0661"])
def test_a_device_is_numbered_with_the_digits_0_to_9(service: Service, device: str) -> None:
    answer = service.post(device=device)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_device")


def test_without_any_worker_a_new_problem_is_409(tmp_path: Path) -> None:
    with serving(tmp_path, fallback_seconds=0.1) as service:
        for body in ({}, {"device": "cpu"}, {"device": CPU.key}, {"device": "sm_90a", "verify": False}):
            answer = service.post(**body)
            assert (answer.status_code, answer.json()["code"]) == (409, "device_unavailable"), body
            assert "no worker is alive" in answer.json()["detail"]
        assert service.queue.jobs() == []


def test_unverified_builds_are_marked_and_answered_from_the_database_next_time(service: Service) -> None:
    with service.worker():
        answer = service.post(device="sm_80", verify=False, headers={"Prefer": "wait=100"})
        assert answer.status_code == 200
        document = answer.json()
        assert (document["role"], document["verified"], document["certificate"]) == ("unverified", False, None)
        assert document["device"]["key"] == named_device("sm_80").key
    again = service.post(device="sm_80", verify=False, headers={"Prefer": "wait=0"})
    assert again.json()["id"] == document["id"]
    verified = service.post(device="sm_80", headers={"Prefer": "wait=0"})
    assert verified.status_code == 409, "an unverified build never answers a request for a verified one"


def test_a_device_that_a_worker_has_is_verified_on_whatever_was_asked(service: Service) -> None:
    service.engine.fallback_gate.set()
    service.engine.gate.set()
    with service.worker():
        document = service.post(verify=False, headers={"Prefer": "wait=100"}).json()
        assert (document["role"], document["verified"]) == ("tuned", True)


def test_kernels_are_listed_newest_first_page_by_page_and_filtered(service: Service) -> None:
    ids = [stored(service, f"{129 + 2 * i}x67x31") for i in range(5)]
    isolated = stored(service, regime="isolated")
    listed, after = [], ""
    while True:
        page = service.http.get("/v1/kernels", params={"limit": 2, "after": after}).json()
        listed += [kernel["id"] for kernel in page["kernels"]]
        after = page["next"]
        if after is None:
            break
    assert listed == [isolated, *reversed(ids)]

    def filtered(**filters: str) -> list[str]:
        return [kernel["id"] for kernel in service.http.get("/v1/kernels", params=filters).json()["kernels"]]

    assert filtered(gemm="129x67x31:f16:nt") == [isolated, ids[0]]
    assert filtered(gemm="129x67x31", regime="sustained") == [ids[0]]
    assert filtered(regime="isolated") == [isolated]
    assert len(filtered(device=CPU.key)) == 6
    assert len(filtered(device="cpu")) == 6
    assert filtered(device="cuda:sm_80:none:1") == []
    assert filtered(device="sm_80") == []


def test_a_full_queue_is_503_and_says_when_to_come_back(tmp_path_factory: pytest.TempPathFactory) -> None:
    with serving(tmp_path_factory.mktemp("full"), max_queued=1) as service, service.worker():
        no_wait = {"Prefer": "wait=0"}
        running = service.post(headers=no_wait).json()["job"]["id"]
        service.wait_for(running, "running")
        waiting = service.post("131x67x31", headers=no_wait).json()["job"]["id"]
        answer = service.post("133x67x31", headers=no_wait)
        assert (answer.status_code, answer.json()["code"]) == (503, "queue_full")
        assert int(answer.headers["retry-after"]) >= 1
        assert service.post("131x67x31", headers=no_wait).json()["job"]["id"] == waiting, "it is joined all the same"
        assert service.http.get("/v1/meta").json()["limits"]["queued"] == 1
        kernel_record(service.store, JobRequest(Gemm.parse("133x67x31"), CPU))
        assert service.post("133x67x31").status_code == 200, "what is known is answered whatever waits"
