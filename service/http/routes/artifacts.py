"""``/v1/artifacts/{sha256}``: signed artifacts, which never change under their address."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Annotated

from fastapi import APIRouter, Header, Path, Response
from fastapi.responses import StreamingResponse

from tirgemm.errors import DamagedBlob, RevokedArtifact
from tirgemm.service.http.problems import Problem
from tirgemm.service.http.routes.parameters import IfNoneMatch, etag_matches
from tirgemm.service.http.state import State
from tirgemm.tuning_db.revoked_artifacts import revocation

logger = logging.getLogger("tirgemm.service")
router = APIRouter(prefix="/v1/artifacts", tags=["artifacts"])

MEDIA_TYPE = "application/vnd.tirgemm+zip"
PIECE_BYTES = 1 << 18

Name = Annotated[str, Path(description="SHA-256 of the file, 64 lowercase hexadecimal digits.")]
_BODY = {"content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}}
_RESPONSES: dict[int | str, dict[str, object]] = {
    200: {**_BODY, "description": "The whole file."},
    206: {**_BODY, "description": "The range that was asked for."},
    304: {"description": "The client has it already."},
}


@router.get("/{sha256}", response_class=Response, responses=_RESPONSES)
def get_artifact(
    sha256: Name,
    state: State,
    if_none_match: IfNoneMatch = None,
    range_: Annotated[str | None, Header(alias="Range")] = None,
    if_range: Annotated[str | None, Header()] = None,
) -> Response:
    """The artifact's bytes, or one range of them. Check its signature against a key that you trust before loading
    it."""
    path = _file(state, sha256)
    etag = f'"{sha256}"'
    headers = {
        "ETag": etag,
        "Cache-Control": "public, max-age=31536000, immutable",
        "Accept-Ranges": "bytes",
        "X-Content-Type-Options": "nosniff",
    }
    if etag_matches(if_none_match, etag):
        return Response(status_code=304, headers=headers)
    headers["Content-Disposition"] = f'attachment; filename="{sha256}.tirgemm"'
    size = path.stat().st_size
    ignored = range_ is None or (if_range is not None and if_range.strip() != etag)
    span = None if ignored or range_ is None else _span(range_, size)
    first, last = span or (0, size - 1)
    headers["Content-Length"] = str(last + 1 - first)
    if span is not None:
        headers["Content-Range"] = f"bytes {first}-{last}/{size}"
    return StreamingResponse(_pieces(path, first, last), 200 if span is None else 206, headers, MEDIA_TYPE)


def _file(state: State, sha256: str) -> FilePath:
    missing = Problem(
        404, f"there is no artifact {sha256[:80]!r}; a kernel document names its own", "artifact_not_found"
    )
    if not re.fullmatch(r"[0-9a-f]{64}", sha256) or not state.database.blobs.has(sha256):
        raise missing
    if words := revocation(state.database, sha256):
        raise RevokedArtifact(f"artifact {sha256} is no longer served: {words}")
    try:
        return state.database.blobs.checked(sha256)
    except DamagedBlob as error:
        # As good as lost, and to be seen as such: the next request for its problem has it built again.
        logger.error("%s; it is deleted", error)
        state.database.blobs.delete(sha256)
        raise Problem(
            404, f"artifact {sha256} was damaged; ask for its problem again, it is built anew", "artifact_not_found"
        ) from error


def _pieces(path: FilePath, first: int, last: int) -> Iterator[bytes]:
    """The bytes from ``first`` to ``last`` of a file, a piece at a time: no request holds a whole artifact."""
    with path.open("rb") as file:
        file.seek(first)
        left = last + 1 - first
        while left > 0 and (piece := file.read(min(left, PIECE_BYTES))):
            left -= len(piece)
            yield piece


def _span(header: str, size: int) -> tuple[int, int] | None:
    """The first and the last byte of a single range, or None where the header is to be ignored (RFC 9110, 14.2).

    Raises the 416 problem where the range lies behind the end.
    """
    match = re.fullmatch(r"bytes\s*=\s*(\d{0,18})-(\d{0,18})", header.strip())
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if not first:
        start, end = size - min(int(last), size), size - 1
    else:
        start, end = int(first), min(int(last), size - 1) if last else size - 1
        if last and int(last) < int(first):
            return None
    if start > end or start >= size:
        raise Problem(
            416,
            f"{header[:80]!r} is outside the file, which has {size} bytes",
            headers={"Content-Range": f"bytes */{size}"},
            size=size,
        )
    return start, end
