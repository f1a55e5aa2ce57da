"""``KernelDocuments``: cache in memory of kernels' JSON documents with their ETags, by id and pin, which is all that
ever changes of a kernel."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection

from tirgemm.tuning.records import KernelRecord
from tirgemm.tuning_db.answers.kernel_document import Rendered, render

KEPT_BYTES = 64 * 2**20
# A kernel's id, and whether it is pinned.
Mark = tuple[str, bool]


class KernelDocuments:
    """Renders kernel documents; keeps those asked for last, up to ``kept_bytes`` of JSON. Safe from several threads."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._lock = threading.Lock()
        self._documents: OrderedDict[Mark, Rendered] = OrderedDict()
        self._bytes = 0

    def of(self, record: KernelRecord) -> Rendered:
        """The document of a kernel."""
        mark = (record.id, record.pinned)
        known = self.kept([mark]).get(mark)
        return known or self.render([record])[mark]

    def kept(self, marks: Collection[Mark]) -> dict[Mark, Rendered]:
        """Those of these documents that are in memory."""
        documents = {}
        with self._lock:
            for mark in marks:
                if mark in self._documents:
                    self._documents.move_to_end(mark)
                    documents[mark] = self._documents[mark]
        return documents

    def render(self, records: Collection[KernelRecord]) -> dict[Mark, Rendered]:
        """The documents of these kernels, made now and kept."""
        return self.keep({(record.id, record.pinned): Rendered.of(render(record).encode()) for record in records})

    def keep(self, documents: dict[Mark, Rendered]) -> dict[Mark, Rendered]:
        """The same documents, which are kept from now on."""
        with self._lock:
            for mark, document in documents.items():
                replaced = self._documents.pop(mark, None)
                self._bytes += len(document.json) - (len(replaced.json) if replaced else 0)
                self._documents[mark] = document
            while self._bytes > self._kept_bytes:
                self._bytes -= len(self._documents.popitem(last=False)[1].json)
        return documents
