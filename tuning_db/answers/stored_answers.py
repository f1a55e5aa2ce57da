"""Lookup of the kernels that answer requests, with their documents as they were rendered: of several in one statement,
or of one in a statement that stays prepared."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import (
    JSON,
    Boolean,
    Executable,
    LargeBinary,
    Select,
    Text,
    and_,
    bindparam,
    cast,
    func,
    select,
    type_coerce,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.orm import InstrumentedAttribute
from sqlalchemy.sql.expression import ClauseElement, ColumnElement, TableValuedAlias

from tirgemm.gemm import Regime
from tirgemm.status import Role
from tirgemm.timings import SearchSummary
from tirgemm.tuning.records.json_values import plain_text
from tirgemm.tuning_db.answers.answer_choice import ANSWER_ORDER, may_answer
from tirgemm.tuning_db.answers.kernel_document import (
    RENDERING,
    DocumentRow,
    Rendered,
    log_damaged,
    stored_document,
)
from tirgemm.tuning_db.database import Database
from tirgemm.tuning_db.models import GemmRow, KernelDocumentRow, KernelRow


class WantedAnswer(NamedTuple):
    """What is asked for: the text form of a gemm, as it is stored, the key of a device class, a regime, and whether a
    kernel that was chosen from records of other devices will do."""

    gemm: str
    device_key: str
    regime: Regime
    other_devices: bool = False


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """The kernel that answers: what decides whether its search did what a request asks for (``search`` holds no more),
    and its document; that is None where this version's rendering is not stored or is damaged, and then ``search``, too,
    is not known."""

    kernel_id: str
    role: Role
    pinned: bool
    trials: int
    artifact_sha256: str
    search: SearchSummary | None
    document: Rendered | None

    @property
    def interrupted(self) -> bool:
        """Whether the search was ended by its user before its budget was spent."""
        return self.search is not None and self.search.ended == "interrupted"


def stored_answers(db: Database, wanted: Sequence[WantedAnswer]) -> list[StoredAnswer | None]:
    """For each the stored answer, as ``SqlStore.kernel`` chooses it; None where there is none. Raises StoreError."""
    answers: list[StoredAnswer | None] = [None] * len(wanted)
    statement = _SQLITE if db.is_sqlite else _POSTGRES
    texts = json.dumps([(plain_text(each.gemm), *each[1:]) for each in wanted])
    with db.read() as connection:
        read = connection.execute(statement, {"wanted": texts}).all()
    for number, *row in read:
        answers[number] = _answer(*row)
    return answers


class PreparedLookup:
    """The lookup of one kernel in SQLite, as short as it can be: a statement that stays prepared, on a connection of
    its own, which waits for nobody. For one thread at a time."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._connection = db.own_reader()

    def find(self, wanted: WantedAnswer) -> StoredAnswer | None:
        """The stored answer, as ``stored_answers`` gives it. Raises StoreUnavailable where another process keeps the
        database locked, and StoreError."""
        gemm, device_key, regime, other_devices = wanted
        parameters = _ONE_CONSTANTS | {
            "gemm": plain_text(gemm),
            "device_key": plain_text(device_key),
            "regime": regime,
            "other_devices": other_devices,
        }
        with self._db.translating():
            rows = self._connection.execute(_ONE, parameters).fetchall()
        return _answer(*rows[0]) if rows else None


def _answer(
    kernel_id: str, role: Role, pinned_at: str | None, trials: int, artifact_sha256: str, *document: str | bytes | None
) -> StoredAnswer:
    """The answer from the columns of ``_columns``."""
    row, pinned = DocumentRow(*document), pinned_at is not None
    rendered = stored_document(row, kernel_id, pinned=pinned)
    if rendered is None and row.json is not None:
        log_damaged(kernel_id)
    summary = _summary(row.search) if rendered is not None and row.search else None
    return StoredAnswer(kernel_id, role, pinned, trials, artifact_sha256, summary, rendered)


@lru_cache(maxsize=4096)  # searches end in few ways
def _summary(search: str | bytes) -> SearchSummary:
    return SearchSummary.from_json(json.loads(search))


_Column = ColumnElement[Any] | InstrumentedAttribute[Any]
_DOCUMENT = and_(KernelDocumentRow.seq == KernelRow.seq, KernelDocumentRow.rendering == RENDERING)


def _columns(read: Callable[[InstrumentedAttribute[str]], _Column]) -> list[_Column]:
    """What an answer is made of; ``read`` is how the columns of the document are read."""
    kernel = (KernelRow.id, KernelRow.role, KernelRow.pinned_at, KernelRow.trials, KernelRow.artifact_sha256)
    return [*kernel, *map(read, (KernelDocumentRow.search, KernelDocumentRow.json, KernelDocumentRow.sha256))]


def _chosen(
    gemm: ColumnElement[str],
    device_key: ColumnElement[str],
    regime: ColumnElement[str],
    other_devices: ColumnElement[bool],
) -> Select[int]:
    """The row number of the kernel that answers."""
    return (
        select(KernelRow.seq)
        .join(GemmRow, GemmRow.id == KernelRow.gemm_id)
        .where(
            GemmRow.text == gemm,
            KernelRow.device_key == device_key,
            KernelRow.regime == regime,
            may_answer(other_devices),
        )
        .order_by(*ANSWER_ORDER)
        .limit(1)
    )


def _lookup_of_several(
    entries: TableValuedAlias, number: ColumnElement[int], read: Callable[[InstrumentedAttribute[str]], _Column]
) -> Executable:
    """The lookup for rows of which each has its ``number`` from 0 and the ``value``, a WantedAnswer."""
    value = type_coerce(entries.c.value, JSON)
    answer = _chosen(value[0].as_string(), value[1].as_string(), value[2].as_string(), value[3].as_boolean())
    return (
        select(number, *_columns(read))
        .select_from(entries)
        .join(KernelRow, KernelRow.seq == answer.correlate(entries).scalar_subquery())
        .outerjoin(KernelDocumentRow, _DOCUMENT)
    )


def _lookup_of_one(read: Callable[[InstrumentedAttribute[str]], _Column]) -> ClauseElement:
    """The lookup for the parameters that are named as the members of a WantedAnswer."""
    answer = _chosen(
        bindparam("gemm", type_=Text),
        bindparam("device_key", type_=Text),
        bindparam("regime", type_=Text),
        bindparam("other_devices", type_=Boolean),
    )
    return (
        select(*_columns(read)).outerjoin(KernelDocumentRow, _DOCUMENT).where(KernelRow.seq == answer.scalar_subquery())
    )


def _as_bytes(column: InstrumentedAttribute[str]) -> _Column:
    """A text of SQLite, which damage may have made something else than UTF-8: to read it as a text would fail."""
    return cast(column, LargeBinary)


# Built once: to build them takes longer than to run them.
_LIST = bindparam("wanted", type_=Text)
_ENTRIES = func.json_each(_LIST).table_valued("key", "value", name="entries")
_NUMBERED = (
    func.json_array_elements(cast(_LIST, JSON))
    .table_valued("value", with_ordinality="number")
    .render_derived("entries")
)
_SQLITE = _lookup_of_several(_ENTRIES, _ENTRIES.c.key, _as_bytes)
_POSTGRES = _lookup_of_several(_NUMBERED, _NUMBERED.c.number - 1, lambda column: column)
_COMPILED = _lookup_of_one(_as_bytes).compile(dialect=sqlite.dialect(paramstyle="named"))
_ONE, _ONE_CONSTANTS = str(_COMPILED), dict(_COMPILED.params)
