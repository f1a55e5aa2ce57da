"""GET and HEAD /v1/artifacts/{sha256}: caching, ranges, and what is not there."""

from __future__ import annotations

import pytest

from tests.service.support import CPU, ODD, Service, kernel_record
from tirgemm.gemm import Gemm
from tirgemm.tuning_db import JobRequest


@pytest.fixture
def artifact(service: Service) -> tuple[str, bytes]:
    """The address and the bytes of a stored artifact."""
    record = kernel_record(service.store, JobRequest(Gemm.parse(ODD), CPU))
    return f"/v1/artifacts/{record.artifact_sha256}", service.store.get_blob(record.artifact_sha256)


def test_an_artifact_never_changes_and_says_so(service: Service, artifact: tuple[str, bytes]) -> None:
    url, data = artifact
    answer = service.http.get(url)
    assert (answer.status_code, answer.content) == (200, data)
    assert answer.headers["etag"] == f'"{url.rsplit("/", 1)[1]}"'
    assert "immutable" in answer.headers["cache-control"]
    assert answer.headers["content-type"] == "application/vnd.tirgemm+zip"
    assert answer.headers["accept-ranges"] == "bytes"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_head_is_get_without_the_body(service: Service, artifact: tuple[str, bytes]) -> None:
    url, data = artifact
    head, get = service.http.head(url), service.http.get(url)
    assert (head.status_code, head.content) == (200, b"")
    assert int(head.headers["content-length"]) == len(data)
    assert {k: v for k, v in head.headers.items() if k not in ("date", "x-request-id")} == {
        k: v for k, v in get.headers.items() if k not in ("date", "x-request-id")
    }


@pytest.mark.parametrize("pattern", ["{}", "W/{}", '"x", {}', "*"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_who_has_it_is_not_sent_it_again(
    service: Service, artifact: tuple[str, bytes], pattern: str, method: str
) -> None:
    url, _ = artifact
    etag = f'"{url.rsplit("/", 1)[1]}"'
    answer = service.http.request(method, url, headers={"If-None-Match": pattern.format(etag)})
    assert (answer.status_code, answer.content) == (304, b"")
    assert answer.headers["etag"] == etag
    several = service.http.request(method, url, headers=[("If-None-Match", tag) for tag in ('"x"', etag, '"y", "z"')])
    assert several.status_code == 304
    other = service.http.request(method, url, headers={"If-None-Match": '"0000"'})
    assert other.status_code == 200


@pytest.mark.parametrize(
    ("header", "first", "last"),
    [
        ("bytes=0-0", 0, 0),
        ("bytes=7-19", 7, 19),
        ("bytes=100-", 100, -1),
        ("bytes=-5", -5, -1),
        ("bytes=3-99999", 3, -1),
    ],
)
def test_one_range_is_sent_alone(
    service: Service, artifact: tuple[str, bytes], header: str, first: int, last: int
) -> None:
    url, data = artifact
    answer = service.http.get(url, headers={"Range": header})
    start, end = first % len(data), last % len(data)
    assert answer.status_code == 206
    assert answer.content == data[start : end + 1]
    assert answer.headers["content-range"] == f"bytes {start}-{end}/{len(data)}"


@pytest.mark.parametrize("header", ["bytes=99999-", "bytes=-0"])
def test_a_range_behind_the_end_is_416(service: Service, artifact: tuple[str, bytes], header: str) -> None:
    url, data = artifact
    answer = service.http.get(url, headers={"Range": header})
    assert answer.status_code == 416
    assert answer.headers["content-range"] == f"bytes */{len(data)}"
    assert answer.json()["code"] == "range_not_satisfiable"


@pytest.mark.parametrize("header", ["bytes=9-3", "bytes=", "bytes=-", "lines=0-1", "bytes=0-1,4-5", "bytes=a-b"])
def test_a_range_that_means_nothing_is_ignored(service: Service, artifact: tuple[str, bytes], header: str) -> None:
    url, data = artifact
    assert service.http.get(url, headers={"Range": header}).content == data


def test_if_range_of_another_file_sends_the_whole(service: Service, artifact: tuple[str, bytes]) -> None:
    url, data = artifact
    etag = f'"{url.rsplit("/", 1)[1]}"'
    assert service.http.get(url, headers={"Range": "bytes=0-3", "If-Range": etag}).content == data[:4]
    assert service.http.get(url, headers={"Range": "bytes=0-3", "If-Range": '"other"'}).content == data


@pytest.mark.parametrize("name", ["0" * 64, "A" * 64, "..%2f..%2fsigning.key", "%00", "0" * 63])
def test_what_is_not_there_is_404(service: Service, name: str) -> None:
    assert service.http.get(f"/v1/artifacts/{name}").status_code == 404


def test_a_damaged_blob_is_never_sent(service: Service, artifact: tuple[str, bytes]) -> None:
    url, data = artifact
    sha256 = url.rsplit("/", 1)[1]
    path = service.state.database.blobs.folder / sha256[:2] / sha256[2:4] / sha256
    path.write_bytes(data[:-1] + b"!")
    answer = service.http.get(url)
    assert (answer.status_code, answer.json()["code"]) == (404, "artifact_not_found")
