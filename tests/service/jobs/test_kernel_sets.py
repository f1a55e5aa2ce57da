"""Kernel sets in the service: what a worker makes of a range of m, and how documents and commands show it."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

from tests.service.support import CPU, kernel_record
from tirgemm.artifact import Signer, Trust, read
from tirgemm.events import Event, PhaseEntered
from tirgemm.gemm import Gemm
from tirgemm.service.commands.tune import describe
from tirgemm.service.http.documents import KernelDocument
from tirgemm.service.jobs.local_fleet import LocalFleet
from tirgemm.timings import MemberTiming, SearchSummary, Timings
from tirgemm.tuning.budget import covers
from tirgemm.tuning.effort import Effort
from tirgemm.tuning.records.memory_store import MemoryStore
from tirgemm.tuning_db import JobRequest
from tirgemm.tuning_db.answers.kernel_document import kernel_members

RANGED = JobRequest(Gemm.parse("1..2x48x16:f32:nt"), CPU, "sustained", trials=1, seconds=60.0, effort=Effort.QUICK)
MEMBERS = (
    MemberTiming("1", "x86", "x86(tile_m=1)", "0" * 16, "a" * 64, 1.5),
    MemberTiming("2..64", "x86", "x86(tile_m=8)", "1" * 16, "b" * 64),
)


def test_a_job_with_a_range_of_m_is_searched_at_sizes_of_m_after_one_kernel_for_all_of_it(tmp_path: Path) -> None:
    store, signer, events = MemoryStore(), Signer.generate(), list[Event]()
    fleet = LocalFleet(store, signer, tmp_path, processes=1, served=[CPU])
    (engine,) = fleet.engines()
    try:
        engine.warm()
        fallback = engine.fallback(RANGED, threading.Event())
        tuned = engine.tune(RANGED, events.append, threading.Event(), lambda: None)
    finally:
        fleet.close()
    assert (fallback.role, fallback.gemm) == ("fallback", RANGED.gemm)
    assert any(isinstance(event, PhaseEntered) and event.detail == "the search of 2 sizes of m" for event in events)
    assert tuned.timings.search is not None
    assert tuned.timings.search.sizes == (1, 2)
    assert covers(tuned, RANGED.budget)
    for record in (fallback, tuned):
        manifest = read(store.get_blob(record.artifact_sha256), Trust.of(signer.public)).manifest
        assert (manifest.gemm, manifest.role, manifest.certificate_fault) == (RANGED.gemm, record.role, "")
    document = KernelDocument.of(tuned)
    assert len(document.members) == len(manifest.members)


def test_a_document_has_the_table_of_a_set_and_none_of_one_kernel() -> None:
    store = MemoryStore()
    one = kernel_record(store, RANGED)
    timings = replace(one.timings, members=MEMBERS, search=SearchSummary(sizes=(1, 64)))
    many = store.put_kernel(replace(one, timings=timings, id=""))
    assert KernelDocument.of(one).members == []
    document = KernelDocument.of(many)
    assert [(member.m, member.median_us) for member in document.members] == [("1", 1.5), ("2..64", None)]
    assert "members" not in kernel_members(many)["timings"]
    assert describe(many)["timings"]["members"] == [member.to_json() for member in MEMBERS]
    assert Timings.from_json(many.timings.to_json()) == timings == many.timings
