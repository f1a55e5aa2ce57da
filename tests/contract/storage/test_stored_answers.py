"""Stored documents of kernels on both databases: they are what rendering the kernel gives, whatever happens to it."""

from __future__ import annotations

import hashlib
import math
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import delete, event, func, select, update

from tests.contract.storage.databases import DEVICE, GEMM, OTHER_DEVICE, OTHER_GEMM, kernel
from tirgemm.config import Config
from tirgemm.errors import StoreError
from tirgemm.gemm import Range
from tirgemm.hardware import named_device
from tirgemm.timings import MemberTiming, SearchSummary, Timing, Timings
from tirgemm.tuning.records import KernelRecord
from tirgemm.tuning_db import Database, SqlStore
from tirgemm.tuning_db.answers.kernel_document import RENDERING, Rendered, render, repair_document
from tirgemm.tuning_db.answers.stored_answers import PreparedLookup, StoredAnswer, WantedAnswer, stored_answers
from tirgemm.tuning_db.models import KernelDocumentRow
from tirgemm.tuning_db.upkeep.missing_rows import add_missing_rows
from tirgemm.tuning_db.upkeep.pins import set_pinned

SEARCH = SearchSummary.from_json(
    {"trials": 9, "ended": "shipped", "seconds": 61.5, "effort": "quick", "families": ["x86"], "new": "member"}
)
MEMBERS = (MemberTiming("1..8", "x86", "x86(tile_m=1)", "0" * 16, "a" * 64, 12),)
ODD_WORDS = {"pinned": '"pinned":false', "ünï": "line\nend\0 \ud800", "nan": math.nan, "small": 1e-7}
# SHA-256 of the text of ``fixed`` by the number of its rendering.
TEXTS = {2: "6aecad8658e87cf4f8cdf82385cd80a9cfe683a23be66fb829e4a6453dec3dbd"}

READERS = 4
PREPARED = weakref.WeakKeyDictionary[Database, PreparedLookup]()


def fixed() -> list[KernelRecord]:
    """A kernel of each kind, the same at each call."""
    named = {"kernel_sha256": "b" * 64, "artifact_sha256": "c" * 64, "created_at": "2026-11-23T00:00:00Z"}
    gpu, odd = named_device("sm_90a"), Config("x86", (("pinned", False), ("order", "a\\b")))
    kinds: list[dict[str, Any]] = [
        {"timings": Timings({"sustained": Timing(10.5, 41)}, search=SEARCH)},
        {"role": "fallback", "certificate": None, "timings": Timings()},
        {"role": "unverified", "device": gpu, "timings": Timings(predicted_us=3.25)},
        {"regime": "isolated", "timings": Timings({"isolated": Timing(99.0, conditions=ODD_WORDS)})},
        {"gemm": GEMM.with_(m=Range(1, 64)), "timings": Timings(members=MEMBERS, other={"pinned": False})},
        {"gemm": OTHER_GEMM, "device": replace(OTHER_DEVICE, model='the "pinned":false one'), "config": odd},
    ]
    certificate = kernel().certificate
    assert certificate is not None
    same = {**named, "certificate": replace(certificate, kernel_sha256="b" * 64)}
    return [kernel(**same | values) for values in kinds]


@pytest.fixture(params=["sqlite_database", "postgres_database"])
def database(request: pytest.FixtureRequest) -> Database:
    actual: Database = request.getfixturevalue(request.param)
    return actual


def wanted_of(record: KernelRecord) -> WantedAnswer:
    return WantedAnswer(str(record.gemm), record.device.key, record.regime)


def look_up(database: Database, wanted: Sequence[WantedAnswer]) -> list[StoredAnswer | None]:
    """The stored answers; on SQLite by both kinds of lookup, which give the same."""
    answers = stored_answers(database, wanted)
    if database.is_sqlite:
        if database not in PREPARED:
            PREPARED[database] = PreparedLookup(database)
        assert [PREPARED[database].find(each) for each in wanted] == answers
    return answers


def check(database: Database, records: list[KernelRecord]) -> list[StoredAnswer | None]:
    """Compare the answers with the store's own, kernel by kernel and byte by byte."""
    store = SqlStore(database)
    answers = look_up(database, [wanted_of(record) for record in records])
    for record, answer in zip(records, answers, strict=True):
        chosen = store.kernel(record.gemm, record.device.key, record.regime)
        assert (answer is None) == (chosen is None)
        if answer is not None and chosen is not None:
            assert answer.document == Rendered.of(render(chosen).encode())
            assert (answer.kernel_id, answer.role, answer.pinned) == (chosen.id, chosen.role, chosen.pinned)
            assert (answer.trials, answer.artifact_sha256) == (chosen.trials, chosen.artifact_sha256)
            for name in ("ended", "effort", "seconds", "families"):
                assert getattr(answer.search, name, None) == getattr(chosen.search, name, None)
            assert answer.interrupted == chosen.interrupted
    return answers


