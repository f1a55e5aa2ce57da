"""What a client serves from its cache where the service does not answer, or is not to be asked."""

from __future__ import annotations

import json
import logging
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest

from tests.helpers.artifact_samples import SIGNER, operands
from tests.helpers.fake_service import CPU, EVENTS, JOB, FakeService
from tirgemm import Client, Gemm
from tirgemm._client import http as http_layer
from tirgemm._client import kernel_index, watch
from tirgemm._client.kernel_index import CachedKernel, KernelIndex
from tirgemm.artifact import Signer
from tirgemm.artifact.known_servers import KnownServers
from tirgemm.errors import InvalidRequest, NotCached, ServiceError, ServiceUnreachable, UntrustedArtifact

URL = "http://service.test"
GEMM = Gemm.parse("33x17x19:f32:nt")
REFUSED = httpx.ConnectError("connection refused")
STREAM = f"/v1/jobs/{JOB}/events"
# Whoever waits it out never ends.
FOR_EVER = 1e9


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses of a millisecond, and no patience where there is something in the cache."""
    for module in (http_layer, watch):
        monkeypatch.setattr(module, "backoff", lambda _attempt: 0.001)
    monkeypatch.setattr(http_layer, "QUICK_PATIENCE_SECONDS", 0.01)


@pytest.fixture
def clock(fake: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes by requests alone, a hundredth of a second each."""
    for module in (http_layer, watch):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: len(fake.requests) / 100))


@pytest.fixture
def fake() -> FakeService:
    service = FakeService()
    service.answer = service.ready
    return service


def away(fake: FakeService, *paths: str, failure: Exception | int = REFUSED) -> None:
    fake.broken = {path: [failure] * 100_000 for path in paths or ("/v1/kernels",)}


def client(fake: FakeService, folder: Path, **options: Any) -> Client:
    usual: dict[str, Any] = {"trust": SIGNER.public, "cache_dir": folder, "patience": FOR_EVER}
    return Client(URL, **usual | options, transport=fake)


def filled(fake: FakeService, folder: Path, **options: Any) -> Path:
    client(fake, folder).kernel(GEMM, **options)
    fake.requests.clear()
    return folder


@pytest.mark.parametrize("failure", [REFUSED, httpx.ConnectTimeout("timed out"), 502, 503, 504])
def test_a_service_that_is_away_is_made_up_for_at_once_and_its_age_is_told(
    fake: FakeService, tmp_path: Path, caplog: pytest.LogCaptureFixture, failure: Exception | int
) -> None:
    filled(fake, tmp_path)
    away(fake, failure=failure)
    with caplog.at_level(logging.INFO, "tirgemm.client"):
        kernel = client(fake, tmp_path).kernel(GEMM)
    tensors, product = operands(GEMM)
    assert np.array_equal(kernel(tensors["a"], tensors["b"]), product)
    (said,) = caplog.records
    assert said.levelno == logging.WARNING
    assert said.name == "tirgemm.client"
    assert f"serving the tuned kernel of {GEMM} for {CPU.key} (sustained)" in said.getMessage()
    assert f"that {URL} gave less than a minute ago" in said.getMessage()
    assert ("503" if isinstance(failure, int) and failure == 503 else URL) in said.getMessage()


def test_a_port_where_nobody_listens_is_given_up_at_once(fake: FakeService, tmp_path: Path) -> None:
    filled(fake, tmp_path)
    # Bound for as long, so that nobody else listens there.
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{place.getsockname()[1]}"
        with Client(url, trust=SIGNER.public, cache_dir=tmp_path, patience=FOR_EVER) as actual:
            assert actual.kernel(GEMM).gemm == GEMM


