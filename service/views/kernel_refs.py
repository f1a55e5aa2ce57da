"""Kernels by what a person types: a kernel's id, or how its hash or the artifact's begins."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tirgemm.errors import InvalidRequest
from tirgemm.tuning.records import KernelRecord
from tirgemm.tuning.records.store import Store

_HASH = re.compile(r"[0-9a-f]{6,64}")
_PAGE = 200


def find_kernel(store: Store, text: str) -> KernelRecord:
    """The kernel whose id is ``text``, or the newest whose id or hash begins so, with six digits at least.

    Raises InvalidRequest where there is none, or where kernels of different hashes begin so.
    """
    known = store.kernel_by_id(text)
    if known is not None:
        return known
    meant = [
        record
        for record in (_all(store) if _HASH.fullmatch(text) else ())
        if any(each.startswith(text) for each in (record.id, record.kernel_sha256, record.artifact_sha256))
    ]
    if len({record.kernel_sha256 for record in meant}) > 1:
        ids = ", ".join(record.id for record in meant[:5])
        raise InvalidRequest(f"{len(meant)} kernels begin with {text!r}: name one of {ids}")
    if meant:
        return meant[0]
    newest = ", ".join(record.id for record in store.kernels(limit=3))
    file = " (give an id, or for a file the problem that `tirgemm show` names)" if text.endswith(".tirgemm") else ""
    raise InvalidRequest(
        f"there is no kernel {text!r:.80}{file}; {f'the newest are {newest}' if newest else 'the store has none'}"
    )


def _all(store: Store) -> Iterator[KernelRecord]:
    """Every kernel, newest first."""
    after = ""
    while page := store.kernels(limit=_PAGE, after=after):
        yield from page
        after = page[-1].id
