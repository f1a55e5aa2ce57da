"""Pages of kernel documents: ids by keyset from the database, each document rendered once for each state of its pin,
which is all that ever changes of it."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence

from tirgemm.service.http.documents import KernelDocument
from tirgemm.service.views.queries import KernelFilter, kernel_ids, kernels_by_id
from tirgemm.tuning_db import Database

KEPT_BYTES = 64 * 2**20


class KernelPages:
    """Renders pages; keeps what was listed last, up to ``kept_bytes`` of JSON. Safe from several threads."""

    def __init__(self, database: Database, kept_bytes: int = KEPT_BYTES) -> None:
        self._database = database
        self._kept_bytes = kept_bytes
        self._lock = threading.Lock()
        self._documents: OrderedDict[tuple[str, bool], bytes] = OrderedDict()
        self._bytes = 0

    def page(self, wanted: KernelFilter, after: str, limit: int) -> bytes:
        """The JSON of a KernelList: ``limit`` kernels from behind the id ``after``, newest first."""
        ids = kernel_ids(self._database, wanted, after=after, limit=limit + 1)
        shown = self._rendered(ids[:limit])
        last = json.dumps(ids[limit - 1][0] if len(ids) > limit else None)
        return b'{"kernels":[' + b",".join(shown) + b'],"next":' + last.encode() + b"}"

    def _rendered(self, ids: Sequence[tuple[str, bool]]) -> list[bytes]:
        """The documents of these kernels, by id and whether it is pinned; one that was deleted since is left out."""
        with self._lock:
            documents = {marked: self._documents[marked] for marked in ids if marked in self._documents}
        fresh = {
            (record.id, record.pinned): KernelDocument.of(record).model_dump_json().encode()
            for record in kernels_by_id(self._database, [marked[0] for marked in ids if marked not in documents])
        }
        documents |= fresh
        with self._lock:
            for marked, document in documents.items():
                self._bytes += len(document) - len(self._documents.pop(marked, b""))
                self._documents[marked] = document
            while self._bytes > self._kept_bytes:
                self._bytes -= len(self._documents.popitem(last=False)[1])
        return [documents[marked] for marked in ids if marked in documents]
