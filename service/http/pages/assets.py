"""``/assets``: style sheets, scripts and pictures of the pages, kept by browsers for good."""

from __future__ import annotations

from fastapi import APIRouter, Response

from tirgemm.service.http.problems import Problem
from tirgemm.service.pages.assets import PREFIX, assets

router = APIRouter(tags=["pages"], include_in_schema=False)

_HEADERS = {"Cache-Control": "public, max-age=31536000, immutable", "X-Content-Type-Options": "nosniff"}


@router.get(PREFIX + "{digest}/{name:path}")
async def get_asset(digest: str, name: str) -> Response:
    """One file; its address changes with its bytes."""
    asset = assets().get(name)
    if asset is None or asset.digest != digest:
        raise Problem(404, f"there is no asset {name[:80]!r} of that hash; open the page again", "not_found")
    return Response(asset.content, headers=_HEADERS, media_type=asset.media_type)
