"""Shared state of the routes, made once at start: settings, database, store, queue and the public key."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import replace
from typing import Annotated

from fastapi import Depends, Request

from tirgemm.artifact import Trust
from tirgemm.artifact.sign import Signer
from tirgemm.service.access.access_control import AccessControl
from tirgemm.service.explain.explainer import Explainer
from tirgemm.service.group_memory import GroupMemory
from tirgemm.service.http.kernel_cache.kernel_documents import KernelDocuments
from tirgemm.service.http.kernel_cache.kernel_lookups import KernelLookups
from tirgemm.service.http.kernel_cache.known_answers import KnownAnswers
from tirgemm.service.http.kernel_cache.snapshot_cache import SnapshotCache
from tirgemm.service.http.kernel_pages import KernelPages
from tirgemm.service.http.metrics import Metrics
from tirgemm.service.http.watch import Watch
from tirgemm.service.settings import Settings
from tirgemm.service.views.job_history import HistoryReader
from tirgemm.service.views.service_figures import FigureReader
from tirgemm.service.views.service_overview import OverviewReader
from tirgemm.service.views.spaces.importance import ImportanceReader
from tirgemm.tuning_db import Database, JobQueue
from tirgemm.tuning_db.access.api_keys import ApiKey
from tirgemm.tuning_db.data_folder import open_database
from tirgemm.tuning_db.queue.batches import BatchTable
from tirgemm.tuning_db.shipped.layered_store import LayeredStore
from tirgemm.tuning_db.upkeep.missing_rows import add_missing_rows

# How long the answer of a database server is awaited by a request, whose client waits.
DATABASE_SECONDS = 5.0


class ServiceState:
    """The open parts of one service; ``stopping`` ends the event streams so that the server can shut down;
    ``explainer`` has a process of its own, to be closed with the database, where all is compiled and disassembled that
    is looked at; ``watch`` is whom everybody waits with; ``access`` knows the API keys. Kept in memory are
    ``documents`` of kernels, of which ``kernel_pages`` are made, and the ``known_answers``, which hold as long as the
    newest of the ``snapshots`` of the database; others are found by ``lookups``. ``memory`` is what the server
    processes of the service share; ``candidates_after`` is where they begin to count candidates, by default with the
    next one.
    ``metrics`` are for Prometheus, ``overview`` is for the front page, ``histories`` are for those of jobs,
    ``importances`` of knobs for those of spaces."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        public_key: str,
        memory: GroupMemory | None = None,
        candidates_after: int | None = None,
    ) -> None:
        self.settings = settings
        self.database = database
        self.public_key = public_key
        self.memory = memory or GroupMemory()
        self.candidates_after = candidates_after
        self.database.on_kernels_changed = self.memory.note_change
        self.store = LayeredStore(database)
        self.queue = JobQueue(database)
        self.batches = BatchTable(database)
        self.stopping = asyncio.Event()
        self.explainer = Explainer()
        self.watch = Watch(self.queue, self.batches, settings.alive_seconds, self.stopping)
        self.access = AccessControl(database, settings, self.stopping, self.memory.buckets)
        self.documents = KernelDocuments()
        self.kernel_pages = KernelPages(database, self.documents)
        self.snapshots = SnapshotCache(self.queue, settings.alive_seconds, self.memory)
        self.known_answers = KnownAnswers(database, self.snapshots, self.access, self.memory)
        self.lookups = KernelLookups(database)
        figures = FigureReader(database, settings.lease_seconds, candidates_after)
        self.metrics = Metrics(figures, in_group=self.memory.processes > 1)
        self.overview = OverviewReader(database)
        self.histories = HistoryReader(self.queue)
        self.importances = ImportanceReader()

    @property
    def trust(self) -> Trust:
        """The service's keys, the former ones too, and whom the user that runs it trusts."""
        trust = Trust.default(self.settings.data)
        return replace(trust, keys=trust.keys | {self.public_key})

    @classmethod
    def open(
        cls,
        settings: Settings,
        memory: GroupMemory | None = None,
        candidates_after: int | None = None,
        *,
        complete: bool = True,
    ) -> ServiceState:
        """Open the data folder: the database, with the figures and documents of kernels that an older tirgemm stored,
        and the signing key, made where absent. Not ``complete``: without those figures and documents, which takes
        reading all kernels. Raises what open_database does."""
        with ExitStack() as stack:
            database = stack.enter_context(open_database(settings.data, settings.db or None, DATABASE_SECONDS))
            if complete:
                add_missing_rows(database)
            signer = Signer.load_or_create(settings.signing_key)
            opened = cls(settings, database, signer.public, memory, candidates_after)
            stack.pop_all()
        return opened

    def close(self) -> None:
        """Write what the log of uses still lacks, and close what is open."""
        self.access.flush()
        self.explainer.close()
        self.database.close()


async def _state(request: Request) -> ServiceState:
    state: ServiceState = request.app.state.service
    return state


async def _caller(request: Request) -> ApiKey | None:
    key: ApiKey | None = request.state.caller
    return key


State = Annotated[ServiceState, Depends(_state)]
# The API key of the request; None where keys are off.
Caller = Annotated[ApiKey | None, Depends(_caller)]