def test_the_stored_document_of_every_kind_of_kernel_is_the_rendered_one(database: Database) -> None:
    store = SqlStore(database)
    stored = [store.put_kernel(record) for record in fixed()]
    answers = check(database, stored)
    assert [answer is not None for answer in answers] == [True, True, False, True, True, True]
    for record in stored:
        if record.role != "unverified":
            set_pinned(database, record.id, pinned=True)
            (answer,) = check(database, [record])
            assert answer is not None
            assert answer.pinned
            set_pinned(database, record.id, pinned=False)
    check(database, stored)


def test_another_kernel_a_pin_and_a_deletion_change_the_answer_with_its_document(database: Database) -> None:
    store = SqlStore(database)
    old, new = (store.put_kernel(kernel(trials=number)) for number in (1, 2))

    def answered() -> str:
        (answer,) = check(database, [old])
        assert answer is not None
        return answer.kernel_id

    assert answered() == new.id
    set_pinned(database, old.id, pinned=True)
    assert answered() == old.id
    set_pinned(database, new.id, pinned=True)
    assert answered() == new.id
    set_pinned(database, new.id, pinned=False)
    assert store.delete_kernel(new.id)
    assert answered() == old.id
    with database.read() as connection:
        count = connection.execute(select(func.count()).select_from(KernelDocumentRow)).scalar_one()
    assert count == 1, "the document goes with its kernel"


def test_a_kernel_of_another_devices_records_answers_who_asks_for_it_and_all_once_it_is_pinned(
    database: Database,
) -> None:
    origin = {"device": OTHER_DEVICE.key, "environment": {}, "same": False, "other_device": True}
    search = SearchSummary.from_json({"ended": "shipped", "shipped": origin})
    record = SqlStore(database).put_kernel(kernel(timings=Timings(search=search)))
    own, any_device = wanted_of(record), wanted_of(record)._replace(other_devices=True)
    unasked, asked = look_up(database, [own, any_device])
    assert (unasked, asked and asked.kernel_id) == (None, record.id)
    set_pinned(database, record.id, pinned=True)
    pinned = look_up(database, [own, any_device])
    assert [(answer and answer.kernel_id, answer and answer.pinned) for answer in pinned] == [(record.id, True)] * 2


def test_a_prepared_lookup_holds_no_lock_sees_every_change_and_ends_with_its_database(
    sqlite_database: Database,
) -> None:
    store, prepared = SqlStore(sqlite_database), PreparedLookup(sqlite_database)
    wanted = wanted_of(kernel())
    assert prepared.find(wanted) is None
    for number in (1, 2):
        record = store.put_kernel(kernel(trials=number))
        answer = prepared.find(wanted)
        assert answer is not None
        assert answer.kernel_id == record.id
        with sqlite_database.engine.connect() as connection:
            busy, _, _ = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()
        assert busy == 0
    sqlite_database.close()
    with pytest.raises(StoreError, match="closed"):
        prepared.find(wanted)


def test_a_batch_answers_each_of_its_requests_in_its_place(database: Database) -> None:
    store = SqlStore(database)
    known = store.put_kernel(kernel())
    other = store.put_kernel(kernel(gemm=OTHER_GEMM))
    odd = [WantedAnswer(text, DEVICE.key, "sustained") for text in ("", "1x1x1", "a\0b", "\ud800", "'; --", '"[')]
    asked = [odd[0], wanted_of(other), *odd[1:], wanted_of(known), wanted_of(other)]
    answers = look_up(database, [*asked, WantedAnswer(str(GEMM), "elsewhere", "sustained")])
    ids = [answer and answer.kernel_id for answer in answers]
    assert ids == [None, other.id, *[None] * 5, known.id, other.id, None]
    assert look_up(database, []) == []


def test_documents_of_another_rendering_are_no_answers_and_are_rendered_anew(database: Database) -> None:
    store = SqlStore(database)
    records = [store.put_kernel(kernel(gemm=GEMM.with_(m=m), timings=Timings(search=SEARCH))) for m in (1, 3, 5)]
    row = KernelDocumentRow
    with database.write() as connection:
        first, second, _ = connection.execute(select(row.seq).order_by(row.seq)).scalars().all()
        connection.execute(update(row).where(row.seq == first).values(rendering=RENDERING + 1, json="another"))
        connection.execute(delete(row).where(row.seq == second))
    answers = look_up(database, [wanted_of(record) for record in records])
    assert [answer and answer.document for answer in answers] == [None, None, Rendered.of(render(records[2]).encode())]
    assert [answer and answer.kernel_id for answer in answers] == [record.id for record in records]
    assert add_missing_rows(database) == 2
    check(database, records)
    assert add_missing_rows(database) == 0