def test_a_service_that_goes_away_while_its_job_is_followed_is_made_up_for(
    fake: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(fake, tmp_path)
    fake.answer = fake.pending
    fake.streams = [[*EVENTS[:2], httpx.ReadError("reset")]]
    away(fake, f"/v1/jobs/{JOB}")
    fake.broken[STREAM] = []
    reply = client(fake, tmp_path, patience=0.05)

    def gone() -> httpx.Response:
        raise REFUSED

    stream = fake._stream
    monkeypatch.setattr(fake, "_stream", lambda: stream() if fake.streams else gone())
    assert reply.kernel(GEMM, budget={"trials": 99}).manifest.role == "tuned"


@pytest.mark.usefixtures("clock")
def test_with_nothing_in_the_cache_it_is_tried_again_and_the_log_says_so(
    fake: FakeService, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_layer, "TELL_AFTER_SECONDS", 0.0)
    away(fake)
    with pytest.raises(
        ServiceUnreachable, match=r"no answer from http://service.test within 0 s \(connection refused\)"
    ):
        client(fake, tmp_path, patience=0.05).kernel(GEMM)
    (said,) = caplog.records
    assert said.getMessage() == "no answer from http://service.test (connection refused); trying again for 0 s"
    assert len(fake.sent("POST", "/v1/kernels")) > 2
    away(fake, STREAM)
    with pytest.raises(ServiceUnreachable):
        list(client(fake, tmp_path, patience=0.05).events(JOB))
    assert len(caplog.records) == 2, "a stream that is lost is told too"


def test_an_error_says_how_long_an_answer_was_waited_for(
    fake: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_layer, "time", SimpleNamespace(monotonic=lambda: 29.0 * len(fake.requests)))
    fake.broken["/v1/kernels"] = [httpx.ReadTimeout("timed out")]
    with pytest.raises(ServiceUnreachable, match=r"within 29 s \(timed out\); check the address"):
        client(fake, tmp_path, patience=3.0).kernels()


@pytest.mark.usefixtures("clock")
def test_a_moment_without_an_answer_is_not_worth_a_word(
    fake: FakeService, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fake.broken["/v1/kernels"] = [REFUSED, 503]
    client(fake, tmp_path).kernel(GEMM)
    assert caplog.records == []


def test_what_is_asked_to_be_tuned_again_is_not_taken_from_the_cache(fake: FakeService, tmp_path: Path) -> None:
    filled(fake, tmp_path)
    away(fake)
    with pytest.raises(ServiceUnreachable):
        client(fake, tmp_path, patience=0.02).kernel(GEMM, retune=True)


def test_an_answer_that_is_an_error_is_no_reason_to_look_into_the_cache(fake: FakeService, tmp_path: Path) -> None:
    filled(fake, tmp_path)
    fake.answer = lambda _body: (409, {"code": "device_unavailable", "detail": "no worker has it"})
    with pytest.raises(ServiceError, match="no worker has it"):
        client(fake, tmp_path).kernel(GEMM)


# -- offline -----------------------------------------------------------------------------------------


def test_offline_nothing_is_sent_and_the_cached_kernel_is_served(
    fake: FakeService, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    filled(fake, tmp_path)
    reply = client(fake, tmp_path, offline=True)
    with caplog.at_level(logging.INFO, "tirgemm.client"):
        assert reply.kernel(33, 17, 19, dtype="f32", budget={"trials": 999}).gemm == GEMM
        assert reply.kernel(GEMM, device="cpu").gemm == GEMM, "by the device's name too"
    assert "offline: serving the tuned kernel" in caplog.text
    assert reply.document(GEMM) == fake.kernels["70ed"]
    entry = reply.cached(GEMM)
    assert entry is not None
    assert (entry.role, entry.url, entry.age) == ("tuned", URL, "less than a minute")
    with pytest.raises(InvalidRequest, match="leave out offline or retune"):
        reply.kernel(GEMM, retune=True)
    for call in (reply.meta, reply.kernels, reply.jobs, reply.keys, lambda: list(reply.events(JOB))):
        with pytest.raises(ServiceUnreachable, match=f"this client is offline; {URL} is asked for nothing"):
            call()
    assert fake.requests == []


@pytest.mark.parametrize(
    "asked", [{"gemm": "34x17x19:f32:nt"}, {"gemm": GEMM, "regime": "isolated"}, {"gemm": GEMM, "device": "sm_90a"}]
)
def test_offline_what_is_not_cached_is_named(fake: FakeService, tmp_path: Path, asked: dict[str, Any]) -> None:
    filled(fake, tmp_path)
    reply = client(fake, tmp_path, offline=True)
    problem = asked.pop("gemm")
    what = rf"{problem} on {asked.get('device', CPU.key)} \({asked.get('regime', 'sustained')}\)"
    with pytest.raises(NotCached, match=rf"no kernel for {what} is in the cache .*; get it once while {URL} answers"):
        reply.kernel(problem, **asked)
    assert fake.requests == []


def test_a_kernel_of_another_device_s_configs_is_cached_for_who_asks_for_it(fake: FakeService, tmp_path: Path) -> None:
    reply = client(fake, filled(fake, tmp_path))
    own = reply.document(GEMM)
    fake.kernels["70ed"] = own | {"other_device": "cuda:sm_90a:nvidia-h200:132", "created_at": "later"}
    reply.kernel(GEMM, other_devices=True)
    assert [json.loads(r.content).get("other_devices") for r in fake.requests if r.method == "POST"] == [None, True]
    away(fake)
    assert reply.document(GEMM) == own
    only = client(fake, tmp_path / "only", offline=True)
    only.index.put(GEMM, fake.kernels["70ed"], URL)
    assert only.index.find(GEMM, CPU.key, "sustained", URL) is None
    entry = only.index.find(GEMM, CPU.key, "sustained", URL, other_devices=True)
    assert entry is not None
    assert entry.document == fake.kernels["70ed"]
    pinned = fake.kernels["70ed"] | {"pinned": True}
    only.index.put(GEMM, pinned, URL)
    entry = only.index.find(GEMM, CPU.key, "sustained", URL)
    assert entry is not None, "the service answers everybody with it"
    assert entry.document == pinned


def test_offline_trust_is_what_it_always_is(fake: FakeService, tmp_path: Path) -> None:
    filled(fake, tmp_path)
    with pytest.raises(UntrustedArtifact):
        client(fake, tmp_path, offline=True, trust=Signer.generate().public).kernel(GEMM)


def test_what_another_service_gave_is_served_where_its_key_is_trusted_and_named_where_it_is_not(
    fake: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    KnownServers.default().accept(URL, [SIGNER.public])
    own: dict[str, Any] = {"cache_dir": tmp_path, "patience": 0.0, "transport": fake}
    with Client(URL, **own) as actual:
        assert actual.kernel(GEMM).gemm == GEMM
    here = "http://127.0.0.1:8000"
    with Client(here, offline=True, **own) as actual:
        assert actual.cached(GEMM) is None
        with pytest.raises(NotCached, match=f"from {URL} alone, .* trusted at {here}; .*: --url {URL}"):
            actual.kernel(GEMM)
    with Client(URL, offline=True, **own) as actual:
        assert actual.kernel(GEMM).gemm == GEMM
    away(fake, "/v1/kernels", "/v1/keys")
    with Client(here, **own) as actual, pytest.raises(ServiceUnreachable):
        actual.kernel(GEMM)
    KnownServers.default().accept(here, [SIGNER.public])
    with Client(here, offline=True, **own) as actual:
        assert actual.kernel(GEMM).gemm == GEMM


@pytest.mark.parametrize("damage", ["cut", "other format", "no object", "swapped", "no artifact", "bad artifact"])
def test_what_is_damaged_is_as_good_as_absent(fake: FakeService, tmp_path: Path, damage: str) -> None:
    filled(fake, tmp_path)
    (file,) = (tmp_path / "index").iterdir()
    (data,) = tmp_path.glob("*.tirgemm")
    text = file.read_text()
    if damage == "cut":
        file.write_text(text[:-9])
    elif damage == "other format":
        file.write_text(json.dumps(json.loads(text) | {"format": 99}))
    elif damage == "no object":
        file.write_text("[1]")
    elif damage == "swapped":
        file.write_text(json.dumps(json.loads(text) | {"artifact_sha256": "0" * 64}))
    elif damage == "no artifact":
        data.unlink()
    else:
        data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(NotCached):
        client(fake, tmp_path, offline=True).kernel(GEMM)
    assert client(fake, tmp_path).kernel(GEMM).gemm == GEMM, "and is made good when the service is asked"
    assert client(fake, tmp_path, offline=True).kernel(GEMM).gemm == GEMM


def test_the_tuned_kernel_is_kept_though_a_fallback_came_later(fake: FakeService, tmp_path: Path) -> None:
    fake.answer = lambda body: (202, fake.pending(body)[1] | {"fallback": fake.kernels["fa11"]})
    filled(fake, tmp_path, wait="fallback")
    offline = client(fake, tmp_path, offline=True)
    assert offline.kernel(GEMM).manifest.role == "fallback", "better than nothing"
    fake.answer = fake.ready
    filled(fake, tmp_path)
    assert offline.kernel(GEMM).manifest.role == "tuned"
    fake.answer = lambda body: (202, fake.pending(body)[1] | {"fallback": fake.kernels["fa11"]})
    filled(fake, tmp_path, wait="fallback")
    assert offline.kernel(GEMM).manifest.role == "tuned"


def test_an_index_that_cannot_be_written_only_warns(
    fake: FakeService, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "index").write_text("no folder")
    assert client(fake, tmp_path).kernel(GEMM).gemm == GEMM
    assert "is not kept in the cache" in caplog.text


# -- the index itself ----------------------------------------------------------------------------------


def document(sha256: str, role: str = "tuned", **device: Any) -> dict[str, Any]:
    described = {"key": "cuda:sm_90a:nvidia-h200:132", "name": "cuda:0", "arch": "sm_90a"} | device
    return {"device": described, "regime": "sustained", "role": role, "artifact": {"sha256": sha256 * 64}}


def test_a_device_is_found_by_its_key_and_its_names_and_of_several_the_last_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = KernelIndex(tmp_path)
    index.put(GEMM, document("a"), URL)
    for name in ("cuda:sm_90a:nvidia-h200:132", "cuda:0", "cuda", "sm_90a"):
        entry = index.find(GEMM, name, "sustained", URL)
        assert entry is not None
        assert entry.artifact_sha256 == "a" * 64
    assert index.find(GEMM, "cuda:1", "sustained", URL) is None
    monkeypatch.setattr(CachedKernel, "age_s", property(lambda _: 1.0))
    path = next(iter(tmp_path.iterdir()))
    path.write_text(path.read_text().replace('"fetched_at": "20', '"fetched_at": "19'))
    index.put(GEMM, document("b", key="cuda:sm_90a:nvidia-h100:132"), URL)
    entry = index.find(GEMM, "cuda", "sustained", URL)
    assert entry is not None
    assert entry.artifact_sha256 == "b" * 64


def test_of_several_services_each_ones_own_kernel_is_found_first(tmp_path: Path) -> None:
    index = KernelIndex(tmp_path)
    for digit, url in (("a", "http://a"), ("b", "http://b")):
        index.put(GEMM, document(digit), url)
    for url, digit in (("http://a", "a"), ("http://b", "b")):
        entry = index.find(GEMM, "sm_90a", "sustained", url)
        assert entry is not None
        assert (entry.artifact_sha256, entry.url) == (digit * 64, url)
    assert index.find(GEMM, "sm_90a", "sustained", "http://c") is not None, "another's is better than none"


def test_an_unverified_build_is_for_who_takes_one(tmp_path: Path) -> None:
    index = KernelIndex(tmp_path)
    index.put(GEMM, document("a", "unverified"), URL)
    assert index.find(GEMM, "sm_90a", "sustained", URL) is None
    assert index.find(GEMM, "sm_90a", "sustained", URL, verified=False) is not None


def test_a_reader_meets_whole_entries_whoever_writes(tmp_path: Path) -> None:
    index, stop = KernelIndex(tmp_path), threading.Event()
    index.put(GEMM, document("a"), URL)

    def write(digits: str) -> None:
        while not stop.is_set():
            for digit in digits:
                index.put(GEMM, document(digit), URL)

    threads = [threading.Thread(target=write, args=(digits,)) for digits in ("ab", "cd", "ef")]
    for thread in threads:
        thread.start()
    try:
        for _ in range(300):
            assert index.find(GEMM, "sm_90a", "sustained", URL) is not None
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert len(list(tmp_path.iterdir())) == 1, "nothing unfinished is left"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "less than a minute"), (60, "1 minute"), (3599, "59 minutes"), (7200, "2 hours"), (86400 * 3 + 5, "3 days")],
)
def test_ages_are_said_as_people_say_them(seconds: float, words: str) -> None:
    assert kernel_index._age(seconds) == words
