"""``tirgemm jobs``, ``tirgemm kernels`` and ``tirgemm get`` beside a real service and its database."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.artifact_samples import SIGNER
from tests.service.support import CPU, ODD, ScriptedEngine, Service, kernel_record, serving
from tests.service.test_client_over_http import packed_record
from tirgemm import Client, Gemm
from tirgemm._client.server_events import ReceivedEvent
from tirgemm.service import cli
from tirgemm.tuning_db import JobRequest

SHAPE = "33x17x19:f32:nt"
RANGED = str(Gemm.parse("1..8192x17x19:f32:tn:bias:act=relu"))
LONG = str(Gemm.parse("1..8192x131071x131071:bf16:tn:out=f32:batch=3:alpha:beta:bias:act=gelu_tanh:align=4"))
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CONFIG", "CACHE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: object) -> tuple[int, str, str]:
        code = cli.main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


@pytest.fixture
def engine(service: Service, monkeypatch: pytest.MonkeyPatch) -> ScriptedEngine:
    monkeypatch.setattr("tests.service.support.kernel_record", packed_record)
    return service.engine


def stored(service: Service, gemm: str = SHAPE, role: str = "tuned", trials: int = 32) -> str:
    return packed_record(service.store, JobRequest(Gemm.parse(gemm), CPU, trials=trials), role).id


def queued(service: Service, gemm: str = ODD) -> str:
    return service.queue.submit(JobRequest(Gemm.parse(gemm), CPU))[0].id


# -- jobs --------------------------------------------------------------------------------------------


def test_jobs_are_listed_in_80_columns_and_filtered(service: Service, run: Run) -> None:
    code, out, _ = run("jobs", "list", "--url", service.url)
    assert (code, out) == (0, f"{service.url} has no jobs\n")
    code, out, _ = run("jobs", "list", "--status", "queued", "--url", service.url)
    assert (code, out) == (0, f"{service.url} has no such job\n")
    first, second = queued(service), queued(service, LONG)
    service.queue.cancel(first)
    code, out, err = run("jobs", "list", "--url", service.url)
    assert (code, err) == (0, "")
    assert all(text in out for text in (first, second, "cancelled", "queued", ODD, LONG))
    assert "trials" not in out, "the column of trials is of what may be tried, not of what was"
    assert max(len(line) for line in out.splitlines() if LONG not in line) <= 80
    for options, ids in (
        (("--gemm", "129x67x31"), [first]),
        (("--status", "queued"), [second]),
        (("--limit", 1), [second]),
        (("--device", CPU.key), [second, first]),
        (("--device", "sm_80"), []),
    ):
        code, out, _ = run("jobs", "list", "--url", service.url, "--json", *options)
        assert (code, [job["id"] for job in json.loads(out)["jobs"]]) == (0, ids), options
    code, _, err = run("jobs", "list", "--url", service.url, "--status", "dead")
    assert (code, "status" in err) == (2, True)
    assert run("jobs", "list", "--url", service.url, "--gemm", "0x1x1")[0] == 2


def test_a_job_is_watched_to_its_end(service: Service, engine: ScriptedEngine, run: Run) -> None:
    engine.fallback_gate.set()
    engine.gate.set()
    job_id = queued(service, SHAPE)
    with service.worker():
        code, out, err = run("jobs", "watch", job_id, "--url", service.url)
    job = service.queue.job(job_id)
    assert job is not None
    words = f"job {job_id} for {SHAPE} is done: kernel {job.kernel_id}, 12.50 us a call"
    assert (code, " ".join(out.split())) == (0, words)
    assert f"{SHAPE}: " in err
    assert err.endswith(" s  done, the kernel takes 12.50 us\n")
    assert "fallback" not in err
    code, out, err = run("jobs", "watch", job_id, "--url", service.url, "--json")
    assert (code, err, json.loads(out)["kernel_id"]) == (0, "", job.kernel_id)


def test_a_job_that_fails_or_is_cancelled_fails_the_watching(
    service: Service, engine: ScriptedEngine, run: Run
) -> None:
    engine.fallback_gate.set()
    engine.gate.set()
    job_id = queued(service, "7x13x5")
    with service.worker():
        code, out, _ = run("jobs", "watch", job_id, "--url", service.url)
    assert code == 1
    assert "failed: build_failed: every candidate of this problem fails to build" in " ".join(out.split())
    waiting = queued(service)
    code, out, _ = run("jobs", "cancel", waiting, "--url", service.url)
    assert (code, out) == (0, f"job {waiting} for {ODD} is cancelled\n")
    assert run("jobs", "watch", waiting, "--url", service.url)[0] == 1
    code, _, err = run("jobs", "cancel", job_id, "--url", service.url)
    assert (code, "only a queued or running job can be cancelled" in " ".join(err.split())) == (1, True)
    code, _, err = run("jobs", "watch", "nope", "--url", service.url)
    assert (code, "there is no job 'nope'" in " ".join(err.split())) == (1, True)


def test_an_interrupt_ends_the_watching_and_not_the_job(
    service: Service, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def events(_client: Client, _job_id: str) -> Iterator[ReceivedEvent]:
        yield ReceivedEvent(1, "started", {})
        raise KeyboardInterrupt

    monkeypatch.setattr(Client, "events", events)
    job_id = queued(service)
    code, out, err = run("jobs", "watch", job_id, "--url", service.url)
    assert (code, out) == (130, "")
    assert f"no longer watching; job {job_id} goes on, `tirgemm jobs cancel {job_id}` ends it" in " ".join(err.split())
    job = service.queue.job(job_id)
    assert job is not None
    assert job.status == "queued"
    code, out, _ = run("jobs", "watch", job_id, "--url", service.url, "--json")
    assert (code, json.loads(out)["error"]["code"]) == (130, "interrupted")


def test_a_job_whose_kernel_was_deleted_fails_the_watching(service: Service, engine: ScriptedEngine, run: Run) -> None:
    engine.fallback_gate.set()
    engine.gate.set()
    job_id = queued(service, SHAPE)
    with service.worker():
        assert run("jobs", "watch", job_id, "--url", service.url)[0] == 0
    job = service.queue.job(job_id)
    assert job is not None
    service.store.delete_kernel(str(job.kernel_id))
    code, out, _ = run("jobs", "watch", job_id, "--url", service.url)
    words = f"job {job_id} for {SHAPE} is done, but its kernel was deleted or revoked; ask again"
    assert (code, " ".join(out.split())) == (1, words)


def test_the_address_of_another_thing_is_no_id_of_a_job_or_batch(service: Service, run: Run) -> None:
    kernel_id, job_id = stored(service), queued(service)
    for command in (
        ("jobs", "cancel", f"../kernels/{kernel_id}"),
        ("jobs", "watch", f"../kernels/{kernel_id}"),
        ("jobs", "retry", f"../jobs/{job_id}"),
        ("jobs", "prioritise", f"../jobs/{job_id}", "7"),
        ("batches", "cancel", f"../kernels/{kernel_id}"),
        ("batches", "cancel", f"../jobs/{job_id}"),
        ("batches", "watch", f"../jobs/{job_id}"),
        ("batches", "show", f"../kernels/{kernel_id}"),
        ("kernels", "delete", f"../jobs/{job_id}"),
        ("kernels", "unpin", f"../jobs/{job_id}?x="),
        ("kernels", "show", f"../jobs/{job_id}"),
    ):
        code, out, err = run(*command, "--url", service.url)
        assert (code, out, f"{command[2]!r} is no id of a" in " ".join(err.split())) == (2, "", True), command
    assert service.store.kernel_by_id(kernel_id) is not None
    job = service.queue.job(job_id)
    assert job is not None
    assert (job.status, job.request.priority, job.retries) == ("queued", 0, 0)


# -- kernels -----------------------------------------------------------------------------------------


@pytest.fixture(params=["service", "data folder"])
def place(request: pytest.FixtureRequest, service: Service) -> tuple[object, ...]:
    """The options that name the same kernels: by the service, and by its data folder."""
    return ("--url", service.url) if request.param == "service" else ("--data", service.state.settings.data)


def test_kernels_are_listed_in_80_columns_and_filtered(service: Service, run: Run, place: tuple[object, ...]) -> None:
    assert run("kernels", "list", *place)[:2] == (0, "there is no such kernel\n")
    first, second, third = stored(service), stored(service, RANGED, "fallback"), stored(service)
    code, out, err = run("kernels", "list", *place)
    assert (code, err) == (0, "")
    assert all(text in out for text in (first, second, third, "12.50", "default", SHAPE))
    assert "fallback" not in out
    assert max(len(line) for line in out.splitlines() if "1..8192" not in line) <= 80
    for options, ids in (
        (("--gemm", "33x17x19:f32"), [third, first]),
        (("--gemm", SHAPE, "--limit", 1), [third]),
        (("--device", "cpu", "--regime", "sustained"), [third, second, first]),
        (("--regime", "isolated"), []),
        (("--device", "sm_90a"), []),
    ):
        code, out, _ = run("kernels", "list", *place, "--json", *options)
        assert (code, [kernel["id"] for kernel in json.loads(out)["kernels"]]) == (0, ids), options
    assert run("kernels", "list", *place, "--regime", "fast")[0] == 2
    code, _, err = run("kernels", "list", *place, "--device", "sm90")
    assert (code, "device 'sm90' is unknown" in err, "cuda:N" in err) == (2, True, True)


def test_a_portable_kernel_is_marked_in_the_list_and_where_it_is_shown(
    service: Service, run: Run, place: tuple[object, ...]
) -> None:
    origin = {"device": "cuda:sm_90a:b:1", "environment": {}, "same": False}
    ended = {"ended": "shipped", "shipped": origin}
    record = kernel_record(service.store, JobRequest(Gemm.parse(SHAPE), CPU), search=ended)
    code, out, _ = run("kernels", "list", *place)
    assert (code, "portable" in out, "tuned" in out) == (0, True, False)
    code, out, _ = run("kernels", "show", record.id, *place)
    assert code == 0
    assert "tuned, portable: raced here" in " ".join(out.split())
    assert "of shipped records, with no search" in out
    assert json.loads(run("kernels", "show", record.id, *place, "--json")[1])["portable"] is True


def test_a_kernel_is_shown_and_is_the_same_document_wherever_it_is_asked_for(
    service: Service, run: Run, place: tuple[object, ...]
) -> None:
    kernel_id = stored(service)
    code, out, _ = run("kernels", "show", kernel_id, *place, "--json")
    assert (code, json.loads(out)) == (0, service.http.get(f"/v1/kernels/{kernel_id}").json())
    code, out, _ = run("kernels", "show", kernel_id, *place)
    assert code == 0
    assert all(text in out for text in (kernel_id, SHAPE, CPU.key, "12.50 us a call", "numpy fp64"))
    code, _, err = run("kernels", "show", "nope", *place)
    assert code in (1, 2)
    assert "no kernel 'nope'" in " ".join(err.split())


def test_kernels_are_deleted_all_or_none(service: Service, run: Run, place: tuple[object, ...]) -> None:
    first, second = stored(service), stored(service)
    assert run("kernels", "delete", first, "nope", *place)[0] in (1, 2)
    assert service.store.kernel_by_id(first) is not None
    assert run("kernels", "pin", second, *place)[0] == 0
    code, out, _ = run("kernels", "delete", first, second, *place, "--json")
    assert (code, json.loads(out)["error"]["code"]) == (1, "kernel_pinned")
    assert service.store.kernel_by_id(first) is not None
    assert run("kernels", "unpin", second, *place)[0] == 0
    code, out, _ = run("kernels", "delete", first, second, first, *place)
    assert code == 0
    assert f"deleted {second}, the tuned kernel of {SHAPE} on cpu (sustained)" in " ".join(out.split())
    assert service.store.kernels() == []
    third = stored(service)
    assert json.loads(run("kernels", "delete", third, *place, "--json")[1]) == {"deleted": [third]}


def test_kernels_of_a_folder_without_a_database_are_not_looked_for_in_a_new_one(run: Run, home: Path) -> None:
    for options in ((), ("--data", home / "typo")):
        code, _, err = run("kernels", "list", *options)
        assert code == 2
        assert "holds no tuning database; give its folder with --data, or a service with --url" in " ".join(err.split())
    assert not (home / "typo").exists()
    assert not (home / "data").exists()


# -- get ---------------------------------------------------------------------------------------------


def test_get_goes_on_with_the_search_where_it_is_asked_to_retune(
    service: Service, engine: ScriptedEngine, run: Run
) -> None:
    service.state.public_key = SIGNER.public  # which this test's kernels are signed with
    known = stored(service, trials=500)
    engine.gate.set()
    options = ("--url", service.url, "--trust", SIGNER.public, "--json")
    with service.worker():
        assert json.loads(run("get", SHAPE, *options)[1])["kernel"]["id"] == known
        assert service.queue.jobs() == []
        code, out, _ = run("get", SHAPE, *options, "--retune", "--trials", 3)
    assert code == 0
    assert json.loads(out)["kernel"]["id"] != known
    assert [job.request.trials for job in service.queue.jobs()] == [3]


def test_get_takes_from_the_cache_what_a_service_that_is_away_cannot_give_and_says_its_age(
    run: Run, home: Path
) -> None:
    with serving(home / "served") as service:
        service.state.public_key = SIGNER.public
        stored(service)
        assert run("get", SHAPE, "--url", service.url, "--trust", SIGNER.public, "-o", "first")[0] == 0
    code, out, err = run("get", SHAPE, "--url", service.url, "-o", "second", "--json")
    assert (code, json.loads(out)["kernel"]["role"]) == (0, "tuned")
    words = " ".join(err.split())
    assert words.startswith(f"warning: no answer from {service.url} (")
    assert f"serving the tuned kernel of {SHAPE} for {CPU.key} (sustained) that {service.url} gave less than" in words
    code, _, err = run("get", SHAPE, "--url", service.url, "--offline", "-o", "third")
    assert (code, "offline: serving the tuned kernel" in " ".join(err.split())) == (0, True)
    assert (home / "first").read_bytes() == (home / "second").read_bytes() == (home / "third").read_bytes()
    code, out, _ = run("get", "34x17x19:f32:nt", "--offline", "--json")
    error: dict[str, Any] = json.loads(out)["error"]
    assert (code, error["code"]) == (1, "not_cached")
    assert f"no kernel for 34x17x19:f32:nt on {CPU.key} (sustained)" in error["message"]
    assert run("get", SHAPE, "--offline", "--retune")[0] == 2
    elsewhere = "http://127.0.0.1:9"
    code, _, err = run("get", SHAPE, "--url", elsewhere, "--offline")
    assert (code, SIGNER.public in " ".join(err.split())) == (1, True), (
        "another service's key is not trusted for this one"
    )
    assert run("get", SHAPE, "--url", elsewhere, "--offline", "--trust", SIGNER.public)[0] == 0
    assert run("get", SHAPE, "--url", elsewhere, "--offline")[0] == 1, "offline nothing is remembered"
