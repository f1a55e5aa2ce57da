"""The address of a service and what the environment says of the way to it: proxies."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.raw_service import answer, answering
from tirgemm import Client

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
