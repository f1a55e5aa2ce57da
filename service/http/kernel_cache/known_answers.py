"""Answers of ``POST /v1/kernels`` in memory, by the bytes of the body.

An answer is kept only where it is the whole one whatever the workers do: a kernel that asks for no job. It holds until
a kernel is stored, pinned or deleted, or the devices of the live workers change: at once where a process of this
service did it, else with the next snapshot.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from starlette.responses import Response

from tirgemm.errors import PriorityRefused, StoreError
from tirgemm.service.access.access_control import AccessControl
from tirgemm.service.group_memory import GroupMemory
from tirgemm.service.http.kernel_cache.snapshot_cache import DatabaseSnapshot, SnapshotCache
from tirgemm.tuning_db import Database
from tirgemm.tuning_db.access.api_keys import ApiKey
from tirgemm.tuning_db.answers.kernel_document import Rendered

PATH = "/v1/kernels"
KEPT_BYTES = 64 * 2**20
# What an entry takes besides its body and its document.
ENTRY_BYTES = 1000


@dataclass(frozen=True, slots=True)
class KnownAnswer:
    """A kernel that answers a request: its document, its id, its artifact, and the priority that was asked for."""

    document: Rendered
    kernel_id: str
    artifact_sha256: str
    priority: int

    def response(self, applied: dict[str, str]) -> Response:
        """The 200 answer; ``applied`` are headers that say which preference was."""
        headers = {
            "Cache-Control": "no-store",
            "Vary": "Prefer",
            **applied,
            "Content-Location": f"{PATH}/{self.kernel_id}",
            "ETag": self.document.etag,
        }
        return Response(self.document.json, 200, headers, "application/json")


@dataclass(frozen=True, slots=True)
class DatabaseState:
    """The state of the database that an answer is of: a snapshot, and the changes that the processes of
    this service had made."""

    snapshot: DatabaseSnapshot
    changes: bytes


class KnownAnswers:
    """The memory, of at most ``kept_bytes``, the answers asked for last. For the event loop's thread alone."""

    def __init__(
        self,
        database: Database,
        snapshots: SnapshotCache,
        access: AccessControl,
        memory: GroupMemory,
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        self._database = database
        self._memory = memory
        self._snapshots = snapshots
        self._access = access
        self._kept_bytes = kept_bytes
        self._state: DatabaseState | None = None
        self._answers: OrderedDict[bytes, KnownAnswer] = OrderedDict()
        self._bytes = 0

    async def state(self) -> DatabaseState:
        """The state of the database that a request is answered from; take it before reading. Raises StoreError."""
        snapshot = await self._snapshots.snapshot()
        changes = self._memory.changes
        if self._state is None or self._state.snapshot is not snapshot or self._state.changes != changes:
            self._state = DatabaseState(snapshot, changes)
            self._answers.clear()
            self._bytes = 0
        return self._state

    def keep(self, body: bytes, answer: KnownAnswer, state: DatabaseState) -> None:
        """Remember an answer that was read after ``state``, unless that is past."""
        if state is not self._state:
            return
        self._forget(body)
        self._answers[body] = answer
        self._bytes += _size(body, answer)
        while self._bytes > self._kept_bytes:
            self._forget(next(iter(self._answers)))

    async def find(self, body: bytes, caller: ApiKey | None) -> KnownAnswer | None:
        """The answer to a body that was answered before, if its artifact is there and ``caller`` may ask for it."""
        try:
            await self.state()
            answer = self._answers.get(body)
            if answer is None:
                return None
            self._access.require_priority(caller, answer.priority)
        except (StoreError, PriorityRefused):
            return None  # the route says what is wrong
        if not self._database.blobs.has(answer.artifact_sha256):
            self._forget(body)
            return None
        self._answers.move_to_end(body)
        return answer

    def _forget(self, body: bytes) -> None:
        gone = self._answers.pop(body, None)
        self._bytes -= 0 if gone is None else _size(body, gone)


def _size(body: bytes, answer: KnownAnswer) -> int:
    return len(body) + len(answer.document.json) + ENTRY_BYTES
