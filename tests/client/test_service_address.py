"""The address of a service and what the environment says of the way to it: proxies, certificates, a password."""

from __future__ import annotations

import socket
from pathlib import Path

import httpx
import pytest

from tests.helpers.command_line import own_folders, runner
from tests.helpers.raw_service import answer, answering
from tirgemm import Client
from tirgemm._client import http_client
from tirgemm.errors import InvalidRequest, ServiceError, ServiceUnreachable

KEY = "tirgemm_" + "k" * 43
META = answer(b'{"version": "1"}')


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def test_no_proxy_has_the_key_of_a_service_on_loopback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(lambda _head: [META]) as (proxy, to_proxy), answering(lambda _head: [META]) as (url, to_service):
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy)
        for own in (url, url.replace("127.0.0.1", "localhost")):
            with Client(own, cache_dir=tmp_path, key=KEY) as client:
                client.meta()
        assert to_proxy == []
        assert sum(f"Bearer {KEY}".encode() in head for head in to_service) == 2
        with Client("http://gpu.example:8000", cache_dir=tmp_path) as client:
            client.meta()
        assert to_proxy[0].startswith(b"GET http://gpu.example:8000/v1/meta ")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("ALL_PROXY", "socks5://127.0.0.1:1", "socksio"),
        ("NO_PROXY", "localhost,[::1]", "Invalid port"),
        ("HTTP_PROXY", "ftp://127.0.0.1", "Unknown scheme"),
        ("HTTP_PROXY", "http://proxy..example", "label empty"),
        ("HTTP_PROXY", "proxy..example:3128", "label empty"),
    ],
)
def test_proxies_that_cannot_be_used_are_named_by_their_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, says: str
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidRequest, match=f"the proxies that HTTP_PROXY, .*ALL_PROXY or NO_PROXY name .*{says}"):
        Client("http://gpu.example", cache_dir=tmp_path)


@pytest.mark.parametrize("data", [None, b"no certificates\n"])
def test_certificates_that_cannot_be_read_are_named_by_their_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes | None
) -> None:
    file = tmp_path / "authorities.pem"
    if data is not None:
        file.write_bytes(data)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    http_client._trusted_authorities.cache_clear()
    with pytest.raises(InvalidRequest, match=f"certificates .SSL_CERT_FILE={file}, SSL_CERT_DIR=. cannot be read"):
        Client("https://gpu.example", cache_dir=tmp_path)


@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize(
    "url",
    [
        "localhost:8000",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:8000 ",
        "http://gpu..example",
        "http://gpu.example:port",
        f"http://{'g' * 64}.example",
        "http://me:hunter2@127.0.0.1:99999",
        "http://me:hunter2@gpu..example",
        "http://me:hun/ter2@gpu.example",
        "http://me:hun?ter2@gpu.example",
        "http://me:hun#ter2@gpu.example",
        "http://me:hun\nter2@gpu.example",
        "me:hunter2@gpu.example:8000",
        "http:/me:hunter2@gpu.example",
    ],
)
def test_what_is_no_address_is_told_before_anything_else_and_without_a_password(
    tmp_path: Path, url: str, key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("", KEY):
        monkeypatch.setenv("TIRGEMM_KEY", variable)
        with pytest.raises(InvalidRequest, match=r"^service address '.*' is not a URL such as") as refused:
            Client(url, cache_dir=tmp_path, key=key)
        assert "hun" not in str(refused.value)
        assert "ter2" not in str(refused.value)


def test_a_password_in_an_address_is_sent_and_not_shown(tmp_path: Path) -> None:
    with answering(lambda _head: [META]) as (url, heads):
        with Client(url.replace("//", "//me:hunter2@") + "/", cache_dir=tmp_path) as client:
            client.meta()
            assert client.url == url
        assert b"authorization: basic" in heads[0].lower()
        with Client(url.replace("//", "//me:hunter2@"), cache_dir=tmp_path, key=KEY) as client:
            client.meta()
        lines = [line for line in heads[1].splitlines() if line.lower().startswith(b"authorization:")]
        assert [line.partition(b": ")[2].decode() for line in lines] == [f"Bearer {KEY}"]
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://me:hunter2@127.0.0.1:{closed.getsockname()[1]}"
    with Client(url, cache_dir=tmp_path, patience=0.0) as client, pytest.raises(ServiceUnreachable) as gone:
        client.meta()
    assert "hunter2" not in str(gone.value)


def test_an_at_sign_in_the_path_of_an_address_is_no_user(tmp_path: Path) -> None:
    for url in ("http://gpu.example/a//b@c", "https://gpu.example/a@b", "https://gpu.example/?a@b"):
        with Client(url, cache_dir=tmp_path) as client:
            assert client.url == url


def test_a_command_does_not_show_the_password_of_an_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own_folders(tmp_path, monkeypatch)
    with answering(lambda _head: [answer(b'{"jobs": [], "batches": []}')]) as (url, _):
        for group, says in (("jobs", "has no jobs"), ("batches", "has no batch")):
            code, out, err = runner(capsys)(group, "list", "--url", url.replace("//", "//me:hunter2@"))
            assert (code, out.strip(), err) == (0, f"{url} {says}", "")


@pytest.mark.parametrize(
    ("headers", "leads"),
    [
        (
            {"location": "https://gpu.example/login"},
            "to https://gpu.example/login; give the address of the service there",
        ),
        ({}, "nowhere; is it a tirgemm service"),
        ({"location": "/login?as=me@here"}, "to /login[?]as=me@here; give"),
        ({"location": "https://me:hunter2@gpu.example/login"}, "to https://gpu.example/login; give"),
        ({"location": "https://me:hun/ter2@gpu.example/login"}, "to https://gpu.example/login; give"),
        ({"location": "me:hunter2@gpu.example/login"}, "to gpu.example/login; give"),
        ({"location": "https://gpu.example:port/login"}, "to https://gpu.example:port/login; give"),
    ],
)
@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_no_answer(tmp_path: Path, status: int, headers: dict[str, str], leads: str) -> None:
    moved = httpx.MockTransport(lambda _request: httpx.Response(status, headers=headers))
    with Client("http://gpu.example", cache_dir=tmp_path, transport=moved) as client:
        for call in (client.meta, lambda: client.artifact("0" * 64), lambda: list(client.events("3f2a"))):
            with pytest.raises(ServiceError, match=f"answered {status}, which leads {leads}"):
                call()