@pytest.mark.parametrize("search", ["no JSON", "[" * 100_000, "[]", '{"seconds": "x"}', '{"families": 7}'])
def test_a_damaged_row_of_a_document_counts_as_none(database: Database, search: str) -> None:
    record = SqlStore(database).put_kernel(kernel(timings=Timings(search=SEARCH)))
    with database.write() as connection:
        connection.execute(update(KernelDocumentRow).values(search=search))
    (answer,) = look_up(database, [wanted_of(record)])
    assert answer is not None
    assert (answer.kernel_id, answer.document, answer.search) == (record.id, None, None)


@pytest.mark.parametrize("damage", ["''", "substr(json, 1, 200)", 'replace(json, \'{"id":"\', \'{"id":"f\')'])
def test_a_document_that_is_cut_off_or_of_another_kernel_counts_as_none(database: Database, damage: str) -> None:
    damaged_documents(database, damage)


@pytest.mark.parametrize("column", ["json", "search", "sha256"])
@pytest.mark.parametrize("bit", [0, 1, 7])
def test_a_flipped_bit_of_a_document_counts_as_none_and_is_repaired(
    sqlite_database: Database, column: str, bit: int, caplog: pytest.LogCaptureFixture
) -> None:
    store = SqlStore(sqlite_database)
    record, other = (store.put_kernel(kernel(gemm=gemm, timings=Timings(search=SEARCH))) for gemm in (GEMM, OTHER_GEMM))
    mine = f"seq = (SELECT seq FROM kernels WHERE id = '{record.id}')"
    with sqlite_database.write() as connection:
        select_text = f"SELECT CAST({column} AS BLOB) FROM kernel_documents WHERE {mine}"
        text = bytearray(connection.exec_driver_sql(select_text).scalar_one())
        text[len(text) // 2] ^= 1 << bit
        change = f"UPDATE kernel_documents SET {column} = CAST(? AS TEXT) WHERE {mine}"
        connection.exec_driver_sql(change, (bytes(text),))
    damaged, whole = look_up(sqlite_database, [wanted_of(record), wanted_of(other)])
    assert damaged is not None
    assert (damaged.kernel_id, damaged.document, damaged.search) == (record.id, None, None)
    assert whole is not None
    assert whole.document == Rendered.of(render(other).encode()), "nobody else suffers"
    assert [message for message in caplog.messages if "damaged" in message and record.id in message]
    assert repair_document(sqlite_database, record)
    check(sqlite_database, [record, other])


def test_a_document_is_written_again_by_the_first_of_its_readers_alone(database: Database) -> None:
    record = SqlStore(database).put_kernel(kernel(timings=Timings(search=SEARCH)))
    writes = list[str]()

    def note(_connection: Any, _cursor: Any, statement: str, *_more: Any) -> None:
        if not statement.lstrip().upper().startswith(("SELECT", "PRAGMA", "BEGIN", "SET", "SHOW")):
            writes.append(statement)

    barrier = threading.Barrier(READERS)

    def read() -> bool:
        barrier.wait(30)
        return repair_document(database, record)

    row = KernelDocumentRow
    changes = {"damaged": update(row).values(json="{}"), "old": update(row).values(rendering=RENDERING - 1)}
    for state, change in [("whole", None), *changes.items(), ("missing", delete(row))]:
        if change is not None:
            with database.write() as connection:
                connection.execute(change)
        writes.clear()
        event.listen(database.engine, "before_cursor_execute", note)
        try:
            with ThreadPoolExecutor(READERS) as pool:
                repaired = list(pool.map(lambda _: read(), range(READERS)))
        finally:
            event.remove(database.engine, "before_cursor_execute", note)
        assert (sum(repaired), len(writes)) == ((0, 0) if change is None else (1, 1)), state
        check(database, [record])


def test_a_document_in_the_form_of_a_newer_version_is_left_to_it(database: Database) -> None:
    record = SqlStore(database).put_kernel(kernel())
    with database.write() as connection:
        connection.execute(update(KernelDocumentRow).values(rendering=RENDERING + 1, json="newer"))
    assert not repair_document(database, record)
    with database.read() as connection:
        assert connection.execute(select(KernelDocumentRow.json)).scalar_one() == "newer"
    assert SqlStore(database).delete_kernel(record.id)
    assert not repair_document(database, record), "a kernel that was deleted meanwhile has no document"


def damaged_documents(database: Database, damage: str) -> None:
    """Damage the document of a kernel, and look the kernel up."""
    record = SqlStore(database).put_kernel(kernel(timings=Timings(search=SEARCH)))
    check(database, [record])
    with database.write() as connection:
        connection.exec_driver_sql(f"UPDATE kernel_documents SET json = {damage}")
    (answer,) = look_up(database, [wanted_of(record)])
    assert answer is not None
    assert (answer.kernel_id, answer.document, answer.search) == (record.id, None, None)


def test_a_change_of_the_text_of_a_document_comes_with_another_number() -> None:
    text = "\n".join(render(record) for record in fixed())
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert TEXTS.get(RENDERING) == digest, "the text has changed: raise RENDERING, and note the digest of the new one"
