"""The API key of a client: whom it is sent to, whom not, and that nothing shows it."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tirgemm import Client
from tirgemm._client import http as http_layer
from tirgemm._client.api_key import KeyHeader, key_header
from tirgemm.errors import InvalidRequest, ServiceError

SECRET = "tirgemm_" + "k" * 43


def sent_to(url: str, folder: Path, key: str | None = None) -> list[str | None]:
    """The Authorization headers of what a client sends."""
    seen: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("authorization"))
        assert SECRET not in str(request.url)
        return httpx.Response(200, json={"version": "1"})

    transport = httpx.MockTransport(answer)
    with Client(url, cache_dir=folder, key=key, transport=transport) as client:
        client.meta()
        assert SECRET not in repr(client) + repr(vars(client))
    return seen


@pytest.mark.parametrize(
    "url", ["https://tuner.example", "http://127.0.0.1:8000", "http://localhost", "http://[::1]:8"]
)
def test_a_key_goes_as_a_header_to_https_and_loopback(url: str, tmp_path: Path) -> None:
    assert sent_to(url, tmp_path, SECRET) == [f"Bearer {SECRET}"]


def test_the_environment_has_the_key_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIRGEMM_KEY", SECRET)
    assert sent_to("https://tuner.example", tmp_path) == [f"Bearer {SECRET}"]
    assert sent_to("https://tuner.example", tmp_path, "other") == ["Bearer other"]
    monkeypatch.delenv("TIRGEMM_KEY")
    assert sent_to("https://tuner.example", tmp_path) == [None]


def test_plain_http_to_others_is_refused_unless_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    url = "http://tuner.example"
    with pytest.raises(InvalidRequest):
        sent_to("http://127.0.0.1.tuner.example", tmp_path, SECRET)
    with pytest.raises(InvalidRequest, match="not sent over plain HTTP") as refused:
        sent_to(url, tmp_path, SECRET)
    assert SECRET not in str(refused.value)
    monkeypatch.setenv("TIRGEMM_KEY", SECRET)
    with caplog.at_level(logging.WARNING):
        assert sent_to(url, tmp_path) == [None]
    assert "TIRGEMM_KEY is not sent to tuner.example" in caplog.text
    assert SECRET not in caplog.text
    monkeypatch.setenv("TIRGEMM_KEY_OVER_HTTP", "1")
    assert sent_to(url, tmp_path) == [f"Bearer {SECRET}"]
    assert sent_to(url, tmp_path, SECRET) == [f"Bearer {SECRET}"]


@pytest.mark.parametrize("secret", ["", "a b", "a\nb", "ä", "x" * 513])
def test_what_is_no_key_is_refused_without_showing_it(secret: str) -> None:
    with pytest.raises(InvalidRequest, match="is no API key") as refused:
        key_header("https://tuner.example", secret)
    assert secret == "" or secret not in str(refused.value)


def test_a_redirect_is_not_followed_and_the_key_is_for_one_host(tmp_path: Path) -> None:
    hosts: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        hosts.append(request.url.host)
        return httpx.Response(307, headers={"location": "https://attacker.example/v1/meta"})

    client = Client("https://tuner.example", cache_dir=tmp_path, key=SECRET, transport=httpx.MockTransport(answer))
    with client, suppress(ServiceError):
        client.meta()
    assert hosts == ["tuner.example"]
    header = KeyHeader(SECRET, "https://tuner.example")
    for url in ("https://attacker.example/", "http://tuner.example/", "https://tuner.example.attacker.example/"):
        assert "authorization" not in header.add(httpx.Request("GET", url)).headers
    assert SECRET not in repr(header)


def test_a_client_that_asks_too_often_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_layer, "backoff", lambda _attempt: 0.001)
    answers = [(429, {"code": "rate_limited", "detail": "too often"}), (200, {"version": "1"})]

    def answer(_: httpx.Request) -> httpx.Response:
        status, body = answers.pop(0)
        return httpx.Response(status, json=body)

    with Client("https://tuner.example", cache_dir=tmp_path, transport=httpx.MockTransport(answer)) as client:
        assert client.meta() == {"version": "1"}
        answers.append((429, {"code": "quota_exceeded", "detail": "trials_a_day: used up"}))
        with pytest.raises(ServiceError, match="trials_a_day"):
            client.meta()
    assert answers == []


@pytest.mark.parametrize(
    ("url", "asked", "sent"),
    [
        ("https://tuner.example", "https://tuner.example:443/v1/kernels", True),
        ("https://tuner.example:8443", "https://tuner.example:8443/healthz", True),
        ("https://tuner.example:8443", "https://tuner.example/v1/kernels", False),
        ("http://127.0.0.1:8000", "http://127.0.0.1:8001/v1/kernels", False),
        ("https://tuner.example", "http://tuner.example/v1/kernels", False),
        ("https://tuner.example", "https://tuner.example.org/v1/kernels", False),
    ],
)
def test_a_key_goes_to_scheme_host_and_port_of_its_service_alone(url: str, asked: str, sent: bool) -> None:
    request = KeyHeader(SECRET, url).add(httpx.Request("GET", asked))
    assert ("authorization" in request.headers) is sent
