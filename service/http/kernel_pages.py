"""Pages of kernel documents: ids by keyset from the database, the documents from memory where they are there, else as
they are stored; what is not, or is damaged, is rendered."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tirgemm.service.http.kernel_cache.kernel_documents import KernelDocuments, Mark
from tirgemm.service.views.queries import KernelFilter, kernel_ids, kernels_by_id
from tirgemm.tuning_db import Database
from tirgemm.tuning_db.answers.kernel_document import Rendered, stored_documents


class KernelPages:
    """Renders pages of a database's kernels from ``documents``. Safe from several threads."""

    def __init__(self, database: Database, documents: KernelDocuments) -> None:
        self._database = database
        self._documents = documents

    def page(self, wanted: KernelFilter, after: str, limit: int) -> bytes:
        """The JSON of a KernelList: ``limit`` kernels from behind the id ``after``, newest first."""
        ids = kernel_ids(self._database, wanted, after=after, limit=limit + 1)
        shown = self._rendered(ids[:limit])
        last = json.dumps(ids[limit - 1][0] if len(ids) > limit else None)
        return b'{"kernels":[' + b",".join(shown) + b'],"next":' + last.encode() + b"}"

    def _rendered(self, marks: Sequence[Mark]) -> list[bytes]:
        """The documents of these kernels; one that was deleted since is left out."""
        documents = self._documents.kept(marks)
        for more in (self._stored, self._made):
            if missing := [mark[0] for mark in marks if mark not in documents]:
                documents |= more(missing)
        # One that was pinned or unpinned since has the other mark.
        known = (documents.get((name, pinned)) or documents.get((name, not pinned)) for name, pinned in marks)
        return [document.json for document in known if document is not None]

    def _stored(self, ids: Sequence[str]) -> dict[Mark, Rendered]:
        return self._documents.keep(stored_documents(self._database, ids))

    def _made(self, ids: Sequence[str]) -> dict[Mark, Rendered]:
        return self._documents.render(kernels_by_id(self._database, ids))
